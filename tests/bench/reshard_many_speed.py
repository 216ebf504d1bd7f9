"""Packed reshards beside DTensor's one by one, on four ranks of gloo, in turn within one run.

A Llama's 300 parameters from FSDP to tensor-parallel layout, and 64 gradients reduced.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

import shardlang as sl
from tests.bench.reshard_speed import in_turn
from tests.world import World, torch_mesh

WIDTH = 2048


def rows() -> Iterator[tuple[str, str, str]]:
    with World(4) as world:
        for what, body, bound in (
            (f"300 parameters of width {WIDTH}, FSDP to tensor parallel", parameters, "5"),
            ("64 gradients of 1 KiB to 1 MiB, reduced", small_gradients, "5"),
            ("64 gradients of 4 MiB, reduced", large_gradients, "0.95"),
        ):
            ours, theirs, null = world.run(body, timeout=600)[0]
            yield what, f"{theirs / ours:.2f} times as fast ({ours * 1e3:.0f} ms; null {null / theirs:.2f})", bound


def parameters() -> list[float]:
    """Norms and slices of projections: 33 layers of nine, and three more; each of 32 rows, which keeps it in memory."""
    mesh = torch_mesh((4,), ("x",))
    shapes = [((WIDTH,), [Replicate()], "[n]")] * 2
    shapes += [((32, WIDTH), [Shard(0)], "[n/x d]")] * 3 + [((WIDTH, 32), [Shard(1)], "[n d/x]")] * 4
    every = (shapes * 34)[:300]
    xs = [distribute_tensor(torch.ones(shape), mesh, [Shard(len(shape) - 1)] if p != [Shard(1)] else [Shard(0)])
          for shape, p, _ in every]  # fmt: skip
    specs = [spec for _, _, spec in every]

    def theirs() -> list[Any]:
        return [x.redistribute(mesh, p) for x, (_, p, _) in zip(xs, every, strict=True)]

    return in_turn([lambda: sl.reshard_many(xs, specs), theirs, theirs], 5)


def small_gradients() -> list[float]:
    return gradients([256 << (i % 11) for i in range(64)], 7)


def large_gradients() -> list[float]:
    return gradients([1 << 20] * 64, 3)


def gradients(sizes: list[int], rounds: int) -> list[float]:
    mesh = torch_mesh((4,), ("x",))
    xs = [DTensor.from_local(torch.full((n,), float(dist.get_rank())), mesh, [Partial()]) for n in sizes]

    def theirs() -> list[Any]:
        return [x.redistribute(mesh, [Replicate()]).to_local() for x in xs]

    return in_turn([lambda: sl.reshard_many(xs, "[n]"), theirs, theirs], rounds)
