"""Host time of a compiled function beside hand-written code and DTensor, under a fake process group, in turns.

    python -m tests.bench.function_host_time [--layers 8] [--rounds 60]

An MLP of some layers with small tensors, tensor parallel over 4 ranks, and a Llama layer, tensor and sequence parallel.
Weights are DTensors everywhere, from which the hand-written code takes its blocks by ``to_local()``. One line for each
way and pass: median, and the ratio to the hand-written one; the null pair is the hand-written one against itself.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import shardlang as sl
from shardlang.lower import torch_private
from tests.bench import llama_by_hand
from tests.trace import networks

Way = Callable[[], torch.Tensor]
WIDTH, HIDDEN, ROWS = 16, 32, 4


class _Copy(torch.autograd.Function):
    """Identity forward, all-reduce backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        grad = grad.clone()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class _Reduce(torch.autograd.Function):
    """All-reduce forward, identity backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad, None


def by_hand(x: torch.Tensor, *weights: DTensor, group: Any) -> torch.Tensor:
    """Megatron's way, on local blocks."""
    for w1, w2 in zip(weights[::2], weights[1::2], strict=True):
        h = F.silu(_Copy.apply(x, group) @ w1.to_local())  # type: ignore[no-untyped-call]
        x = _Reduce.apply(h @ w2.to_local(), group)  # type: ignore[no-untyped-call]
    return x


def by_dtensor(x: DTensor, *weights: DTensor) -> DTensor:
    """DTensor's own dispatch, made to do the same."""
    for w1, w2 in zip(weights[::2], weights[1::2], strict=True):
        x = (F.silu(x @ w1) @ w2).redistribute(placements=[Replicate()])
    return x


