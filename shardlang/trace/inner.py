"""Calls that a trace does not look into: a module with hooks of its own, made when the program runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from shardlang.trace.builder import Builder
from shardlang.trace.capture import Inner
from shardlang.trace.pieces import normal
from shardlang.trace.program import InnerCall, inner
from shardlang.trace.values import Value


def put_inner(
    builder: Builder, number: int, made: Inner, values: Sequence[Value], fakes: Sequence[torch.Tensor]
) -> Any:
    """Puts inner call ``number`` of a trace down: its tensors are brought to the layouts that it takes.

    Gradients pass it as the call makes them: those that it is given are whole where a result is whole, and so are
    those that it gives.
    """
    arguments = [
        builder.resolved(v) if layout is None else builder.move(v, layout, "boundary")
        for v, layout in zip(values, made.arguments, strict=True)
    ]
    layouts = [normal(layout) for _, layout in made.results]
    taken, dtypes = tuple(v.layout for v in arguments), tuple(v.dtype for v in arguments)
    builder.inner.append(InnerCall(number, made.name, taken, dtypes, tuple(layouts), tuple(t.dtype for t in fakes)))
    node = builder.graph.call_function(inner, (len(builder.inner) - 1, *(v.node for v in arguments)))
    return builder.wrap(node, tuple(fakes), layouts, constant=False, flows=builder.gradients)
