"""Losses of DTensors: cross entropy over a vocabulary that is split, and the mean over the whole batch."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.nn import functional as F

from shardlang.diagnostics import ShardlangError, sl07_runtime
from shardlang.layout import chunk
from shardlang.lower import torch_private
from shardlang.lower.placements import ranks_of
from shardlang.runtime.reshard import layout_of, placed, reshard
from shardlang.runtime.together import all_reduced, ranks_along


def splits_classes(input: Tensor) -> bool:
    """Are logits split over their classes?"""
    return isinstance(input, DTensor) and bool(_split_axes(input, 1 if input.dim() > 1 else 0))


def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """``torch.nn.functional.cross_entropy`` of class indices, for logits that are split over the class dim too.

    ``input`` is ``[n, classes]`` or ``[n, classes, ...]`` and ``target`` the same without the class dim. A plain
    ``target`` is the whole one. Logits that are whole over the classes take torch's own way.

    Where the classes are split, two all-reduces (the maximum, then sum and target together) of one number a
    prediction are all that is sent, forward, and nothing backward. Class weights, label smoothing and
    targets that are probabilities are refused there: ``SL0715``.
    """
    class_dim = 1 if input.dim() > 1 else 0
    split = _split_axes(input, class_dim) if isinstance(input, DTensor) else ()
    if not split:
        if isinstance(input, DTensor) and not isinstance(target, DTensor):
            target = _whole(target, input.device_mesh)
        return F.cross_entropy(input, target, weight, size_average, ignore_index, reduce, reduction, label_smoothing)
    assert isinstance(input, DTensor)
    asked = {
        "class weights": weight is not None,
        "label smoothing": label_smoothing != 0,
        "probabilities as targets": target.is_floating_point(),
        "logits without a batch dim": class_dim == 0,
    }
    if any(asked.values()):
        first = next(what for what, given in asked.items() if given)
        raise ShardlangError(sl07_runtime.split_cross_entropy(first, str(layout_of(input))))
    each_placements = tuple(_without(p, class_dim, i in split) for i, p in enumerate(input.placements))
    target = _placed(target, input.device_mesh, each_placements)
    each: Tensor = _SplitCrossEntropy.apply(  # type: ignore[no-untyped-call]  # torch does not annotate it
        input, target, class_dim, split, ignore_index
    )
    if reduction == "none":
        return each
    total = each.sum()
    if reduction == "sum":
        return total
    return total / (target != ignore_index).sum()


class _SplitCrossEntropy(torch.autograd.Function):
    """Logits as a DTensor split over the classes on mesh axes ``split``; gives the loss of each prediction."""

    @staticmethod
    def forward(ctx: Any, logits: DTensor, target: DTensor, dim: int, split: tuple[int, ...], ignored: int) -> DTensor:
        mesh = logits.device_mesh
        local, labels = logits.to_local().detach(), target.to_local()
        if local.dtype in (torch.float16, torch.bfloat16):
            local = local.float()
        start, stop = _class_range(logits, dim, split)
        ranks = ranks_along(mesh, split)
        kept = labels != ignored
        top = local.amax(dim) if local.shape[dim] else local.new_full(labels.shape, float("-inf"))
        all_reduced(top, ranks, "the largest logit of each prediction, in a cross entropy", dist.ReduceOp.MAX)
        shifted = local - top.unsqueeze(dim)
        mine = kept & (labels >= start) & (labels < stop)
        index = torch.where(mine, labels - start, 0).unsqueeze(dim)
        powers = shifted.exp()
        if local.shape[dim]:
            chosen = torch.where(mine, shifted.gather(dim, index).squeeze(dim), 0.0)
        else:
            chosen = torch.zeros_like(top)
        sums = all_reduced(torch.stack((powers.sum(dim), chosen)), ranks, "the sums of a cross entropy")
        each = torch.where(kept, sums[0].log() - sums[1], 0.0)
        ctx.save_for_backward(powers.div_(sums[0].unsqueeze(dim)), index, mine, kept)
        ctx.dim, ctx.spec = dim, (mesh, logits.placements, logits.shape, logits.stride(), logits.dtype)
        return _wrap(each.to(logits.dtype), mesh, target.placements, target.shape)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        probabilities, index, mine, kept = ctx.saved_tensors
        mesh, placements, shape, stride, dtype = ctx.spec
        grad = grads[0]
        wanted = tuple(_without(p, ctx.dim, p.is_shard(ctx.dim)) for p in placements)
        # Half-precision logits were taken up to float32: so is their gradient, until it is done.
        each = placed(grad, wanted).to_local().to(probabilities.dtype)
        scale = torch.where(kept, each, 0.0).unsqueeze(ctx.dim)
        inner = probabilities * scale
        if inner.shape[ctx.dim]:
            inner.scatter_add_(ctx.dim, index, torch.where(mine.unsqueeze(ctx.dim), -scale, 0.0))
        result = DTensor.from_local(inner.to(dtype), mesh, placements, run_check=False, shape=shape, stride=stride)
        return result, None, None, None, None


def _split_axes(x: DTensor, dim: int) -> tuple[int, ...]:
    """The mesh axes of more than one rank that split a dim."""
    return tuple(i for i, p in enumerate(x.placements) if p.is_shard(dim) and x.device_mesh.size(i) > 1)


def _without(placement: Placement, dim: int, split: bool) -> Placement:
    """The placement once a dim is gone, over which the value was whole or is summed up."""
    if split or placement.is_shard(dim):
        return Replicate()
    if isinstance(placement, Shard) and placement.dim > dim:
        return Shard(placement.dim - 1)
    return placement


def _class_range(x: DTensor, dim: int, split: tuple[int, ...]) -> tuple[int, int]:
    """The classes that this rank holds: nested chunks, left axis outermost."""
    coordinate = x.device_mesh.get_coordinate()
    assert coordinate is not None
    start, stop = 0, x.shape[dim]
    for axis in split:
        low, high = chunk(stop - start, x.device_mesh.size(axis), coordinate[axis])
        start, stop = start + low, start + high
    return start, stop


def _whole(x: Tensor, mesh: DeviceMesh) -> DTensor:
    return DTensor.from_local(x, mesh, [Replicate()] * mesh.ndim, run_check=False)


def _placed(x: Tensor, mesh: DeviceMesh, placements: tuple[Placement, ...]) -> DTensor:
    whole = x if isinstance(x, DTensor) else _whole(x, mesh)
    return placed(whole, placements)


def _wrap(local: Tensor, mesh: DeviceMesh, placements: Any, shape: torch.Size) -> DTensor:
    stride = torch_private.contiguous_stride(shape)
    return DTensor.from_local(local, mesh, placements, run_check=False, shape=shape, stride=stride)


def global_mean(loss_sum: Tensor, count: int | Tensor, mesh: DeviceMesh | None = None) -> Tensor:
    """The mean over the whole batch of a sum of losses, so that its gradients are those of the global loss.

    In the global view (``loss_sum`` a DTensor) ``count`` is the whole batch's, as an integer or as a DTensor that may
    still be pending, and the mean is ``loss_sum / count``. Of plain tensors, each rank's ``loss_sum`` and ``count``
    are those of its own part of the batch: ranks of ``mesh`` (all, where it is not given) must have parts that do not
    overlap; the result is then this rank's share of the mean, and the shares of all ranks add up to it.
    """
    if isinstance(loss_sum, DTensor):
        if isinstance(count, DTensor):
            count = placed(count, [Replicate()] * count.device_mesh.ndim).to_local()
        return loss_sum / count
    total = torch.as_tensor(count, dtype=torch.float64, device=loss_sum.device).clone()
    ranks = tuple(range(dist.get_world_size())) if mesh is None else tuple(sorted(ranks_of(mesh)))
    all_reduced(total, ranks, "the count of the whole batch, for a global mean")
    return loss_sum / total.to(loss_sum.dtype)


def whole_value(x: Tensor) -> Tensor:
    """The plain tensor that a (possibly split or pending) DTensor stands for, outside autograd."""
    whole = x.detach()
    if isinstance(whole, DTensor):
        if any(torch_private.is_strided_shard(p) for p in whole.placements):
            return reshard(whole, "whole").to_local()  # type: ignore[no-any-return]  # reshard gives what it is given
        whole = whole.redistribute(placements=[Replicate()] * whole.device_mesh.ndim).to_local()
    return whole
