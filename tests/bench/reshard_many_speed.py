"""Packed reshards beside DTensor's one by one, on four ranks of gloo, in turn within one run.

A Llama's 300 parameters from FSDP to tensor-parallel layout, in their real shapes, and 64 gradients reduced. Beside the
time of the clock stands that of the processors of all ranks, which other work on the machine distorts less.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

import shardlang as sl
from tests.bench.reshard_speed import in_turn
from tests.world import World, torch_mesh

WIDTH, KEYS, INNER, VOCABULARY = 2048, 256, 5632, 32000
LLAMA = f"300 parameters of a Llama of width {WIDTH}, FSDP to tensor parallel"


def rows() -> Iterator[tuple[str, str, str]]:
    with World(4) as world:
        for what, body, bound in (
            (f"{LLAMA}, f32", parameters, "5"),
            (f"{LLAMA}, bf16", halves, "5"),
            ("64 gradients of 1 KiB to 1 MiB, reduced", small_gradients, "5"),
            ("64 gradients of 4 MiB, reduced", large_gradients, "0.95"),
        ):
            found = world.run(body, timeout=900)
            ours, theirs, null = found[0][0]
            spent = [sum(f[1][i] for f in found) for i in range(2)]
            figure = f"{theirs / ours:.2f} times as fast ({ours * 1e3:.0f} ms; null {null / theirs:.2f}), "
            yield what, f"{figure}{spent[1] / spent[0]:.2f} by processor time", bound


Figures = tuple[list[float], list[float]]
"""Of one rank: median seconds of ours, DTensor's, and DTensor's once more; processor seconds of ours and DTensor's."""


def halves() -> Figures:
    return parameters(torch.bfloat16)


def parameters(dtype: torch.dtype = torch.float32) -> Figures:
    """33 layers of nine, the embedding, the output and a norm: 1.6 billion elements, a quarter on each rank.

    What FSDP cuts along dim 0 and tensor parallelism too is in place already: it is shared, as DTensor does.
    """
    mesh = torch_mesh((4,), ("x",))
    whole, rows_, columns = ([Replicate()], "[n]"), ([Shard(0)], "[n/x d]"), ([Shard(1)], "[n d/x]")
    layer = [((WIDTH,), whole)] * 2 + [((WIDTH, WIDTH), rows_)] + [((KEYS, WIDTH), rows_)] * 2
    layer += [((INNER, WIDTH), rows_)] * 2 + [((WIDTH, WIDTH), columns), ((WIDTH, INNER), columns)]
    every: list[Any] = [*layer * 33, ((VOCABULARY, WIDTH), rows_), ((VOCABULARY, WIDTH), rows_), ((WIDTH,), whole)]
    assert len(every) == 300
    xs = []
    for i, (shape, _) in enumerate(every):
        block = torch.full((shape[0] // 4, *shape[1:]), float(i % 7), dtype=dtype)
        xs.append(DTensor.from_local(block, mesh, [Shard(0)], run_check=False))
    specs = [spec for _, (_, spec) in every]

    def theirs() -> list[Any]:
        return [x.redistribute(mesh, p) for x, (_, (p, _)) in zip(xs, every, strict=True)]

    return measured(lambda: sl.reshard_many(xs, specs, alias=True), theirs, 5)


def measured(ours: Callable[[], list[Any]], theirs: Callable[[], list[Any]], rounds: int) -> Figures:
    """Both must give the same blocks; then they are timed."""
    assert all(torch.equal(_block(a), _block(b)) for a, b in zip(ours(), theirs(), strict=True))
    spent: list[list[float]] = [[], []]

    def counted(call: Callable[[], list[Any]], index: int) -> Callable[[], list[Any]]:
        def run() -> list[Any]:
            start = time.process_time()
            result = call()
            spent[index].append(time.process_time() - start)
            return result

        return run

    seconds = in_turn([counted(ours, 0), counted(theirs, 1), theirs], rounds)
    return seconds, [statistics.median(s) for s in spent]


def _block(x: Any) -> torch.Tensor:
    block: torch.Tensor = x.to_local() if isinstance(x, DTensor) else x
    return block


def small_gradients() -> Figures:
    return gradients([256 << (i % 11) for i in range(64)], 7)


def large_gradients() -> Figures:
    return gradients([1 << 20] * 64, 3)


def gradients(sizes: list[int], rounds: int) -> Figures:
    mesh = torch_mesh((4,), ("x",))
    xs = [DTensor.from_local(torch.full((n,), float(dist.get_rank())), mesh, [Partial()]) for n in sizes]

    def theirs() -> list[Any]:
        return [x.redistribute(mesh, [Replicate()]).to_local() for x in xs]

    return measured(lambda: sl.reshard_many(xs, "[n]"), theirs, rounds)
