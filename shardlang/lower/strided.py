"""Blocks that no chunk of a dim is, in the split factors of torch's ``_StridedShard``.

A split factor ``f`` on a mesh dim says: what earlier mesh dims left is first cut in ``f`` pieces, and each of these
over the mesh dim. That says every even block: those of fused weights ``(3 kv/tp k)``, and cuts in any order. What torch
cannot say has a number below zero in the place of a factor, which stands for a dim in this process and which torch
refuses wherever it would have to know the block.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from shardlang.layout import CanonicalDim, Dim, Factor, canonical_dim
from shardlang.mesh import Mesh

_numbered: dict[Dim, int] = {}
"""Dims that torch cannot say, each with its place in this."""


def factors_of(mesh: Mesh, dim: Dim) -> dict[str, int]:
    """For each axis of more than one rank that cuts the dim, the split factor that says how; 1 is an ordinary cut."""
    canonical = canonical_dim(mesh, dim)
    cutting = {axis for axis in dim.axes() if mesh.axis(axis).size > 1}
    if not _is_even(mesh, canonical):
        number = _number(dim)
        return dict.fromkeys(cutting, number)
    order = [a.name for a in mesh.axes]
    found: dict[str, int] = {}
    for axis in sorted(cutting, key=order.index):
        factor = 1
        for digit in canonical.digits:
            if digit.axis == axis:
                break
            if digit.axis is None or digit.axis not in found:
                factor *= digit.size
        found[axis] = factor
    return found


def _is_even(mesh: Mesh, dim: CanonicalDim) -> bool:
    """Is every axis one digit of the index?"""
    return not dim.flat and all(d.axis is None or d.size == mesh.axis(d.axis).size for d in dim.digits)


def _number(dim: Dim) -> int:
    return -1 - _numbered.setdefault(dim, len(_numbered))


def dim_of(mesh: Mesh, size: int, cuts: Sequence[tuple[str, int]]) -> Dim | None:
    """The dim of ``size`` elements that split factors, in mesh order, say; ``None`` where they say no even block."""
    numbers = {factor for _, factor in cuts if factor < 0}
    if numbers:
        number = -1 - numbers.pop()
        return next((d for d, n in _numbered.items() if n == number and d.size == size), None)
    factors = [Factor(size)]
    for axis, factor in cuts:
        if mesh.axis(axis).size > 1:
            at = _place(mesh, factors, factor)
            if at is None or _left(mesh, factors[at]) % mesh.axis(axis).size:
                return None
            factors[at] = Factor(factors[at].size, (*factors[at].cuts, axis))
    return Dim(tuple(factors))


def _place(mesh: Mesh, factors: list[Factor], before: int) -> int | None:
    """Where the local index goes on after its first ``before`` values; cuts a factor in two where that falls in it."""
    for i, one in enumerate(factors):
        left = _left(mesh, one)
        if before == 1 and left > 1:
            return i
        if before % left == 0:
            before //= left
        elif left % before == 0:
            cut = one.size // left
            factors[i : i + 1] = [Factor(cut * before, one.cuts), Factor(left // before)]
            return i + 1
        else:
            return None
    return None


def _left(mesh: Mesh, factor: Factor) -> int:
    """How much of a factor is local."""
    return factor.size // math.prod(mesh.axis(a).size for a in factor.cuts)


__all__ = ["dim_of", "factors_of"]
