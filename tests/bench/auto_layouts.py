"""Modelled time of the layouts that ``auto`` chooses beside the nearest ways, Megatron's and none; how long it takes.

    python -m tests.bench auto_layouts        # the rows
    python -m tests.bench.auto_layouts        # and writes them into RESULTS.md

A Llama layer and its SwiGLU, bfloat16, 8 sequences of 2048 tokens, width 4096. Every program starts and ends in the
same layouts (the batch over dp, weights over tp as Megatron lays them) and is built and priced forward and backward.
"""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable, Iterator
from datetime import date
from importlib.metadata import version
from os import getloadavg
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

import shardlang as sl
from shardlang.lower import torch_private
from shardlang.mesh import Axis, Link, Mesh
from shardlang.trace.capture import TensorType, Trace, capture
from shardlang.trace.compile import Argument, Auto, lower, modelled_time
from tests.bench.function_host_time import turns
from tests.trace.networks import attention, feed_forward
from tests.trace.oracle import layout

RESULTS = Path(__file__).with_name("RESULTS.md")
Row = tuple[str, str, str]
WIDTH, HIDDEN, KEYS = 4096, 14336, 1024
IB, NVLINK = Link("ib", 50 * 10**9, 12 * 10**6), Link("nvlink", 450 * 10**9, 3 * 10**6)
MESHES = {
    "tp 4": Mesh("m", (Axis("dp", 1), Axis("tp", 4))),
    "dp 2, tp 2": Mesh("m", (Axis("dp", 2), Axis("tp", 2))),
    "dp 2 on ib, tp 4 on nvlink": Mesh("m", (Axis("dp", 2, IB), Axis("tp", 4, NVLINK))),
}
SHAPES = {
    "n1": (WIDTH,), "wq": (WIDTH, WIDTH), "wk": (KEYS, WIDTH), "wv": (KEYS, WIDTH), "wo": (WIDTH, WIDTH),
    "n2": (WIDTH,), "w1": (HIDDEN, WIDTH), "w2": (WIDTH, HIDDEN), "w3": (HIDDEN, WIDTH),
}  # fmt: skip
SPECS = {
    "x": "[b/dp s d]", "n1": "[d]", "wq": "[q/tp d]", "wk": "[k/tp d]", "wv": "[k/tp d]", "wo": "[d q/tp]", "n2": "[d]",
    "w1": "[f/tp d]", "w2": "[d f/tp]", "w3": "[f/tp d]",
}  # fmt: skip


def keep(x: torch.Tensor, spec: str) -> torch.Tensor:
    """Where it lies."""
    return x


def block(x: Any, *weights: Any, stay: str = "", use: str = "", at: Callable[[Any, str], Any] = keep) -> Any:
    """Llama layers. Where ``at`` reshards, ``stay`` is the layout of the residual and ``use`` that of its readers."""
    for i in range(0, len(weights), 9):
        n1, wq, wk, wv, wo, n2, w1, w2, w3 = weights[i : i + 9]
        x = at(x, stay)
        h = at(F.rms_norm(x, (WIDTH,), n1, 1e-5), use)
        x = x + at(attention(h, wq, wk, wv, wo, heads=32, kv=8), stay)
        h = at(F.rms_norm(x, (WIDTH,), n2, 1e-5), use)
        x = x + at(feed_forward(h, w1, w2, w3), stay)
    return x


def mlp(x: Any, *weights: Any, stay: str = "", use: str = "", at: Callable[[Any, str], Any] = keep) -> Any:
    """SwiGLU."""
    return at(feed_forward(at(x, use), *weights), stay)


