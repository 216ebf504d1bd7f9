"""Random operators: drawn by seed and global index, the same on any mesh, as ``sl.rand`` and ``sl.randn`` are.

A process's own generator is never asked; what is given one (``generator=``) is refused, as are distributions that
cannot be drawn by place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from shardlang.layout import Layout
from shardlang.trace.builder import Builder
from shardlang.trace.pieces import Piece, State, layout_of, whole_piece
from shardlang.trace.program import Draw, DrawKind, draw
from shardlang.trace.rewrites import given, rewrite
from shardlang.trace.values import Value

aten = torch.ops.aten


def put_draw(
    builder: Builder,
    pieces: Sequence[Piece] | None,
    fake: torch.Tensor,
    kind: DrawKind,
    first: float,
    second: float = 0.0,
) -> Value:
    """Random numbers of the shape and dtype of ``fake``, with these dims; whole without them."""
    layout = Layout.whole(builder.mesh, tuple(fake.shape))
    if pieces is not None:
        layout = layout_of(builder.mesh, State(tuple(pieces)))
    builder.draws.append(Draw(layout, fake.dtype, kind, first, second))
    node = builder.graph.call_function(draw, (len(builder.draws) - 1,))
    made: Value = builder.wrap(node, fake, [layout], constant=pieces is None, flows=False)
    return made


def _own_generator(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Is the operator told to draw from a generator of the process?"""
    names = [a.name for a in op._schema.arguments]
    return "generator" in names and given(op, args, kwargs, "generator") is not None


