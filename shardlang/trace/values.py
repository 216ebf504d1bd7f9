"""Values of a typed program: what a node of the local graph holds, seen globally."""

from __future__ import annotations

from typing import Any

import torch
from attrs import define, field
from torch import fx

from shardlang.dtypes import DTYPES
from shardlang.layout import Layout
from shardlang.source import Span
from shardlang.trace.pieces import State, state_of

_NAMES = {d.torch_name: d.name for d in DTYPES.values()}


def dtype_name(dtype: torch.dtype) -> str:
    """The language's name of a torch dtype (``f32``); raises ``KeyError`` for one it has no name for."""
    return _NAMES[str(dtype).removeprefix("torch.")]


@define(eq=False)
class Value:
    """A tensor of the program: ``fake`` has its global shape and dtype, ``layout`` says where it lives.

    ``constant``: it depends on no argument. ``differentiable``: a gradient may flow into it. ``origin`` is the text
    that gave it its layout and ``name`` what an error calls it. ``moved`` holds the same value in other layouts.
    """

    node: fx.Node
    layout: Layout
    fake: torch.Tensor
    constant: bool
    differentiable: bool
    name: str
    origin: Span | None = None
    moved: dict[tuple[State, bool], Value] = field(factory=dict)

    @property
    def state(self) -> State:
        return state_of(self.layout)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.fake.shape)

    @property
    def dtype(self) -> torch.dtype:
        return self.fake.dtype

    def axes(self) -> frozenset[str]:
        """The leaf axes over which ranks hold different things."""
        return self.state.axes(self.layout.mesh)


def values_of(node: fx.Node) -> tuple[Value, ...]:
    """The values that a node of the local graph holds: one, several, or none."""
    held: Any = node.meta.get("value")
    if held is None:
        return ()
    return held if isinstance(held, tuple) else (held,)
