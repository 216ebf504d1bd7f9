"""A compiled function under ``torch.compile``, beside hand-written code under it; what making a program takes.

    python -m tests.bench.function_torch_compile [--rounds 60]

The MLP and the Llama layer of ``function_host_time``, on local blocks, by inductor with ``fullgraph=True``, which
raises at a graph break. Processor time, under a fake process group; each round in another order.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh

import shardlang as sl
from shardlang.lower import torch_private
from shardlang.lower.placements import mesh_of
from tests.bench import llama_by_hand
from tests.bench.function_host_time import HIDDEN, ROWS, WIDTH, turns
from tests.trace import networks
from tests.trace.oracle import layout

LAYERS = 8


def mlp_pair() -> tuple[Callable[..., Any], Callable[..., Any], list[torch.Tensor]]:
    """Ours and the hand-written MLP as functions of local blocks, and the blocks."""
    mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))
    names = [f"w{i}" for i in range(2 * LAYERS)]
    specs = ["[d f/tp]" if i % 2 == 0 else "[f/tp d]" for i in range(2 * LAYERS)]
    body = "\n".join(
        f"    x = sl.reshard(F.silu(x @ {names[i]}) @ {names[i + 1]}, '[b d]')" for i in range(0, 2 * LAYERS, 2)
    )
    space: dict[str, Any] = {"F": F, "sl": sl}
    exec(f"def mlp(x, {', '.join(names)}):\n{body}\n    return x", space)
    signature = ", ".join(f"{n}: {s}" for n, s in zip(names, specs, strict=True))
    function = sl.sharded(f"(x: [b d], {signature}) -> [b d]", mesh)(space["mlp"])
    shapes = [(ROWS, WIDTH), *[(WIDTH, HIDDEN) if i % 2 == 0 else (HIDDEN, WIDTH) for i in range(2 * LAYERS)]]
    layouts = [layout(mesh_of(mesh), s, n) for s, n in zip(["[b d]", *specs], shapes, strict=True)]
    ours = function.local_for(layouts, [torch.empty(s) for s in shapes])
    group = mesh.get_group("tp")

    def by_hand(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        for w1, w2 in zip(weights[::2], weights[1::2], strict=True):
            h = F.silu(llama_by_hand.Copy.apply(x, group) @ w1)
            x = llama_by_hand.Reduce.apply(h @ w2, group)
        return x

    return ours, by_hand, [torch.randn(w.local_shape(0)) for w in layouts]


def llama_pair() -> tuple[Callable[..., Any], Callable[..., Any], list[torch.Tensor]]:
    """The same of a Llama layer, tensor and sequence parallel."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    width, hidden, heads, keys = 32, 64, 4, 2
    kv = width // heads * keys
    shapes = [(4, 8, width), (width,), (width, width), (kv, width), (kv, width), (width, width), (width,)]
    shapes += [(hidden, width), (width, hidden), (hidden, width)]
    specs = ["[b/dp s/tp d]", *llama_by_hand.SPECS]
    signature = ", ".join(f"{n}: {s}" for n, s in zip(["x", *llama_by_hand.NAMES], specs, strict=True))

    @sl.sharded(f"({signature}) -> [b/dp s/tp d]", mesh)
    def layer(x: Any, n1: Any, wq: Any, wk: Any, wv: Any, wo: Any, n2: Any, w1: Any, w2: Any, w3: Any) -> Any:
        h = sl.reshard(F.rms_norm(x, (width,), n1, 1e-5), "[b/dp s d]")
        x = x + sl.reshard(networks.attention(h, wq, wk, wv, wo, heads, keys), "[b/dp s/tp d]")
        h = sl.reshard(F.rms_norm(x, (width,), n2, 1e-5), "[b/dp s d]")
        return x + sl.reshard(networks.feed_forward(h, w1, w2, w3), "[b/dp s/tp d]")

    layouts = [layout(mesh_of(mesh), s, n) for s, n in zip(specs, shapes, strict=True)]
    ours = layer.local_for(layouts, [torch.empty(s) for s in shapes])
    tp, dp = mesh.get_group("tp"), mesh.get_group("dp")

    def by_hand(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        return llama_by_hand.layer(x, list(weights), heads // 2, keys // 2, tp, dp, "sequence")

    return ours, by_hand, [torch.randn(w.local_shape(0)) for w in layouts]


def measure(rounds: int) -> dict[str, float]:
    """Ratios of ours to the hand-written one, both under inductor."""
    found = {}
    for title, pair in (("mlp", mlp_pair()), ("llama layer", llama_pair())):
        ours, by_hand, blocks = pair
        weights = [b.clone().requires_grad_() for b in blocks]
        ways = {
            "ours": torch.compile(ours, fullgraph=True),
            "by hand": torch.compile(by_hand, fullgraph=True),
            "by hand again": torch.compile(by_hand, fullgraph=True),
        }

        def first(made: Any) -> torch.Tensor:
            one: torch.Tensor = made[0] if isinstance(made, tuple) else made
            return one

        def forward(way: Callable[..., Any], weights: Any = weights) -> Callable[[], Any]:
            def run() -> Any:
                with torch.no_grad():
                    return way(*weights)

            return run

        def both(way: Callable[..., Any], weights: Any = weights) -> Callable[[], Any]:
            return lambda: first(way(*weights)).sum().backward()

        for passes, wrap in (("forward", forward), ("forward and backward", both)):
            times = turns({n: wrap(w) for n, w in ways.items()}, rounds)
            medians = {n: statistics.median(t) for n, t in times.items()}
            for name in ("ours", "by hand again"):
                found[f"{title}, {passes}: {name} over by hand"] = medians[name] / medians["by hand"]
    return found


def deep(layers: int = 32) -> tuple[float, float]:
    """Seconds (of the processor) to trace and compile a Llama of so many layers, and microseconds that a second call
    of the same shapes adds to running the local program."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    width, hidden, heads, keys = 32, 64, 4, 2
    kv = width // heads * keys
    one = [(width,), (width, width), (kv, width), (kv, width), (width, width), (width,), (hidden, width)]
    one += [(width, hidden), (hidden, width)]
    names = [f"{n}_{i}" for i in range(layers) for n in llama_by_hand.NAMES]
    specs = llama_by_hand.SPECS * layers
    signature = ", ".join(f"{n}: {s}" for n, s in zip(names, specs, strict=True))
    lines = []
    for i in range(layers):
        n1, wq, wk, wv, wo, n2, w1, w2, w3 = (f"{n}_{i}" for n in llama_by_hand.NAMES)
        lines += [
            f"    h = sl.reshard(F.rms_norm(x, ({width},), {n1}, 1e-5), '[b/dp s d]')",
            f"    a = networks.attention(h, {wq}, {wk}, {wv}, {wo}, {heads}, {keys})",
            "    x = x + sl.reshard(a, '[b/dp s/tp d]')",
            f"    h = sl.reshard(F.rms_norm(x, ({width},), {n2}, 1e-5), '[b/dp s d]')",
            f"    x = x + sl.reshard(networks.feed_forward(h, {w1}, {w2}, {w3}), '[b/dp s/tp d]')",
        ]
    space: dict[str, Any] = {"F": F, "sl": sl, "networks": networks}
    exec(f"def stack(x, {', '.join(names)}):\n" + "\n".join(lines) + "\n    return x", space)
    function = sl.sharded(f"(x: [b/dp s/tp d], {signature}) -> [b/dp s/tp d]", mesh)(space["stack"])
    shapes = [(4, 8, width), *one * layers]
    layouts = [layout(mesh_of(mesh), s, n) for s, n in zip(["[b/dp s/tp d]", *specs], shapes, strict=True)]
    from torch.distributed.tensor import DTensor

    from shardlang.lower.placements import placements_of

    tensors = [
        DTensor.from_local(torch.randn(w.local_shape(0)), mesh, placements_of(w), run_check=False) for w in layouts
    ]
    begun = time.process_time()
    with torch.no_grad():
        function(*tensors)
    seconds = time.process_time() - begun
    local = function.local_for(layouts, [torch.empty(s) for s in shapes])
    blocks = [torch_private.block_of(t) for t in tensors]

    def whole() -> Any:
        with torch.no_grad():
            return function(*tensors)

    def bare() -> Any:
        with torch.no_grad():
            return local(*blocks)

    times = turns({"whole": whole, "bare": bare}, 60)
    return seconds, (statistics.median(times["whole"]) - statistics.median(times["bare"])) * 1e6


def second_call() -> float:
    """Microseconds that a call of a function of one layer adds to running its local program."""
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))
    function = sl.sharded("(x: [b d], w1: [d f/tp], w2: [f/tp d]) -> [b d]{+tp}", mesh)(
        lambda x, w1, w2: F.silu(x @ w1) @ w2
    )
    shapes = [(ROWS, WIDTH), (WIDTH, HIDDEN), (HIDDEN, WIDTH)]
    whole = [torch.randn(s) for s in shapes]
    placements = [None, Shard(1), Shard(0)]
    tensors = [t if p is None else distribute_tensor(t, mesh, [p]) for t, p in zip(whole, placements, strict=True)]
    layouts = [layout(mesh_of(mesh), s, n) for s, n in zip(["[b d]", "[d f/tp]", "[f/tp d]"], shapes, strict=True)]
    local = function.local_for(layouts, whole)
    blocks = [t if p is None else torch_private.block_of(t) for t, p in zip(tensors, placements, strict=True)]

    def called() -> Any:
        with torch.no_grad():
            return function(*tensors)

    def bare() -> Any:
        with torch.no_grad():
            return local(*blocks)

    times = turns({"called": called, "bare": bare}, 600)
    return (statistics.median(times["called"]) - statistics.median(times["bare"])) * 1e6


def rows() -> list[tuple[str, str, str]]:
    """Lines of ``make bench``."""
    torch.set_num_threads(1)
    dist.init_process_group("fake", store=torch_private.fake_store(), rank=0, world_size=4)
    try:
        seconds, added = deep()
        lines = [
            ("trace and compile a Llama of 32 layers", f"{seconds:.1f} s", "20 s"),
            ("a second call of it, 289 tensors, adds", f"{added:.0f} us", ""),
            ("a second call of an MLP layer, 3 tensors, adds", f"{second_call():.1f} us", "30 us"),
        ]
        for name, ratio in measure(60).items():
            lines.append((f"under inductor, {name}", f"{ratio:.2f}", "1.05" if ": ours" in name else ""))
        return lines
    finally:
        dist.destroy_process_group()


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    for what, figure, bound in rows():
        print(f"{what:<80} {figure:>10} {bound:>8}")


if __name__ == "__main__":
    main()
