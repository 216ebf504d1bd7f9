"""A Llama layer split by hand, the way Megatron does it: what the compiled one is held against.

Local blocks and process groups only. ``split`` says how the residual stream lies between the parts: ``whole`` over
tensor parallel ranks, or split along the ``sequence``.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

from tests.trace.networks import positions, rotary

EPSILON = 1e-5
NAMES = ["n1", "wq", "wk", "wv", "wo", "n2", "w1", "w2", "w3"]
SPECS = ["[d]", "[q/tp d]", "[k/tp d]", "[k/tp d]", "[d q/tp]", "[d]", "[f/tp d]", "[d f/tp]", "[f/tp d]"]


all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class Copy(torch.autograd.Function):
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


class Reduce(torch.autograd.Function):
    """All-reduce forward, identity backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad, None


def gather(x: torch.Tensor, group: Any) -> torch.Tensor:
    """The sequence of all ranks, from each one's part of it; dim 1."""
    size = dist.get_world_size(group)
    made = x.new_empty(size, *x.shape)
    all_gather(made.view(-1, *x.shape[1:]), x.contiguous(), group=group)
    return made.permute(1, 0, *range(2, made.dim())).reshape(x.shape[0], -1, *x.shape[2:])


def scatter_sum(x: torch.Tensor, group: Any) -> torch.Tensor:
    """This rank's part of the sequence of the sum; dim 1."""
    size = dist.get_world_size(group)
    parts = x.unflatten(1, (size, -1)).transpose(0, 1).contiguous()
    made = torch.empty_like(parts[0])
    reduce_scatter(made, parts.view(-1, *parts.shape[2:]), group=group)
    return made


def part(x: torch.Tensor, group: Any) -> torch.Tensor:
    """This rank's part of a whole sequence; dim 1."""
    return x.chunk(dist.get_world_size(group), 1)[dist.get_rank(group)].contiguous()


def _function(there: Any, back: Any) -> Any:
    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
            ctx.group = group
            return there(x, group)

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> Any:
            return back(grad, ctx.group), None

    return Function


Gather = _function(gather, scatter_sum)
Scatter = _function(scatter_sum, gather)
Part = _function(part, gather)
Whole = _function(gather, part)


def layer(
    x: torch.Tensor, weights: list[torch.Tensor], heads: int, kv: int, tp: Any, dp: Any, split: str
) -> torch.Tensor:
    """The rank's block of the layer's result. ``heads`` and ``kv`` are the rank's own."""
    if split == "sequence":
        enter, leave = Gather.apply, Scatter.apply
    else:
        enter, leave = Copy.apply, Reduce.apply
    # On a split sequence the gradients of the norms' weights are parts over both groups, together all ranks.
    norms = dist.group.WORLD if split == "sequence" else dp
    groups = [norms if w.dim() == 1 else dp for w in weights]
    n1, wq, wk, wv, wo, n2, w1, w2, w3 = (Copy.apply(w, g) for w, g in zip(weights, groups, strict=True))
    h = enter(F.rms_norm(x, (x.shape[-1],), n1, EPSILON), tp)
    batch, length, _ = h.shape
    width = wq.shape[0] // heads
    q = F.linear(h, wq).view(batch, length, heads, width).transpose(1, 2)
    k = F.linear(h, wk).view(batch, length, kv, width).transpose(1, 2)
    v = F.linear(h, wv).view(batch, length, kv, width).transpose(1, 2)
    cos, sin = positions(length, width, x.dtype)
    o = F.scaled_dot_product_attention(rotary(q, cos, sin), rotary(k, cos, sin), v, is_causal=True, enable_gqa=True)
    x = x + leave(F.linear(o.transpose(1, 2).reshape(batch, length, heads * width), wo), tp)
    h = enter(F.rms_norm(x, (x.shape[-1],), n2, EPSILON), tp)
    return x + leave(F.linear(F.silu(F.linear(h, w1)) * F.linear(h, w3), w2), tp)


def both_ends_whole(
    x: torch.Tensor, weights: list[torch.Tensor], heads: int, kv: int, tp: Any, dp: Any, split: str
) -> torch.Tensor:
    """The layer on a split sequence, between a whole one before and after."""
    return Whole.apply(layer(Part.apply(x, tp), weights, heads, kv, tp, dp, split), tp)
