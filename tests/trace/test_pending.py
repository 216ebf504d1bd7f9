"""Every operator on operands of which a reduction is owed: what passes does so rightly, what may not is resolved."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from shardlang.layout import Layout, Pending, ReduceOp
from shardlang.mesh import Axis, Mesh
from shardlang.runtime.law import differences
from tests.trace.operators import EXAMPLES, Example
from tests.trace.test_operators import compiled

MESH = Mesh("m", (Axis("a", 2),))
OPS: tuple[ReduceOp, ...] = ("sum", "avg", "max", "min")


def owing(example: Example, op: ReduceOp) -> Iterator[list[Layout]]:
    """Each floating operand owed by itself, and all together; the others whole."""
    floating = [i for i, t in enumerate(example.tensors) if t.is_floating_point()]
    for which in [{i} for i in floating] + ([set(floating)] if len(floating) > 1 else []):
        yield [
            Layout(MESH, Layout.whole(MESH, tuple(t.shape)).dims, (Pending("a", op),) if i in which else ())
            for i, t in enumerate(example.tensors)
        ]


def holds(example: Example, op: ReduceOp) -> None:
    for layouts in owing(example, op):
        made = compiled(example, MESH, layouts)
        assert made is None or differences(made, example.function, example.tensors, MESH) == []


def test_operators_of_one_tensor_of_which_a_max_is_owed() -> None:
    for example in EXAMPLES:
        if len(example.tensors) == 1:
            holds(example, "max")


@pytest.mark.nightly
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_operators_with_each_operand_owed(example: Example, op: ReduceOp) -> None:
    holds(example, op)