def turns(ways: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each way, each round in another order."""
    for way in ways.values():
        for _ in range(3):
            way()
    times: dict[str, list[float]] = {name: [] for name in ways}
    names = list(ways)
    draw = random.Random(0)
    for _ in range(rounds):
        # Shuffled: what runs after a slow way finds cold caches.
        for name in draw.sample(names, len(names)):
            start = time.process_time()
            ways[name]()
            times[name].append(time.process_time() - start)
    return times


def measure(layers: int = 8, rounds: int = 60) -> dict[str, dict[str, float]]:
    """Median seconds by pass and way, for the MLP and for a Llama layer."""
    dist.init_process_group("fake", store=torch_private.fake_store(), rank=0, world_size=4)
    try:
        return _measured("mlp", _mlp(layers), rounds) | _measured("llama layer", _llama(), rounds)
    finally:
        dist.destroy_process_group()


def _mlp(layers: int) -> dict[str, Way]:
    mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))
    names = [f"w{i}" for i in range(2 * layers)]
    specs = ", ".join(f"{n}: " + ("[d f/tp]" if i % 2 == 0 else "[f/tp d]") for i, n in enumerate(names))
    body = "\n".join(
        f"    x = sl.reshard(F.silu(x @ {names[i]}) @ {names[i + 1]}, '[b d]')" for i in range(0, 2 * layers, 2)
    )
    space: dict[str, Any] = {"F": F, "sl": sl}
    exec(f"def mlp(x, {', '.join(names)}):\n{body}\n    return x", space)
    compiled = sl.sharded(f"(x: [b d], {specs}) -> [b d]", mesh)(space["mlp"])
    weights = []
    for i in range(2 * layers):
        shape = (WIDTH, HIDDEN) if i % 2 == 0 else (HIDDEN, WIDTH)
        placed = distribute_tensor(torch.randn(shape), mesh, [Shard(1 - i % 2)])
        weights.append(placed.detach().requires_grad_())
    x = torch.randn(ROWS, WIDTH)
    wrapped = DTensor.from_local(x, mesh, [Replicate()], run_check=False)
    group = mesh.get_group("tp")
    return {
        "by hand": lambda: by_hand(x, *weights, group=group),
        "by hand again": lambda: by_hand(x, *weights, group=group),
        "compiled": lambda: compiled(wrapped, *weights),
        "dtensor": lambda: by_dtensor(wrapped, *weights),
    }


def _llama() -> dict[str, Way]:
    """A small Llama layer on dp:2 * tp:2, sequence parallel, 4 heads on 2 key heads."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    width, hidden, heads, keys = 32, 64, 4, 2
    kv_width = width // heads * keys
    shapes = [(width,), (width, width), (kv_width, width), (kv_width, width), (width, width), (width,)]
    shapes += [(hidden, width), (width, hidden), (hidden, width)]
    signature = ", ".join(f"{n}: {s}" for n, s in zip(llama_by_hand.NAMES, llama_by_hand.SPECS, strict=True))

    @sl.sharded(f"(x: [b/dp s/tp d], {signature}) -> [b/dp s/tp d]", mesh)
    def layer(x: Any, n1: Any, wq: Any, wk: Any, wv: Any, wo: Any, n2: Any, w1: Any, w2: Any, w3: Any) -> Any:
        h = sl.reshard(F.rms_norm(x, (width,), n1, 1e-5), "[b/dp s d]")
        x = x + sl.reshard(networks.attention(h, wq, wk, wv, wo, heads, keys), "[b/dp s/tp d]")
        h = sl.reshard(F.rms_norm(x, (width,), n2, 1e-5), "[b/dp s d]")
        return x + sl.reshard(networks.feed_forward(h, w1, w2, w3), "[b/dp s/tp d]")

    weights = []
    for shape, spec in zip(shapes, llama_by_hand.SPECS, strict=True):
        cut = [i for i, dim in enumerate(spec.strip("[]").split()) if "/tp" in dim]
        placed = distribute_tensor(torch.randn(shape), mesh, [Replicate(), Shard(cut[0]) if cut else Replicate()])
        weights.append(placed.detach().requires_grad_())
    wrapped = distribute_tensor(torch.randn(4, 8, width), mesh, [Shard(0), Shard(1)])
    x = wrapped.to_local()
    tp, dp = mesh.get_group("tp"), mesh.get_group("dp")

    def hand() -> torch.Tensor:
        local = [w.to_local() for w in weights]
        return llama_by_hand.layer(x, local, heads // 2, keys // 2, tp, dp, "sequence")

    return {"by hand": hand, "by hand again": hand, "compiled": lambda: layer(wrapped, *weights)}


def _measured(title: str, ways: dict[str, Way], rounds: int) -> dict[str, dict[str, float]]:
    """Forward without gradients, and forward and backward."""

    def forward(way: Way) -> Callable[[], Any]:
        def run() -> Any:
            with torch.no_grad():
                return way()

        return run

    def both(way: Way) -> Callable[[], Any]:
        def run() -> Any:
            y = way()
            local = y.to_local() if isinstance(y, DTensor) else y
            local.sum().backward()

        return run

    found = {}
    for passes, wrap in (("forward", forward), ("forward and backward", both)):
        times = turns({n: wrap(w) for n, w in ways.items()}, rounds)
        found[f"{title}, {passes}"] = {n: statistics.median(t) for n, t in times.items()}
    return found


def rows() -> list[tuple[str, str, str]]:
    """Lines of ``make bench``."""
    torch.set_num_threads(1)
    lines = []
    for title, medians in measure().items():
        for name in [n for n in medians if n != "by hand"]:
            bound = f"<= {1.10 if 'backward' in title else 1.15}" if name == "compiled" else ""
            lines.append((f"{title}: {name} over by hand", f"{medians[name] / medians['by hand']:.2f}", bound))
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--format", choices=["text", "json"], default="text")
    given = parser.parse_args()
    torch.set_num_threads(1)
    found = measure(given.layers, given.rounds)
    if given.format == "json":
        print(json.dumps(found))
        return
    for title, medians in found.items():
        print(title)
        for name, median in medians.items():
            print(f"  {name:<14} {median * 1e6:8.0f} us  {median / medians['by hand']:5.2f}")


if __name__ == "__main__":
    main()
