"""Looking up rows of a table whose rows are split over mesh axes, several of them and unevenly too."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from shardlang.layout import chunk
from shardlang.lower import torch_private
from shardlang.runtime.reshard import placed


def splits_rows(weight: Tensor) -> bool:
    """Are the rows of a table split, over axes of more than one rank, and its columns whole?"""
    if not isinstance(weight, DTensor) or any(p.is_shard(1) for p in weight.placements):
        return False
    return bool(row_axes(weight))


def row_axes(weight: DTensor) -> tuple[int, ...]:
    """The mesh axes of more than one rank that split the rows."""
    return tuple(i for i, p in enumerate(weight.placements) if p.is_shard(0) and weight.device_mesh.size(i) > 1)


def embedding(indices: Tensor, weight: Tensor, padding_idx: int | None = None) -> Tensor:
    """``torch.nn.functional.embedding`` for a table whose rows are split and whose columns are whole.

    ``indices`` (a plain tensor is the whole one) must be whole on the axes that split the rows. The result is pending
    on these: each rank gives the rows that it has, and zeros. Nothing is sent, forward or backward.
    """
    assert isinstance(weight, DTensor)
    mesh = weight.device_mesh
    if not isinstance(indices, DTensor):
        indices = DTensor.from_local(indices, mesh, [Replicate()] * mesh.ndim, run_check=False)
    rows = row_axes(weight)
    wanted = [Replicate() if i in rows else p for i, p in enumerate(indices.placements)]
    indices = placed(indices, wanted)
    looked_up: Tensor = _Lookup.apply(indices, weight, padding_idx, rows)  # type: ignore[no-untyped-call]  # torch's
    return looked_up


class _Lookup(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, indices: DTensor, weight: DTensor, padding: int | None, rows: tuple[int, ...]) -> Tensor:
        mesh, table = weight.device_mesh, torch_private.block_of(weight)
        start, stop = own_rows(weight, rows)
        local = torch_private.block_of(indices)
        mine = (local >= start) & (local < stop)
        position = torch.where(mine, local - start, 0)
        if stop > start:
            found = table[position].masked_fill_(~mine.unsqueeze(-1), 0)
        else:
            found = table.new_zeros((*local.shape, table.shape[1]))
        if padding is not None:
            mine = mine & (local != padding)
        ctx.save_for_backward(position, mine)
        ctx.mesh, ctx.rows, ctx.spec = mesh, rows, torch_private.spec_of(weight)
        ctx.table = tuple(table.shape)
        placements = tuple(Partial() if i in rows else p for i, p in enumerate(indices.placements))
        ctx.given = tuple(indices.placements)
        return _wrapped(found, mesh, placements, (*indices.shape, weight.shape[1]))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        position, mine = ctx.saved_tensors
        wanted = tuple(Replicate() if i in ctx.rows else p for i, p in enumerate(ctx.given))
        block = torch_private.block_of(placed(grads[0], wanted))
        grad = block.new_zeros(ctx.table)
        if ctx.table[0]:
            kept = block.masked_fill(~mine.unsqueeze(-1), 0)
            grad.index_add_(0, position.reshape(-1), kept.reshape(-1, kept.shape[-1]))
        placements = tuple(_of_table(i, p, ctx.rows) for i, p in enumerate(ctx.given))
        return None, _wrapped(grad, ctx.mesh, placements, ctx.spec.shape), None, None


def _of_table(axis: int, given: Placement, rows: tuple[int, ...]) -> Placement:
    """The gradient of the table on an axis: a part of the rows, or a share where the indices are split."""
    if axis in rows:
        return Shard(0)
    return Partial() if given.is_shard() else Replicate()


def own_rows(weight: DTensor, rows: tuple[int, ...]) -> tuple[int, int]:
    """The rows that this rank holds: nested chunks, left axis outermost."""
    coordinate = weight.device_mesh.get_coordinate()
    assert coordinate is not None
    start, stop = 0, weight.shape[0]
    for axis in rows:
        low, high = chunk(stop - start, weight.device_mesh.size(axis), coordinate[axis])
        start, stop = start + low, start + high
    return start, stop


def _wrapped(local: Tensor, mesh: Any, placements: tuple[Placement, ...], shape: Any) -> Tensor:
    stride = torch_private.contiguous_stride(shape)
    return torch_private.dtensor_of(
        local, torch_private.dtensor_spec(mesh, placements, shape, stride, local.dtype), requires_grad=False
    )
