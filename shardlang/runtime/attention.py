"""Attention in the global view: each rank attends with the heads and the rows of the batch that it has.

Query, key and value may be split alike over the batch (dim 0) and over heads (dim 1). A query may be split over heads
on axes where key and value are whole as well, as long as a rank has one key head: its query heads then share it, and
the key's gradient is pending on these axes. Nothing is sent then; what comes split otherwise is brought to one of these
layouts first.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.nn import functional as F

from shardlang.runtime.reshard import placed


def local_attention(query: Any, key: Any, value: Any, mask: Any, *rest: Any, **options: Any) -> Tensor | None:
    """The attention of DTensors by the blocks of each rank; ``None`` where they are no batches of heads."""
    if not all(isinstance(x, DTensor) and x.dim() == 4 for x in (query, key, value)):
        return None
    mesh = query.device_mesh
    if not all(mesh.size(axis) == 1 or _fits(query, key, value, axis) for axis in range(mesh.ndim)):
        query, key, value = _alike(query, key, value)
    key_grads = [
        Partial() if q.is_shard(1) and not k.is_shard(1) else k
        for q, k in zip(query.placements, key.placements, strict=True)
    ]
    if mask is not None:
        mask = _mask_block(mask, query)
    out = F.scaled_dot_product_attention(
        _laid_out(query.to_local()),
        _laid_out(key.to_local(grad_placements=key_grads)),
        _laid_out(value.to_local(grad_placements=key_grads)),
        mask,
        *rest,
        **options,
    )
    shape = (*query.shape[:3], value.shape[3])
    stride = _stride(out, shape)
    return DTensor.from_local(out, mesh, query.placements, run_check=False, shape=torch.Size(shape), stride=stride)


def _fits(query: DTensor, key: DTensor, value: DTensor, axis: int) -> bool:
    """Has each rank of an axis all that its queries attend to?"""
    q, k, v = (x.placements[axis] for x in (query, key, value))
    if q == k == v:
        return q.is_replicate() or q.is_shard(0) or q.is_shard(1)
    return q.is_shard(1) and k.is_replicate() and v.is_replicate() and key.to_local().shape[1] == 1


def _alike(query: DTensor, key: DTensor, value: DTensor) -> tuple[DTensor, DTensor, DTensor]:
    """All three split alike: an axis that splits heads or rows of one of them does so of all, if it divides them."""
    mesh = query.device_mesh
    each = (query, key, value)
    left = {1: math.gcd(query.shape[1], key.shape[1]), 0: query.shape[0]}
    wanted: list[Placement] = []
    for axis in range(mesh.ndim):
        size = mesh.size(axis)
        having = (dim for dim in left if left[dim] % size == 0 and any(x.placements[axis].is_shard(dim) for x in each))
        dim = next(having, None)
        wanted.append(Replicate() if dim is None else Shard(dim))
        if dim is not None:
            left[dim] //= size
    # Contiguous, since that is what a gathered block is, here and in the backward pass, whatever DTensor says of it.
    laid: list[Any] = [x.contiguous() for x in each]
    q, k, v = (placed(x, wanted) for x in laid)
    return q, k, v


def _mask_block(mask: Tensor, query: DTensor) -> Tensor:
    """The part of a mask ``[.., batch or 1, heads or 1, seq, seq]`` that goes with this rank's queries.

    What is one for all rows or heads, as a learned bias of positions, has a gradient from each of them: over axes that
    split these it comes in parts.
    """
    mesh = query.device_mesh
    if not isinstance(mask, DTensor):
        mask = DTensor.from_local(mask, mesh, [Replicate()] * mesh.ndim, run_check=False)
    first = 4 - mask.dim()
    wanted: list[Placement] = []
    grads: list[Placement] = []
    for placement in query.placements:
        dim = placement.dim - first if isinstance(placement, Shard) else -1
        alike = dim >= 0 and mask.shape[dim] > 1
        wanted.append(Shard(dim) if alike else Replicate())
        grads.append(Partial() if placement.is_shard() and not alike else wanted[-1])
    return _laid_out(placed(mask, wanted).to_local(grad_placements=grads))


def _laid_out(block: Tensor) -> Tensor:
    """The block, whose gradient will lie in memory as it does.

    DTensor says so of gradients that it has redistributed, and then makes views of them, while attention gives
    gradients in an order of its own.
    """
    laid: Tensor = _LaidOut.apply(block)  # type: ignore[no-untyped-call]  # torch does not annotate it
    return laid


class _LaidOut(torch.autograd.Function):
    """Identity; backward, the gradient with the strides of the value."""

    @staticmethod
    def forward(ctx: Any, block: Tensor) -> Tensor:
        ctx.stride = block.stride()
        return block.view_as(block)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        grad: Tensor = grads[0]
        overlapping = any(step == 0 and size > 1 for step, size in zip(ctx.stride, grad.shape, strict=True))
        if overlapping or grad.stride() == ctx.stride:
            return grad
        return torch.empty_strided(grad.shape, ctx.stride, dtype=grad.dtype, device=grad.device).copy_(grad)


def _stride(block: Tensor, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of the whole, in the order of the block's: attention gives heads inside or outside of the sequence."""
    order = sorted(range(len(shape)), key=lambda d: (block.stride(d), -d))
    stride, size = [0] * len(shape), 1
    for d in order:
        stride[d] = size
        size *= max(shape[d], 1)
    return tuple(stride)
