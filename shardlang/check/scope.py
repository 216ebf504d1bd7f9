"""What a spec may refer to: the mesh it is on, the constants, and the rules of that mesh."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import field, frozen

from shardlang.check.program import Size
from shardlang.check.sizes import LIMIT
from shardlang.diagnostics import ShardlangError, sl03_layouts
from shardlang.mesh import Mesh
from shardlang.source import Span
from shardlang.syntax import tree


@frozen
class DimRule:
    """``vocab -> tp else whole``: the axes that a dim of this name gets where its spec names none."""

    dim: str
    axes: tuple[str, ...]
    fallback: bool
    span: Span


@frozen
class Scope:
    """``seen`` collects the names of the dims that specs on the mesh have; ``axes`` are those that they may name."""

    mesh: Mesh
    lets: Mapping[str, int] = field(factory=dict)
    rules: Mapping[str, DimRule] = field(factory=dict)
    seen: set[str] = field(factory=set)
    axes: tuple[str, ...] = field(init=False)

    @axes.default
    def _axes(self) -> tuple[str, ...]:
        return tuple(axis.name for axis in self.mesh.all_axes())


def fold(expression: tree.Expr, lets: Mapping[str, int]) -> Size:
    """The size expression with every ``let`` name, and every operation on two known sizes, folded.

    Raises SL0310 where a number is too large and SL0320 on a division by zero.
    """
    if isinstance(expression, tree.Int):
        if expression.value > LIMIT:
            raise ShardlangError(sl03_layouts.number_too_large(expression.span, LIMIT))
        return Size("int", expression.span, value=expression.value)
    if isinstance(expression, tree.Ref):
        if expression.name in lets:
            return Size("int", expression.span, value=lets[expression.name])
        return Size("name", expression.span, name=expression.name)
    left, right = fold(expression.left, lets), fold(expression.right, lets)
    if left.kind != "int" or right.kind != "int":
        return Size(expression.op, expression.span, left=left, right=right)
    if expression.op == "//":
        if right.value == 0:
            raise ShardlangError(sl03_layouts.division_by_zero(expression.span))
        value = left.value // right.value
    else:
        value = left.value + right.value if expression.op == "+" else left.value * right.value
    if value > LIMIT:
        raise ShardlangError(sl03_layouts.number_too_large(expression.span, LIMIT))
    return Size("int", expression.span, value=value)
