"""What a rule says of an operator: which dims of its tensors are the same factor, and what a split of each means.

``rule aten.mm: [i k+] [k+ j] -> [i j]``: a factor that appears in operands and result may be split, alike in all of
them; ``+`` is summed over, so that its axes are owed by the result; ``!`` must be whole. Beside that a rule knows in
which operands the operator is linear, since only there a pending value passes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from attrs import field, frozen

from shardlang.layout import ReduceOp

Term = tuple[str, ...]
"""The factors of one dim, major to minor; no factor: a dim of size 1 that pairs with nothing."""
Shape = tuple[int, ...]


@frozen
class Literals:
    """How literal arguments become local: from the arguments and the local shapes of operands and results."""

    rewrite: Callable[[tuple[Any, ...], dict[str, Any], Sequence[Shape], Sequence[Shape]], tuple[Any, ...]]


@frozen
class Rule:
    """A rule for one call, with every size known.

    ``linear`` lists groups of operands in which the operator is linear together, the others held fixed: ``({0}, {1})``
    for a product, ``({0, 1},)`` for a sum. ``additive`` operands are added to the result as they are (a bias).
    ``monotone``: the operator is increasing in its only operand, so that a pending max or min passes.
    ``solid``: no rank's block may be empty.
    ``scalars``: positions of literal arguments that are added to the result, and are owed by one rank only.
    """

    inputs: tuple[tuple[Term, ...], ...]
    outputs: tuple[tuple[Term, ...], ...]
    sizes: Mapping[str, int] = field(eq=lambda m: tuple(sorted(m.items())))
    contract: frozenset[str] = frozenset()
    op: ReduceOp = "sum"
    whole: frozenset[str] = frozenset()
    linear: tuple[frozenset[int], ...] = ()
    additive: frozenset[int] = frozenset()
    monotone: bool = False
    scalars: tuple[int, ...] = ()
    literals: Literals | None = None
    solid: bool = False
    why_whole: str = ""

    def names(self) -> Iterable[str]:
        """Every factor, in order of appearance."""
        return dict.fromkeys(n for dims in (*self.inputs, *self.outputs) for term in dims for n in term)

    def shape(self, terms: Sequence[Term]) -> Shape:
        return tuple(math.prod(self.sizes[n] for n in term) for term in terms)


def group(*operands: int) -> frozenset[int]:
    """A group of operands in which an operator is linear together."""
    return frozenset(operands)


def result_shape_at(position: int) -> Literals:
    """The literal argument at a position is the result's shape (``view``, ``expand``)."""

    def rewrite(
        args: tuple[Any, ...], kwargs: dict[str, Any], inputs: Sequence[Shape], outputs: Sequence[Shape]
    ) -> tuple[Any, ...]:
        return (*args[:position], list(outputs[0]), *args[position + 1 :])

    return Literals(rewrite)


def dims(letters: str, shape: Shape, sizes: dict[str, int]) -> tuple[Term, ...]:
    """One factor a dim, named by a letter; notes the sizes."""
    for letter, size in zip(letters, shape, strict=True):
        sizes[letter] = size
    return tuple((letter,) for letter in letters)


__all__ = ["Literals", "Rule", "Shape", "Term", "dims", "group", "result_shape_at"]
