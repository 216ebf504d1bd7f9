"""Softmax along a dim that is split, and a batch norm over one: by the few numbers of all, which alone are reduced."""

from __future__ import annotations

from typing import Any

import torch

from shardlang.trace.builder import Builder
from shardlang.trace.call import axis_of
from shardlang.trace.pieces import is_whole
from shardlang.trace.rewrites import given, rewrite
from shardlang.trace.values import Value

aten = torch.ops.aten
NARROW = (torch.float16, torch.bfloat16)
"""Summed in float32, as torch's own kernels do."""


@rewrite(
    "aten.softmax.int", "aten.log_softmax.int", "aten.special_softmax", "aten.special_log_softmax", "aten._softmax",
    "aten._log_softmax", "aten.softmin",
)  # fmt: skip
def softmax(builder: Builder, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Two reductions of the size of the result without the dim, whatever the size of the dim."""
    x: Value = args[0]
    if not x.shape:
        return None
    dim = axis_of(args[1], len(x.shape))
    if is_whole(x.state.pieces[dim]):
        return None
    if x.state.pending and not builder.auto:
        return None
    x = builder.resolved(x, "chosen")
    call = builder.call
    name = op._schema.name.split("::")[1]
    asked = None if name.startswith("_") else given(op, args, kwargs, "dtype")
    result = asked or x.dtype
    work = torch.float32 if result in NARROW else result
    if x.dtype != work:
        x = call(aten.to.dtype, x, work)
    if name == "softmin":
        x = call(aten.neg.default, x)
    largest = builder.resolved(call(aten.amax.default, call(aten.detach.default, x), [dim], True))
    shifted = call(aten.sub.Tensor, x, largest)
    exponentials = call(aten.exp.default, shifted)
    total = builder.resolved(call(aten.sum.dim_IntList, exponentials, [dim], True))
    if "log" in name:
        made = call(aten.sub.Tensor, shifted, call(aten.log.default, total))
    else:
        made = call(aten.div.Tensor, exponentials, total)
    return call(aten.to.dtype, made, result) if work != result else made


@rewrite("aten.batch_norm")
def batch_norm(builder: Builder, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """In training, over a split batch: two reductions of a number a channel, of the mean and of the variance."""
    x: Value = args[0]
    _, weight, bias, running, _, training, _, eps, *_ = args
    others = [d for d in range(len(x.shape)) if d != 1]
    if not training or running is not None:
        return None
    if not x.state.pending and all(is_whole(x.state.pieces[d]) for d in others):
        return None
    if x.state.pending and not builder.auto:
        return None
    x = builder.resolved(x, "chosen")
    call = builder.call
    result = x.dtype
    if result in NARROW:
        x = call(aten.to.dtype, x, torch.float32)
    centred = call(aten.sub.Tensor, x, builder.resolved(call(aten.mean.dim, x, others, True)))
    variance = builder.resolved(call(aten.mean.dim, call(aten.mul.Tensor, centred, centred), others, True))
    made = call(aten.mul.Tensor, centred, call(aten.rsqrt.default, call(aten.add.Scalar, variance, eps)))
    for of_channel, combine in ((weight, aten.mul.Tensor), (bias, aten.add.Tensor)):
        if of_channel is not None:
            for _ in others[1:]:
                of_channel = call(aten.unsqueeze.default, of_channel, -1)
            made = call(combine, made, of_channel)
    return call(aten.to.dtype, made, result) if made.dtype != result else made
