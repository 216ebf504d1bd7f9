"""Small numbers that ranks work out together, outside any plan: sums of losses, norms, counts.

They go over the executor's own groups and count as turns of their ranks. So a rank that is missing here is named too,
and those that wait for it are woken.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from shardlang.lower.placements import ranks_of
from shardlang.runtime.faults import told_apart
from shardlang.runtime.groups import group_of


def all_reduced(x: Tensor, ranks: tuple[int, ...], what: str, op: Any = dist.ReduceOp.SUM) -> Tensor:
    """``x`` reduced in place over some of torch's ranks (ascending), this one among them. ``what``: for messages.

    Raises ShardlangError: SL0701 where ranks come with different things, SL0702 where one does not come.
    """
    if len(ranks) > 1:
        with told_apart(ranks, what):
            dist.all_reduce(x, op, group_of(ranks, x.device.type).handle)
    return x


def summed_over(mesh: DeviceMesh, x: Tensor, what: str) -> Tensor:
    """``all_reduced`` over all ranks of a mesh."""
    return all_reduced(x, tuple(sorted(ranks_of(mesh))), what)


def ranks_along(mesh: DeviceMesh, axes: Iterable[int]) -> tuple[int, ...]:
    """Torch's ranks, ascending, that differ from this one on some axes (by their places) of a mesh and on no other."""
    coordinate = mesh.get_coordinate()
    assert coordinate is not None
    every, strides = ranks_of(mesh), [1] * mesh.ndim
    for i in range(mesh.ndim - 1, 0, -1):
        strides[i - 1] = strides[i] * mesh.size(i)
    found = [sum(at * stride for at, stride in zip(coordinate, strides, strict=True))]
    for axis in axes:
        found = [p + (i - coordinate[axis]) * strides[axis] for p in found for i in range(mesh.size(axis))]
    return tuple(sorted(every[p] for p in found))


__all__ = ["all_reduced", "ranks_along", "summed_over"]
