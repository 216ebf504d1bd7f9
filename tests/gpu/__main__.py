"""One prepared run for a machine with one accelerator: ``python -m tests.gpu [--device cuda|cpu] [--out FILE]``.

It prints a table and writes it as JSON: what held, what did not, and the figures with device and versions. With
``--device cpu`` it takes the same road over gloo, so that the script itself is known to work before a GPU is lent.

1. every collective that the executor issues, on a real group of one rank, in every dtype that it is issued in;
2. tensors from a CPU mesh to the device's and back, in one launch that has both backends, with their gradients; a block
   on another device than its mesh is a diagnostic;
3. ``shardlang run`` of the demo's model on a mesh of one rank: loss beside one device, memory beside the forecast;
4. the arrays of a plan: ``live_peak_bytes`` beside the allocator's peak, and that peak from step to step (a fake
   process group of four ranks allocates what a real one does; its values mean nothing and are not looked at);
5. host time of a compiled function beside the same written by hand, on tensors too small for kernels to matter.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

import shardlang as sl
from shardlang.dtypes import DTYPES
from shardlang.runtime import collectives
from shardlang.runtime.distributed import run_plan
from shardlang.runtime.groups import Group, Team, group_of, release

ROOT = Path(__file__).parents[2]
Row = dict[str, Any]


def one_rank(device: str) -> list[Row]:
    """Each collective moves a block onto itself: the values must be the block's, to the bit, in every dtype."""
    backend = "nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    rows = []
    try:
        group = group_of((0,), device)
        for name, dtype in DTYPES.items():
            block = torch.arange(64, device=device).to(getattr(torch, dtype.torch_name))
            reduced = collectives.reduces(group, block.dtype)
            for kind in ("all_gather", "all_to_all", *(("all_reduce", "reduce_scatter") if reduced else ())):
                # Gloo has no reduce-scatter that sends what it must, and the executor issues none there.
                if kind == "reduce_scatter" and backend == "gloo":
                    continue
                out = _through(kind, group, block)
                same = torch.equal(out.view(torch.uint8), block.view(torch.uint8))
                rows.append({"check": f"{backend} {kind} {name}", "holds": same})
    finally:
        release()
        dist.destroy_process_group()
    return rows


def _through(kind: str, group: Group, block: torch.Tensor) -> torch.Tensor:
    label, out = collectives.Label(kind, ("a",)), torch.empty_like(block)
    if kind == "all_gather":
        collectives.all_gather(group, label, out, block).wait()
    elif kind == "all_to_all":
        collectives.all_to_all(group, label, out, block, None, None).wait()
    elif kind == "all_reduce":
        collectives.all_reduce(group, label, out.copy_(block), "sum").wait()
    else:
        collectives.reduce_scatter(group, label, out, block, "sum").wait()
    return out


def across(device: str) -> list[Row]:
    """A mesh on the CPU and one on the device, of the same rank: values and gradients cross, and stay what they are."""
    backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    rows = []
    try:
        host, there = (init_device_mesh(kind, (1,), mesh_dim_names=("tp",)) for kind in ("cpu", device))
        value = torch.arange(48.0).view(8, 6)
        x = sl.distribute(value, "[n/tp d]", host).detach().requires_grad_()
        moved = sl.reshard(x, "[n d/tp]", there)
        (sl.reshard(moved * moved, "[n d]", there).to_local()).sum().backward()
        back = sl.reshard(moved, "[n d]", host)
        held = moved.to_local().device.type == device and back.to_local().device.type == "cpu"
        right = torch.equal(back.to_local(), value) and torch.equal(x.grad.to_local(), 2 * value)
        rows.append(
            {"check": f"a mesh on the CPU to one on {device} and back, with gradients", "holds": held and right}
        )
        if device == "cuda":
            try:
                sl.reshard(torch.ones(8, 6), "[n d/tp]", there, source="[n/tp d]")
                code = "none"
            except sl.ShardlangError as error:
                code = error.codes[0]
            rows.append({"check": "a block on the CPU for a mesh on cuda is refused", "holds": code == "SL0716"})
    finally:
        release()
        dist.destroy_process_group()
    return rows


def demo(device: str) -> list[Row]:
    """The demo's model on a mesh of one rank, through the command line."""
    text = (ROOT / "examples/llama/llama.shard").read_text().replace("dp:2 * tp:2", "dp:1 * tp:1")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "one.shard")
        file.write_text(text)
        command = [sys.executable, "-m", "shardlang", "run", str(file), "--nproc", "1", "--device", device]
        done = subprocess.run(
            [*command, "--format", "json"], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
        )
    if done.returncode:
        return [{"check": "shardlang run on one rank", "holds": False, "said": done.stderr[-2000:]}]
    report = json.loads(done.stdout)
    keys = ("loss_max_relative_difference", "grad_norm_max_relative_difference", "memory_measured_bytes")
    figures = {k: report[k] for k in (*keys, "memory_predicted_bytes", "seconds_per_step") if k in report}
    rows = [{"check": "shardlang run on one rank", "holds": True, **figures}]
    measured, predicted = (max(_numbers(report.get(f"memory_{word}_bytes"))) for word in ("measured", "predicted"))
    near = abs(measured - predicted) <= 0.1 * measured if measured and predicted else None
    rows.append(
        {
            "check": "its peak within a tenth of the forecast",
            "holds": near,
            "ratio": predicted / measured if measured else None,
        }
    )
    return rows


