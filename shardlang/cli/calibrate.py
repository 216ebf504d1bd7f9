"""``shardlang calibrate``: the links of a real launch, as ``link`` lines."""

from __future__ import annotations

import json
import math
import sys
import tempfile
from pathlib import Path

import click

from shardlang.diagnostics import ShardlangError, sl03_layouts, sl07_launch
from shardlang.source import Source
from shardlang.syntax.parse import parse_axes


@click.command()
@click.option("--mesh", required=True, metavar="AXES", help="The mesh, such as 'dp:2@ib * tp:4@nvlink'.")
@click.option(
    "--nproc", type=click.IntRange(min=1), metavar="N", help="The ranks of the launch: the mesh's, by default."
)
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
def command(mesh: str, nproc: int | None, device: str) -> None:
    """Measure the links of a launch on this machine, over gloo or NCCL, and print them as `link` lines for a file.

    A link is named as the mesh names it, or as its axis. Of several axes on one link the slower counts.
    """
    axes = parse_axes(Source("<--mesh>", mesh))
    fixed = math.prod(a.size for a in axes if a.size is not None)
    ranks = nproc or fixed
    sizes = [a.size if a.size is not None else ranks // fixed for a in axes]
    if math.prod(sizes) != ranks:
        raise ShardlangError(
            sl03_layouts.world_size(None, "mesh", mesh, ranks, fixed, any(a.size is None for a in axes))
        )
    if device != "cpu":
        import torch

        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if count < ranks:
            raise ShardlangError(sl07_launch.no_device(device, count, ranks))
    found = _measured(sizes, ranks, device)
    links: dict[str, tuple[float, float]] = {}
    for axis, (bandwidth, latency) in zip(axes, found, strict=True):
        if bandwidth:
            name = axis.link.text if axis.link is not None else axis.name.text
            before = links.get(name, (bandwidth, latency))
            links[name] = min(before[0], bandwidth), max(before[1], latency)
    width = max((len(n) for n in links), default=0)
    for name, (bandwidth, latency) in links.items():
        click.echo(f"link {name.ljust(width)} = {rate_text(bandwidth)}, {latency_text(latency)}")
    if not links:
        click.echo("no axis has more than one rank: there is no link to measure", err=True)


def _measured(sizes: list[int], ranks: int, device: str) -> list[tuple[float, float]]:
    from shardlang.runtime.launch import Interrupted, RankFailure, launch

    with tempfile.TemporaryDirectory(prefix="shardlang-") as name:
        directory = Path(name)
        (directory / "task.json").write_text(json.dumps({"sizes": sizes, "device": device}))
        try:
            launch("shardlang.runtime.calibrate", (name,), nproc=ranks, directory=directory)
        except RankFailure as failure:
            click.echo(f"rank {failure.rank}: {failure.summary}\n{failure.text}", err=True)
            sys.exit(1)
        except Interrupted as interrupted:
            sys.exit(128 + interrupted.number)
        return [(b, s) for b, s in json.loads((directory / "links.json").read_text())]


def rate_text(rate: float) -> str:
    """``12.5 GB/s``, in the language's own words."""
    for unit, scale in (("GB/s", 1e9), ("MB/s", 1e6)):
        if rate >= scale:
            return f"{_short(rate / scale)} {unit}"
    return f"{_short(rate / 1e3)} kB/s"


def latency_text(seconds: float) -> str:
    """``12.5 us``."""
    return f"{_short(seconds * 1e6)} us" if seconds < 1e-3 else f"{_short(seconds * 1e3)} ms"


def _short(value: float) -> str:
    """Three figures, without an exponent."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}" if value >= 0.01 else "0.01"