@rewrite("aten.dropout", "aten.dropout_")
def dropout(builder: Builder, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Times a mask that depends on seed and global index alone; linear, so that pending values pass."""
    x, p = args[0], given(op, args, kwargs, "p")
    if p == 0 or not given(op, args, kwargs, "train"):
        return x
    mask = put_draw(builder, x.state.pieces, x.fake, "kept", p)
    node = builder.graph.call_function(aten.mul.Tensor, (x.node, mask.node))
    return builder.wrap(node, x.fake, [x.layout], constant=False, flows=builder.gradients and x.differentiable)


@rewrite("aten.native_dropout")
def native_dropout(builder: Builder, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Dropout that also gives which elements it kept."""
    x, p = args[0], args[1]
    if given(op, args, kwargs, "train") is False:
        return x, builder.call(aten.ones_like.default, x, dtype=torch.bool)
    mask = put_draw(builder, x.state.pieces, x.fake, "kept", p)
    return builder.call(aten.mul.Tensor, x, mask), builder.call(aten.ne.Scalar, mask, 0)


@rewrite("aten.feature_dropout", "aten.feature_dropout_")
def feature_dropout(builder: Builder, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Dropout of whole channels, the second dim."""
    x, p = args[0], given(op, args, kwargs, "p")
    if p == 0 or not given(op, args, kwargs, "train"):
        return x
    ones = len(x.shape) - 2
    fake = x.fake.new_empty((*x.shape[:2], *[1] * ones))
    mask = put_draw(builder, [*x.state.pieces[:2], *[whole_piece(1)] * ones], fake, "kept", p)
    return builder.call(aten.mul.Tensor, x, mask)


@rewrite("aten.rand", "aten.randn", "aten.randint")
def from_nothing(builder: Builder, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A whole tensor of random numbers."""
    if _own_generator(op, args, kwargs):
        return None
    fake = _fake(builder, op, args, kwargs)
    return put_draw(builder, None, fake, *_numbers(op, args, kwargs))


@rewrite("aten.rand_like", "aten.randn_like", "aten.randint_like")
def alike(builder: Builder, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Random numbers split like the operand."""
    return put_draw(builder, args[0].state.pieces, _fake(builder, op, args, kwargs), *_numbers(op, args, kwargs))


def _numbers(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[DrawKind, float, float]:
    name = op._schema.name
    if "randint" in name:
        low = given(op, args, kwargs, "low") if "low" in [a.name for a in op._schema.arguments] else 0
        return "integers", low, given(op, args, kwargs, "high")
    return ("normal", 0.0, 1.0) if "randn" in name else ("uniform", 0.0, 1.0)


@rewrite("aten.uniform_", "aten.normal_", "aten.bernoulli_")
def in_place(builder: Builder, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The operand filled anew: random numbers of its shape, split like it."""
    if _own_generator(op, args, kwargs):
        return None
    x, kind = args[0], op._schema.name.split("::")[1]
    if x.state.pending:
        return None
    if kind == "uniform_":
        return put_draw(
            builder, x.state.pieces, x.fake, "uniform", given(op, args, kwargs, "from"), given(op, args, kwargs, "to")
        )
    if kind == "normal_":
        return put_draw(
            builder, x.state.pieces, x.fake, "normal", given(op, args, kwargs, "mean"), given(op, args, kwargs, "std")
        )
    p = given(op, args, kwargs, "p")
    return None if isinstance(p, Value) else put_draw(builder, x.state.pieces, x.fake, "bernoulli", p)


@rewrite("aten.bernoulli")
def bernoulli(builder: Builder, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """One with the probability that the operand says, element by element, or with one for all."""
    if _own_generator(op, args, kwargs):
        return None
    x = args[0]
    if op is aten.bernoulli.p:
        return put_draw(builder, x.state.pieces, x.fake, "bernoulli", args[1])
    numbers = put_draw(builder, x.state.pieces, x.fake, "uniform", 0.0, 1.0)
    return builder.call(
        aten.to.dtype, builder.call(aten.lt.Tensor, numbers, builder.call(aten.detach.default, x)), x.dtype
    )


@rewrite("aten.randperm")
def permutation(builder: Builder, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The order of as many random numbers."""
    if _own_generator(op, args, kwargs):
        return None
    with builder.fake:
        fake = torch.empty(args[0], dtype=torch.float64)
    order = builder.call(aten.argsort.default, put_draw(builder, None, fake, "uniform", 0.0, 1.0))
    dtype = _fake(builder, op, args, kwargs).dtype
    return order if dtype == torch.int64 else builder.call(aten.to.dtype, order, dtype)


@rewrite("aten.scaled_dot_product_attention")
def attention(builder: Builder, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """With dropout: by its parts, since the mask over queries and keys has to be drawn by place."""
    p = given(op, args, kwargs, "dropout_p")
    if not p:
        return None
    call = builder.call
    q, k, v = args[:3]
    mask, scale = given(op, args, kwargs, "attn_mask"), given(op, args, kwargs, "scale")
    if given(op, args, kwargs, "enable_gqa") and q.shape[-3] != k.shape[-3]:
        groups = q.shape[-3] // k.shape[-3]
        k, v = (call(aten.repeat_interleave.self_int, t, groups, t.fake.dim() - 3) for t in (k, v))
    scaled = call(aten.mul.Tensor, q, 1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    scores = call(aten.matmul.default, scaled, call(aten.transpose.int, k, -2, -1))
    if given(op, args, kwargs, "is_causal"):
        with builder.fake:
            whole = torch.empty(q.shape[-2], k.shape[-2], dtype=torch.bool)
        seen = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device="cpu").tril()
        mask = builder.constant(seen, whole)
    if mask is not None and mask.dtype == torch.bool:
        scores = call(aten.masked_fill.Scalar, scores, call(aten.logical_not.default, mask), -math.inf)
    elif mask is not None:
        scores = call(aten.add.Tensor, scores, mask)
    weights = call(aten.dropout.default, call(aten._safe_softmax.default, scores, -1), p, True)
    return call(aten.matmul.default, weights, v)


def _fake(builder: Builder, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    """The operator's result as a tensor without values."""
    with builder.fake, torch.no_grad():
        made: torch.Tensor = op(*[a.fake if isinstance(a, Value) else a for a in args], **kwargs)
    return made
