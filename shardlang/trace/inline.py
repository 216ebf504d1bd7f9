"""Operators without a rule that torch makes of others: taken apart, one level at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from shardlang.lower.torch_tracing import is_composite, trace_graph

if TYPE_CHECKING:
    from shardlang.trace.builder import Builder


def decomposition(builder: Builder, op: Any, args: Any, kwargs: Any) -> Any:
    """The values of a composite operator by its parts; ``None`` where it is none."""
    from shardlang.trace.propagate import walk
    from shardlang.trace.values import Value

    if not is_composite(op) or op in builder.inlining:
        return None
    given, structure = pytree.tree_flatten((args, kwargs))
    values = [a for a in given if isinstance(a, Value)]

    def parts(*tensors: torch.Tensor) -> Any:
        feed = iter(tensors)
        now = [next(feed) if isinstance(a, Value) else a for a in given]
        new_args, new_kwargs = pytree.tree_unflatten(now, structure)
        return op.decompose(*new_args, **new_kwargs)

    with builder.fake:
        module = trace_graph(parts, [v.fake for v in values], lambda node: None)
    builder.inlining.append(op)
    try:
        return walk(builder, module, values, keep_site=True)
    finally:
        builder.inlining.pop()
