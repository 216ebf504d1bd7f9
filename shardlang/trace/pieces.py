"""Dims as strings of digits: what a view cuts and joins, and what operands of an operator have to agree on.

A *piece* is the canonical form of one factor of an operator's rule. Pieces of several factors join into a dim, and a
dim comes apart into factors of given sizes, as long as no boundary falls inside a digit that an axis fixes or inside
an uneven cut; both keep the order of the local elements, so that the same view of the local block is right.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from attrs import field, frozen

from shardlang.layout import CanonicalDim, Cut, Digit, Dim, Factor, Layout, Pending, ReduceOp, chunk
from shardlang.mesh import Mesh

Piece = CanonicalDim


@frozen(cache_hash=True)
class State:
    """A layout taken apart: a piece for each dim, and the reductions owed, by leaf axis."""

    pieces: tuple[Piece, ...]
    pending: Mapping[str, ReduceOp] = field(factory=dict, eq=lambda m: tuple(sorted(m.items())))

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(p.size for p in self.pieces)

    def axes(self, mesh: Mesh) -> frozenset[str]:
        """The leaf axes over which ranks hold different things: splitting or pending."""
        return frozenset(a for p in self.pieces for a in axes_of(p, mesh)) | frozenset(self.pending)


def whole_piece(size: int) -> Piece:
    return CanonicalDim(size, () if size == 1 else (Digit(size),))


def is_whole(piece: Piece) -> bool:
    return not piece.flat and all(d.axis is None for d in piece.digits)


def axes_of(piece: Piece, mesh: Mesh) -> Iterator[str]:
    """The leaf axes that cut a piece, in order. An uneven cut stays one over all the sub-axes of its axis."""
    for digit in piece.digits:
        if digit.axis is not None:
            yield digit.axis
    for axis, _ in piece.flat:
        yield from mesh.expand(axis)


def has_empty_block(piece: Piece) -> bool:
    """Does a rank hold nothing of the dim?"""
    sizes = {math.prod(d.size for d in piece.digits if d.axis is None)}
    for _, ways in piece.flat:
        sizes = {b - a for n in sizes for a, b in (chunk(n, ways, i) for i in range(ways))}
    return 0 in sizes


def state_of(layout: Layout) -> State:
    return State(layout.canonical(), {p.axis: p.op for p in layout.owed()})


def layout_of(mesh: Mesh, state: State) -> Layout:
    """The layout of a state; raises ``ValueError`` for digits that are a part of an axis (no spec says them)."""
    dims = tuple(dim_of(p) for p in state.pieces)
    pending = tuple(Pending(a.name, state.pending[a.name]) for a in mesh.leaves() if a.name in state.pending)
    return Layout(mesh, dims, pending)


def normal(layout: Layout) -> Layout:
    """The same layout with every dim written from its canonical form, without axes of size 1."""
    return layout_of(layout.mesh, state_of(layout))


def dim_of(piece: Piece) -> Dim:
    """A dim with this canonical form: a factor for each run of axis digits and the local digit that follows."""
    if piece.size == 0:
        return Dim((Factor(0),))
    factors: list[Factor] = []
    size = 1
    cuts: list[str] = []
    whole = _axis_sizes(piece)
    for digit in piece.digits:
        if digit.axis is None:
            factors.append(Factor(size * digit.size, tuple(cuts)))
            size, cuts = 1, []
            continue
        if digit.divisor != 1 or whole[digit.axis] != 1:
            raise ValueError(f"a part of axis {digit.axis} cuts a factor")
        size *= digit.size
        cuts.append(digit.axis)
    if cuts or not factors:
        factors.append(Factor(size, tuple(cuts)))
    return Dim(tuple(factors), tuple(Cut(axis, uneven=True) for axis, _ in piece.flat))


def _axis_sizes(piece: Piece) -> dict[str, int]:
    """How many digits each axis fixes."""
    count: dict[str, int] = {}
    for digit in piece.digits:
        if digit.axis is not None:
            count[digit.axis] = count.get(digit.axis, 0) + 1
    return count


def join(pieces: Sequence[Piece]) -> Piece | None:
    """The dim made of these factors, major to minor; ``None`` where an uneven cut would lie inside."""
    if len(pieces) == 1:
        return pieces[0]
    size = math.prod(p.size for p in pieces)
    uneven = [p for p in pieces if p.flat]
    if uneven:
        return uneven[0] if uneven[0].size == size else None
    return CanonicalDim(size, _merged([d for p in pieces for d in p.digits]))


def _merged(digits: Sequence[Digit]) -> tuple[Digit, ...]:
    merged: list[Digit] = []
    for digit in digits:
        if digit.size == 1 and digit.axis is None:
            continue
        if merged and digit.axis is None and merged[-1].axis is None:
            merged[-1] = Digit(merged[-1].size * digit.size)
        else:
            merged.append(digit)
    return tuple(merged)


def split(piece: Piece, sizes: Sequence[int]) -> tuple[Piece, ...] | None:
    """The factors of these sizes that a dim is made of; ``None`` where a cut lies across a boundary."""
    if math.prod(sizes) != piece.size:
        return None
    if len(sizes) == 1:
        return (piece,)
    if piece.size == 0:
        return tuple(whole_piece(n) for n in sizes) if is_whole(piece) else None
    if piece.flat:
        if sum(n != 1 for n in sizes) != 1:
            return None
        return tuple(piece if n != 1 else whole_piece(1) for n in sizes)
    rest = list(piece.digits)
    factors: list[Piece] = []
    for size in reversed(sizes):
        taken: list[Digit] = []
        left = size
        while left != 1:
            digit = rest.pop()
            if left % digit.size == 0:
                taken.append(digit)
                left //= digit.size
            elif digit.axis is None and digit.size % left == 0:
                rest.append(Digit(digit.size // left))
                taken.append(Digit(left))
                left = 1
            else:
                return None
        factors.append(CanonicalDim(size, tuple(reversed(taken))))
    return tuple(reversed(factors))


def cut_more(piece: Piece, axis: str, ways: int) -> Piece | None:
    """The piece with its local elements split over one more axis; ``None`` where that does not divide."""
    if piece.flat or not piece.digits or piece.digits[-1].axis is not None or piece.digits[-1].size % ways:
        return None
    local = piece.digits[-1].size // ways
    if ways == 1:
        return piece
    return CanonicalDim(piece.size, _merged([*piece.digits[:-1], Digit(ways, axis), Digit(local)]))
