"""Cross entropy where classes or rows are split."""

from __future__ import annotations

from typing import Any

import torch

from shardlang.trace.builder import Builder
from shardlang.trace.pieces import is_whole
from shardlang.trace.rewrites import given, rewrite
from shardlang.trace.values import Value

aten = torch.ops.aten
NONE, MEAN, SUM = 0, 1, 2
"""torch's numbers for reductions."""


@rewrite("aten.cross_entropy_loss")
def cross_entropy(builder: Builder, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Rows split: the sum over the rank's rows, over the global count of valid ones. Classes split: by its parts.

    The largest logit, then the sum of exponentials and the target's logit (together), are the only things reduced.
    """
    logits, target, weight = args[0], args[1], given(op, args, kwargs, "weight")
    reduction, ignore = given(op, args, kwargs, "reduction"), given(op, args, kwargs, "ignore_index")
    smoothing = given(op, args, kwargs, "label_smoothing")
    if target.dtype.is_floating_point:
        return None
    classes = 1 if len(logits.shape) > 1 else 0
    split = not is_whole(logits.state.pieces[classes])
    if not split and (reduction != MEAN or not any(v.axes() for v in (logits, target))):
        return None
    if not split:
        each = builder.call(op, logits, target, weight, SUM, ignore, smoothing)
    else:
        each = _rows(builder, logits, target, weight, classes, ignore, smoothing)
        if reduction == NONE:
            return each
        each = builder.call(aten.sum.default, each)
    if reduction == SUM:
        return each
    return builder.call(aten.div.Tensor, each, _count(builder, target, weight, ignore, logits.dtype))


def _count(builder: Builder, target: Value, weight: Value | None, ignore: int, dtype: torch.dtype) -> Value:
    """The number of valid rows, or the sum of the weights of their classes; whole."""
    valid = builder.call(aten.ne.Scalar, target, ignore)
    counted = builder.call(aten.to.dtype, valid, dtype)
    if weight is not None:
        safe = builder.call(aten.mul.Tensor, target, valid)
        counted = builder.call(aten.mul.Tensor, _weights(builder, weight, safe), counted)
    return builder.resolved(builder.call(aten.sum.default, counted))


def _weights(builder: Builder, weight: Value, target: Value) -> Value:
    rows = builder.call(aten.embedding.default, builder.call(aten.unsqueeze.default, weight, -1), target)
    made: Value = builder.resolved(builder.call(aten.squeeze.dim, rows, -1))
    return made


def _rows(
    builder: Builder, logits: Value, target: Value, weight: Value | None, classes: int, ignore: int, smoothing: float
) -> Value:
    """The loss of each row, where classes are split; zero where the target is to be ignored."""
    call = builder.call
    count = logits.shape[classes]
    largest = builder.resolved(call(aten.amax.default, call(aten.detach.default, logits), [classes], True))
    shifted = call(aten.sub.Tensor, logits, largest)
    valid = call(aten.ne.Scalar, target, ignore)
    safe = call(aten.mul.Tensor, target, valid)
    parts = [
        call(aten.sum.dim_IntList, call(aten.exp.default, shifted), [classes]),
        call(
            aten.squeeze.dim,
            call(aten.gather.default, shifted, classes, call(aten.unsqueeze.default, safe, classes)),
            classes,
        ),
    ]
    if smoothing:
        weighed = shifted
        if weight is not None:
            shape = [1] * len(logits.shape)
            shape[classes] = count
            weighed = call(aten.mul.Tensor, shifted, call(aten.reshape.default, weight, shape))
        parts.append(call(aten.sum.dim_IntList, weighed, [classes]))
    reduced = builder.resolved(call(aten.stack.default, parts))
    total, picked, *rest = call(aten.unbind.int, reduced)
    log_total = call(aten.log.default, total)
    loss = call(aten.sub.Tensor, log_total, picked)
    if weight is not None:
        loss = call(aten.mul.Tensor, loss, _weights(builder, weight, safe))
    if smoothing:
        # Of weights w: the sum over classes of w (log_total - shifted), as torch defines it.
        scale = call(aten.mul.Tensor, log_total, count)
        if weight is not None:
            scale = call(aten.mul.Tensor, log_total, builder.resolved(call(aten.sum.default, weight)))
        smooth = call(aten.sub.Tensor, scale, rest[0])
        loss = call(
            aten.add.Tensor,
            call(aten.mul.Tensor, loss, 1 - smoothing),
            call(aten.mul.Tensor, smooth, smoothing / count),
        )
    made: Value = call(aten.mul.Tensor, loss, valid)
    return made
