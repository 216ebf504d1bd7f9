"""Operators that are put down differently where a dim they work on is split."""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from attrs import evolve

from shardlang.diagnostics import ShardlangError, sl05_functions
from shardlang.layout import Layout
from shardlang.trace.builder import Builder
from shardlang.trace.call import axis_of
from shardlang.trace.misfits import operand
from shardlang.trace.pieces import is_whole
from shardlang.trace.values import Value

aten = torch.ops.aten
Rewrite = Callable[[Builder, Any, tuple[Any, ...], dict[str, Any]], Any]
REWRITES: dict[str, Rewrite] = {}
"""By operator or overload. A rewrite returns ``None`` where the operator's rule will do."""


def rewrite(*operators: str) -> Callable[[Rewrite], Rewrite]:
    """Registers a rewrite for operators."""

    def decorate(function: Rewrite) -> Rewrite:
        REWRITES.update(dict.fromkeys(operators, function))
        return function

    return decorate


def given(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], name: str) -> Any:
    """The argument called ``name`` in the operator's schema, or its default."""
    for i, argument in enumerate(op._schema.arguments):
        if argument.name == name:
            if i < len(args):
                return args[i]
            return kwargs.get(name, argument.default_value if argument.has_default_value() else None)
    raise KeyError(name)


@rewrite("aten.mean")
def mean(builder: Builder, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Over split dims: the sum, which is owed, over the global count."""
    x: Value = args[0]
    dims = _dims(x, given(op, args, kwargs, "dim") if op is not aten.mean.default else None)
    if all(is_whole(x.state.pieces[d]) for d in dims):
        return None
    keep = bool(given(op, args, kwargs, "keepdim")) if op is not aten.mean.default else False
    dtype = given(op, args, kwargs, "dtype")
    total = builder.call(aten.sum.dim_IntList, x, dims, keep, dtype=dtype)
    return builder.call(aten.div.Tensor, total, math.prod(x.shape[d] for d in dims))


def _dims(x: Value, dim: Any) -> list[int]:
    if dim is None or dim == []:
        return list(range(len(x.shape)))
    return [axis_of(d, len(x.shape)) for d in ([dim] if isinstance(dim, int) else dim)]


@rewrite("aten.amax", "aten.amin", "aten.max", "aten.min")
def extreme(builder: Builder, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Over split dims: the extreme without gradient, then the mean of the elements equal to it, which has torch's."""
    x: Value = args[0]
    every = op in (aten.max.default, aten.min.default)
    if not every and op not in (aten.amax.default, aten.amin.default):
        return None
    dims = _dims(x, None if every else given(op, args, kwargs, "dim"))
    if all(is_whole(x.state.pieces[d]) for d in dims):
        return None
    if x.state.pending:
        if not builder.auto:
            return None
        x = builder.resolved(x, "chosen")
    keep = False if every else bool(given(op, args, kwargs, "keepdim"))
    largest = "max" in op._schema.name
    partial = aten.amax.default if largest else aten.amin.default
    if not (x.differentiable and builder.gradients):
        result = x.fake.new_empty([1 if i in dims else n for i, n in enumerate(x.shape) if keep or i not in dims])
        return builder.apply(partial, (_filled(builder, x, dims, largest), dims, keep), {}, result)
    best = builder.resolved(builder.call(partial, builder.call(aten.detach.default, x), dims, True))
    hit = builder.call(aten.eq.Tensor, x, best)
    count = builder.resolved(builder.call(aten.sum.dim_IntList, hit, dims, keep))
    total = builder.call(aten.sum.dim_IntList, builder.call(aten.where.ScalarOther, hit, x, 0), dims, keep)
    return builder.call(aten.div.Tensor, total, count)


def _filled(builder: Builder, x: Value, dims: list[int], largest: bool) -> Value:
    """The value with an element in every rank's block: where a rank has none, each gets one that never wins."""
    ranks = list(builder.mesh.ranks)
    node = x.node
    for dim in dims:
        if x.state.pieces[dim].flat and not all(x.layout.local_shape(rank)[dim] for rank in ranks):
            never = identity(x.dtype, largest)
            pad = [0, 0] * (len(x.shape) - 1 - dim) + [0, 1]
            node = builder.graph.call_function(aten.constant_pad_nd.default, (node, pad, never))
            node.meta["value"] = x
    return x if node is x.node else evolve(x, node=node, moved={})


def identity(dtype: torch.dtype, largest: bool) -> float | int:
    """What never is the greatest (or least) of several."""
    if dtype.is_floating_point:
        return -math.inf if largest else math.inf
    return torch.iinfo(dtype).min if largest else torch.iinfo(dtype).max


@rewrite(
    "aten.binary_cross_entropy", "aten.binary_cross_entropy_with_logits", "aten.kl_div", "aten.smooth_l1_loss",
    "aten.huber_loss", "aten.soft_margin_loss",
)  # fmt: skip
def loss_by_element(builder: Builder, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The loss of each element by the operator itself, then the reduction."""
    kind = given(op, args, kwargs, "reduction")
    if kind == 0 or not any(isinstance(a, Value) and a.axes() for a in args):
        return None
    place = [a.name for a in op._schema.arguments].index("reduction")
    if place < len(args):
        args = (*args[:place], 0, *args[place + 1 :])
    else:
        kwargs = {**kwargs, "reduction": 0}
    each = builder.call(op, *args, **kwargs)
    return builder.call(aten.mean.default, each) if kind == 1 else builder.call(aten.sum.default, each)


@rewrite("aten.as_strided")
def as_strided(builder: Builder, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Of a whole value whose elements lie in order. Of others there is none: a block lies otherwise."""
    x: Value = args[0]
    if len(builder.mesh.ranks) == 1 or not isinstance(x, Value):
        return None
    if not x.fake.is_contiguous() or x.fake.storage_offset():
        raise ShardlangError(
            sl05_functions.no_rule("aten.as_strided", builder.site.span() if builder.site else None, [operand(x)])
        )
    if x.axes() and not builder.auto:
        return None
    whole = builder.move(x, Layout.whole(builder.mesh, x.shape), "chosen")
    with builder.fake:
        result = op(x.fake, *args[1:], **kwargs)
    return builder.apply(op, (builder.call(aten.contiguous.default, whole), *args[1:]), kwargs, result)


@rewrite("aten.mse_loss", "aten.l1_loss")
def pointwise_loss(builder: Builder, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The loss of each element, then the reduction."""
    difference = builder.call(aten.sub.Tensor, args[0], args[1])
    if op is aten.mse_loss.default:
        each = builder.call(aten.mul.Tensor, difference, difference)
    else:
        each = builder.call(aten.abs.default, difference)
    kind = given(op, args, kwargs, "reduction")
    if kind == 0:
        return each
    return builder.call(aten.mean.default, each) if kind == 1 else builder.call(aten.sum.default, each)


for _module in ("lookup", "losses", "normalised", "drawing"):
    import_module(f"shardlang.trace.{_module}")
