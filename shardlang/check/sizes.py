"""Size expressions: their value, and the one free name that a known value determines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from attrs import frozen

from shardlang.check.program import Size
from shardlang.diagnostics import ShardlangError, sl03_layouts
from shardlang.source import Span

LIMIT = 2**63 - 1
"""The largest size; torch's are signed 64-bit integers."""


@frozen
class Binding:
    """Who gave a free name its size: in words (``dim 0 of `w1```), and where."""

    where: str
    span: Span | None = None


class Sizes(dict[str, int]):
    """The sizes of the free names of one declaration, and who bound each of them. Grows while specs meet shapes."""

    def __init__(self, known: Mapping[str, int] = {}) -> None:
        super().__init__(known)
        self.binders: dict[str, Binding] = {}

    def bind(self, name: str, size: int, binding: Binding) -> None:
        self[name] = size
        self.binders[name] = binding


class NoSolution(Exception):
    """No value of the free name gives the expression this value."""


def evaluate(size: Size, sizes: Mapping[str, int]) -> int | None:
    """The value of an expression, or ``None`` while a name in it has no size.

    Raises SL0320 where it divides by zero and SL0310 where a value passes 2**63 - 1.
    """
    if size.kind == "int":
        return size.value
    if size.kind == "name":
        return sizes.get(size.name)
    assert size.left is not None
    assert size.right is not None
    left, right = evaluate(size.left, sizes), evaluate(size.right, sizes)
    if left is None or right is None:
        return None
    if size.kind == "//":
        if right == 0:
            raise ShardlangError(sl03_layouts.division_by_zero(size.span))
        return left // right
    value = left + right if size.kind == "+" else left * right
    if value > LIMIT:
        raise ShardlangError(sl03_layouts.number_too_large(size.span, LIMIT))
    return value


def free_names(size: Size) -> Iterator[str]:
    """The names in an expression, from left to right."""
    if size.kind == "name":
        yield size.name
    for part in (size.left, size.right):
        if part is not None:
            yield from free_names(part)


def solve(size: Size, value: int, sizes: Mapping[str, int]) -> tuple[str, int] | None:
    """The free name and the size that give an expression without a value this one; ``None`` where that is still open.

    Raises ``NoSolution`` where there is no such size.
    """
    if size.kind == "name":
        return size.name, value
    if size.kind in ("int", "//"):
        return None
    assert size.left is not None
    assert size.right is not None
    left, right = evaluate(size.left, sizes), evaluate(size.right, sizes)
    if (left is None) == (right is None):
        return None
    known, unknown = (left, size.right) if right is None else (right, size.left)
    assert known is not None
    if size.kind == "+":
        if value < known:
            raise NoSolution
        return solve(unknown, value - known, sizes)
    if known == 0:
        if value:
            raise NoSolution
        return None
    if value % known:
        raise NoSolution
    return solve(unknown, value // known, sizes)