def whole(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function on whole values: every rank gathers all there is and does all the work."""

    def run(*tensors: torch.Tensor) -> Any:
        return function(*(sl.reshard(t, f"[{'_ ' * t.dim()}]") for t in tensors))

    return run


def by_hand(function: Callable[..., Any], stay: str, use: str) -> Callable[..., Any]:
    def run(*tensors: torch.Tensor) -> Any:
        return function(*tensors, stay=stay, use=use, at=sl.reshard)

    return run


def program(
    function: Callable[..., Any], names: list[str], mesh: Mesh, auto: Auto, layers: int = 1
) -> tuple[Any, Trace]:
    """The program on tensors of the meta device, its ends as ``SPECS`` says."""
    shapes = [(8, 2048, WIDTH)] + [SHAPES[n] for n in names] * layers
    specs = [SPECS["x"]] + [SPECS[n] for n in names] * layers
    layouts = [layout(mesh, spec, shape) for spec, shape in zip(specs, shapes, strict=True)]
    arguments = [
        Argument(f"x{i}", TensorType(shape, torch.bfloat16), where)
        for i, (shape, where) in enumerate(zip(shapes, layouts, strict=True))
    ]
    trace = capture(function, [a.type for a in arguments], function)
    made = lower(
        trace,
        arguments,
        mesh,
        lambda _: [layouts[0]],
        auto=auto,
        mark_layout=lambda mark, shape: layout(mesh, mark.spec, shape),
    )
    return made, trace


def chosen() -> Iterator[Row]:
    """Modelled milliseconds of each way, and by how much ``auto`` is quicker than the best of the others."""
    for what, function, names in (("llama layer", block, list(SHAPES)), ("swiglu", mlp, ["w1", "w2", "w3"])):
        for where, mesh in MESHES.items():
            ways = {
                "auto": (function, True),
                "nearest ways": (function, "near"),
                "Megatron, tensor parallel": (by_hand(function, "[b/dp s d]", "[b/dp s d]"), "near"),
                "Megatron, sequence parallel": (by_hand(function, "[b/dp s/tp d]", "[b/dp s d]"), "near"),
                "all whole": (whole(function), "near"),
            }
            times = {n: modelled_time(program(f, names, mesh, auto)[0]) / 1e9 for n, (f, auto) in ways.items()}
            rivals = min(t for n, t in times.items() if n != "auto")
            text = " / ".join(f"{t:.2f}" for t in times.values())
            yield f"{what}, {where}: {' / '.join(times)}", f"{text} ms", ""
            yield f"{what}, {where}: auto over the best of the others", f"{times['auto'] / rivals:.3f}", "1.000"


def compiled() -> Iterator[Row]:
    """A 32-layer model traced, typed and built, and how often equal parts were found again."""
    mesh = Mesh("m", (Axis("dp", 2), Axis("tp", 4)))
    begun, used = time.perf_counter(), time.process_time()
    made, trace = program(block, list(SHAPES), mesh, True, layers=32)
    wall, cpu = time.perf_counter() - begun, time.process_time() - used
    count = sum(n.op == "call_function" for n in trace.graph.nodes)
    yield f"32 layers, {count} operators: trace and compile, wall / processor", f"{wall:.1f} / {cpu:.1f} s", "20 s"
    one = modelled_time(program(block, list(SHAPES), mesh, True)[0])
    yield "32 layers: modelled time over 32 times one layer", f"{modelled_time(made) / (32 * one):.3f}", ""


def called(rounds: int = 400) -> Iterator[Row]:
    """What a call of the same shapes adds to what goes on inside it, for 3 tensors and for the 289 of 32 layers.

    The body only adds two of its tensors, so that what is measured is the call: beside the local program itself, and
    beside a function written by hand, which takes its blocks by ``to_local()`` and wraps its result.
    """
    dist.init_process_group("fake", store=torch_private.fake_store(), rank=0, world_size=4)
    try:
        for count in (3, 289):
            for grad in (False, True):
                with torch.set_grad_enabled(grad):
                    times = {n: statistics.median(t) for n, t in _calls(count, rounds if not grad else 60).items()}
                over_hand = (times["call"] - times["by hand"]) * 1e6
                what = f"{count} tensors, {'with' if grad else 'no'} grad: a second call of the same shapes"
                yield f"{what}, beside one by hand", f"{over_hand:.1f} us", "30 us"
                if not grad:
                    yield f"{what}, beside its local program", f"{(times['call'] - times['local']) * 1e6:.1f} us", ""
    finally:
        dist.destroy_process_group()


def _calls(count: int, rounds: int) -> dict[str, list[float]]:
    """Seconds of processor time of each way to call, in turns."""
    torch_mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))
    names = [f"w{i}" for i in range(count)]
    space: dict[str, Any] = {}
    exec(f"def body({', '.join(names)}):\n    return {names[0]} + {names[-1]}", space)
    signature = f"({', '.join(f'{n}: [d/tp]' for n in names)}) -> [d/tp]"
    compiled = sl.sharded(signature, torch_mesh)(space["body"])
    blocks = [torch.ones(8) for _ in names]
    placed = [DTensor.from_local(b, torch_mesh, [Shard(0)]).detach().requires_grad_() for b in blocks]
    run = compiled.local_for([layout(compiled.mesh, "[d/tp]", (32,))] * count, placed)

    def by_hand() -> Any:
        taken = [t.to_local() for t in placed]
        return DTensor.from_local(taken[0] + taken[-1], torch_mesh, [Shard(0)], run_check=False)

    ways = {"call": lambda: compiled(*placed), "local": lambda: run(*blocks), "by hand": by_hand}
    return turns(ways, rounds)


def rows() -> Iterator[Row]:
    yield from called()
    yield from chosen()
    yield from compiled()


def main() -> None:
    load = ", ".join(f"{n:.0f}" for n in getloadavg())
    head = (
        f"Auto, {date.today()}: Python {platform.python_version()}, torch {version('torch')}, {platform.machine()}, two"
    )
    head += f" cores of a shared machine, load {load}; times are modelled unless they say otherwise."
    table = ["| what | figure | target |", "|---|---|---|", *(f"| {a} | {b} | {c} |" for a, b, c in rows())]
    text = RESULTS.read_text()
    before, _, rest = text.partition("\n## Auto\n")
    after = rest[rest.index("\n## ") :] if "\n## " in rest else ""
    lines = "\n".join(table)
    RESULTS.write_text(f"{before.rstrip()}\n\n## Auto\n\n{head}\n\n{lines}\n{after}")


if __name__ == "__main__":
    main()
