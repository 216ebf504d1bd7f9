"""A call of an operator as its rule sees it: shapes and literals, no values and no layouts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from attrs import frozen
from torch.utils import _pytree as pytree

from shardlang.trace.rule import Rule, Shape


@frozen
class TensorArg:
    """A tensor in an argument list: its global shape and dtype."""

    shape: Shape
    dtype: torch.dtype


@frozen
class Call:
    """A call of ``op``; in ``args`` and ``kwargs`` a ``TensorArg`` stands for each tensor."""

    op: torch._ops.OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: tuple[TensorArg, ...]

    @property
    def tensors(self) -> tuple[TensorArg, ...]:
        """The tensor operands, in the order in which a rule counts them."""
        return tuple(a for a in pytree.tree_leaves((self.args, self.kwargs)) if isinstance(a, TensorArg))

    def get(self, name: str) -> Any:
        """The argument called ``name`` in the operator's schema, or its default."""
        for i, argument in enumerate(self.op._schema.arguments):
            if argument.name == name:
                if i < len(self.args):
                    return self.args[i]
                return self.kwargs.get(name, argument.default_value if argument.has_default_value() else None)
        return self.kwargs.get(name)

    def position(self, name: str) -> int | None:
        """Where the argument stands in ``args``; ``None`` where it was left out or given by keyword."""
        for i, argument in enumerate(self.op._schema.arguments):
            if argument.name == name:
                return i if i < len(self.args) else None
        return None


RuleMaker = Callable[[Call], "Rule | None"]
"""Makes the rule of a call; ``None``: there is no rule for this use, so that operands must be whole."""


def operator_name(op: torch._ops.OpOverload) -> str:
    """``aten.add.Tensor``; the overload ``default`` is left out."""
    name = f"{op.namespace}.{op._schema.name.split('::')[-1]}"
    overload = op._overloadname
    return name if overload == "default" else f"{name}.{overload}"


def axis_of(dim: int, rank: int) -> int:
    """A dim counted from either end, counted from the front."""
    return dim + rank if dim < 0 else dim