def _numbers(told: Any) -> list[int]:
    """The figures of all ranks, however they are given; 0 where there is none."""
    found = [
        int(n) for n in (told.values() if isinstance(told, dict) else told if isinstance(told, list) else [told]) if n
    ]
    return found or [0]


def staging(device: str) -> list[Row]:
    """Predicted and measured peak of some plans on a mesh of four; a CPU has no allocator to ask, and says None."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    rows = []
    size = 8192 if device == "cuda" else 64
    try:
        for text in (
            f"f32[{size}/a/b {size}] => [{size} {size}]",
            f"f32[{size}/a/b {size}] => [{size} {size}/a/b]",
            f"f32[{size} {size}]{{+a, +b}} => [{size}/a/b {size}]",
            f"f32[{size} {size}]{{+a}} => [{size} {size}]",
            f"f32[{size - 1}/~a {size}] => [{size - 1} {size}/~a]",
        ):
            plan = sl.plan(text, mesh="a:2 * b:2")
            block = torch.zeros(plan.source.local_shape(0), device=device)
            run_plan(plan, block, team=Team(device), check=False)  # the groups and their buffers are there after this
            peaks = []
            for _ in range(3 if device == "cuda" else 0):
                torch.accelerator.synchronize()
                held = torch.accelerator.memory_allocated() - block.nbytes
                torch.accelerator.reset_peak_memory_stats()
                run_plan(plan, block, team=Team(device), check=False)
                torch.accelerator.synchronize()
                peaks.append(torch.accelerator.max_memory_allocated() - held)
            rows.append({
                "check": f"peak of {text}",
                "holds": None if not peaks else max(peaks) <= plan.live_peak_bytes * 1.05 + (1 << 20),
                "predicted": plan.live_peak_bytes,
                "measured": peaks or None,
            })  # fmt: skip
            rows.append({"check": "the same in every step", "holds": len(set(peaks)) == 1 if peaks else None})
    finally:
        release()
        dist.destroy_process_group()
    return rows


def host_time(device: str) -> list[Row]:
    """An MLP of two layers, split over four ranks: compiled, by hand, and by hand against itself."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    try:
        mesh = init_device_mesh(device, (4,), mesh_dim_names=("tp",))
        x = DTensor.from_local(torch.ones(4, 16, device=device), mesh, [Replicate()])
        w1 = DTensor.from_local(torch.ones(16, 16, device=device), mesh, [Shard(1)])
        w2 = DTensor.from_local(torch.ones(16, 16, device=device), mesh, [Shard(0)])

        @sl.sharded("(x: [b d], w1: [d f/tp], w2: [f/tp d]) -> [b d]", mesh)
        def compiled(x: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor) -> torch.Tensor:
            return torch.relu(x @ w1) @ w2

        group = mesh.get_group()

        def by_hand(x: DTensor, w1: DTensor, w2: DTensor) -> DTensor:
            y = torch.relu(x.to_local() @ w1.to_local()) @ w2.to_local()
            dist.all_reduce(y, group=group)
            return DTensor.from_local(y, mesh, [Replicate()], run_check=False)

        with torch.no_grad():
            ours, null = _ratio(lambda: compiled(x, w1, w2), lambda: by_hand(x, w1, w2), device)
    finally:
        release()
        dist.destroy_process_group()
    return [{"check": "host time of a compiled function over by hand", "holds": None, "ratio": ours, "null": null}]


def _ratio(ours: Callable[[], object], theirs: Callable[[], object], device: str) -> tuple[float, float]:
    """Median ratio of ours to theirs, taken in turn, and of theirs to itself."""

    def seconds(call: Callable[[], object]) -> float:
        start = time.perf_counter()
        for _ in range(100):
            call()
        if device != "cpu":
            torch.accelerator.synchronize()
        return time.perf_counter() - start

    for call in (ours, theirs):
        seconds(call)
    turns = [(seconds(ours), seconds(theirs), seconds(theirs)) for _ in range(15)]
    return statistics.median(a / b for a, b, _ in turns), statistics.median(c / b for _, b, c in turns)


@click.command()
@click.option("--device", type=click.Choice(["cuda", "cpu"]), default="cuda", show_default=True)
@click.option("--out", type=click.Path(path_type=Path), help="Where the figures go as JSON.")
def main(device: str, out: Path | None) -> None:
    """Runs every check; exits 1 where one that can tell does not hold."""
    if device == "cuda" and not torch.cuda.is_available():
        raise click.ClickException("there is no CUDA device here; `--device cpu` tries the script itself")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    rows: list[Row] = []
    for check in (one_rank, across, staging, host_time, demo):
        rows += check(device)
    name = torch.cuda.get_device_name() if device == "cuda" else platform.processor() or platform.machine()
    report = {"device": name, "torch": torch.__version__, "python": platform.python_version(), "checks": rows}
    for row in rows:
        sign = {True: "ok", False: "FAILED", None: "-"}[row["holds"]]
        rest = {k: v for k, v in row.items() if k not in ("check", "holds")}
        click.echo(f"{sign:7}{row['check']}  {json.dumps(rest) if rest else ''}")
    if out is not None:
        out.write_text(json.dumps(report, indent=2) + "\n")
    if any(row["holds"] is False for row in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
