"""Layouts: which block of a tensor each rank of a mesh holds; pure algebra.

A dim is a product of *factors*, each cut evenly over axes (major to minor), and then, as one flattened local dim, by
*flat cuts*, which may be uneven (``torch.chunk``'s blocks, nested). Every dim comes down to a canonical form: *digits*
of its index in a mixed radix, major to minor, each digit fixed by (a part of) an axis' coordinate or running locally,
followed by the flat cuts that no digit can say. Two layouts are equivalent when their canonical forms are equal, which
leaves axes of size 1 out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Literal

from attrs import frozen

from shardlang.mesh import Mesh

ReduceOp = Literal["sum", "avg", "max", "min"]
Runs = tuple[tuple[int, int], ...]
"""Half-open intervals ``[start, stop)`` of a dim's indices, ascending, none empty."""


@frozen(cache_hash=True)
class Cut:
    """A cut of the flattened local dim over an axis; ``uneven`` cuts in ``torch.chunk``'s way."""

    axis: str
    uneven: bool = False


@frozen(cache_hash=True)
class Factor:
    """A factor of a dim: its global size and the axes that cut it evenly, major to minor."""

    size: int
    cuts: tuple[str, ...] = ()


@frozen(cache_hash=True)
class Dim:
    """A tensor dim: the product of its factors, major to minor, then flat cuts."""

    factors: tuple[Factor, ...]
    flat: tuple[Cut, ...] = ()

    @property
    def size(self) -> int:
        return math.prod(f.size for f in self.factors)

    def axes(self) -> Iterator[str]:
        """The axes that cut this dim, in order, as written."""
        for factor in self.factors:
            yield from factor.cuts
        for cut in self.flat:
            yield cut.axis


@frozen(cache_hash=True)
class Digit:
    """A digit of a dim's index: ``size`` values, fixed by ``coordinate(axis) // divisor % size``, or local."""

    size: int
    axis: str | None = None
    divisor: int = 1


@frozen(cache_hash=True)
class CanonicalDim:
    """Digits major to minor (adjacent local ones merged), then the flat cuts that are no digits."""

    size: int
    digits: tuple[Digit, ...]
    flat: tuple[tuple[str, int], ...] = ()
    """(axis, size of the axis) of each remaining flat cut, cut in ``torch.chunk``'s way."""


@frozen(cache_hash=True)
class Pending:
    """A reduction that is still owed over an axis."""

    axis: str
    op: ReduceOp


@frozen(cache_hash=True)
class Layout:
    """Where a tensor of global shape ``shape`` lives on ``mesh``: its dims, and what is still pending."""

    mesh: Mesh
    dims: tuple[Dim, ...]
    pending: tuple[Pending, ...] = ()

    def __attrs_post_init__(self) -> None:
        """Holds the invariants that the checker reports kindly; a breach here is a fault of the caller.

        Raises ``ValueError`` where an axis is used twice (itself or through a sub-axis), is unknown, or does not
        divide what it cuts evenly.
        """
        used: set[str] = set()
        for name in [*self.cut_axes(), *(p.axis for p in self.pending)]:
            leaves = self.mesh.expand(name)
            for leaf in leaves:
                if leaf in used:
                    raise ValueError(f"axis {leaf} is used twice in {self}")
                used.add(leaf)
        for dim in self.dims:
            canonical_dim(self.mesh, dim)

    @staticmethod
    def whole(mesh: Mesh, shape: tuple[int, ...]) -> Layout:
        return Layout(mesh, tuple(Dim((Factor(n),)) for n in shape))

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(d.size for d in self.dims)

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    def cut_axes(self) -> Iterator[str]:
        """The axes that split any dim, as written."""
        for dim in self.dims:
            yield from dim.axes()

    def canonical(self) -> tuple[CanonicalDim, ...]:
        return tuple(canonical_dim(self.mesh, d) for d in self.dims)

    def owed(self) -> tuple[Pending, ...]:
        """The pending reductions on leaf axes of more than one rank, in mesh order."""
        owed = {leaf: p.op for p in self.pending for leaf in self.mesh.expand(p.axis)}
        return tuple(Pending(a.name, owed[a.name]) for a in self.mesh.leaves() if a.name in owed and a.size > 1)

    def whole_axes(self) -> tuple[str, ...]:
        """Leaf axes of more than one rank on which the value is whole: neither splitting nor pending."""
        busy = {leaf for name in self.cut_axes() for leaf in self.mesh.expand(name)}
        busy.update(p.axis for p in self.owed())
        return tuple(a.name for a in self.mesh.leaves() if a.size > 1 and a.name not in busy)

    def equivalent(self, other: Layout) -> bool:
        """Do both say the same of every rank (up to axes of size 1)? Both must be on the same ranks and axes."""
        return self.mesh == other.mesh and self.canonical() == other.canonical() and self.owed() == other.owed()

    def dim_runs(self, dim: int, coordinates: Mapping[str, int]) -> Runs:
        """The indices of one dim that the rank at these coordinates holds."""
        canonical = canonical_dim(self.mesh, self.dims[dim])
        names = _axes_of(canonical)
        return _runs(canonical, tuple(coordinates[n] for n in names))

    def runs(self, rank: int) -> tuple[Runs, ...]:
        """The block of a global rank: its runs in each dim; the block is their product."""
        coordinates = self.mesh.coordinates(rank)
        return tuple(self.dim_runs(d, coordinates) for d in range(len(self.dims)))

    def local_shape(self, rank: int) -> tuple[int, ...]:
        return tuple(sum(b - a for a, b in runs) for runs in self.runs(rank))

    def block_numel(self) -> int:
        """Elements of the largest block: the first rank's, as ``torch.chunk`` gives the first ranks the most."""
        return math.prod(self.local_shape(self.mesh.first_rank))

    def holders(self, index: tuple[int, ...]) -> tuple[int, ...]:
        """The global ranks whose block has the element ``index`` (for a pending value: that hold a part of it)."""
        return tuple(
            rank
            for rank in self.mesh.ranks
            if all(any(a <= i < b for a, b in runs) for i, runs in zip(index, self.runs(rank), strict=True))
        )

    def __str__(self) -> str:
        text = "[" + " ".join(_dim_text(d) for d in self.dims) + "]"
        if self.pending:
            text += "{" + ", ".join(f"{'+' if p.op == 'sum' else p.op + ' '}{p.axis}" for p in self.pending) + "}"
        return text


def _dim_text(dim: Dim) -> str:
    parts = ["/".join([str(f.size), *f.cuts]) for f in dim.factors]
    text = parts[0] if len(parts) == 1 else "(" + " ".join(parts) + ")"
    return text + "".join(f"/{'~' if c.uneven else ''}{c.axis}" for c in dim.flat)


@lru_cache(maxsize=1 << 16)
def canonical_dim(mesh: Mesh, dim: Dim) -> CanonicalDim:
    """The canonical form of a dim. Raises ``ValueError`` where an even cut does not divide."""
    digits: list[Digit] = []
    for factor in dim.factors:
        left = factor.size
        for name in factor.cuts:
            for leaf in mesh.expand(name):
                k = mesh.axis(leaf).size
                if left % k:
                    raise ValueError(f"axis {leaf} of size {k} does not divide {left}")
                left //= k
                if k > 1:
                    digits.append(Digit(k, leaf))
        if left != 1:
            digits.append(Digit(left))
    digits = _merge(digits)
    flat: list[tuple[str, int]] = []
    for cut in dim.flat:
        # An uneven cut that leaves all blocks even is the even one, by sub-axes too.
        local = math.prod(d.size for d in digits if d.axis is None)
        atomic = cut.uneven and not _divides(local, flat, mesh.axis(cut.axis).size)
        for name in (cut.axis,) if atomic else mesh.expand(cut.axis):
            k = mesh.axis(name).size
            if k == 1:
                continue
            local = math.prod(d.size for d in digits if d.axis is None)
            even = local % k == 0 if not flat else False
            if not cut.uneven and not _divides(local, flat, k):
                raise ValueError(f"axis {name} of size {k} does not divide {local}")
            placed = _place(digits, name, k) if even else None
            if placed is None:
                flat.append((name, k))
            else:
                digits = placed
    return CanonicalDim(dim.size, tuple(digits), tuple(flat))


def _merge(digits: list[Digit]) -> list[Digit]:
    merged: list[Digit] = []
    for digit in digits:
        if merged and digit.axis is None and merged[-1].axis is None:
            merged[-1] = Digit(merged[-1].size * digit.size)
        else:
            merged.append(digit)
    return merged


def _divides(local: int, flat: list[tuple[str, int]], k: int) -> bool:
    """Does ``k`` divide every block that the flat cuts so far leave of ``local`` elements?"""
    sizes = {local}
    for _, ways in flat:
        sizes = {b - a for n in sizes for a, b in (chunk(n, ways, i) for i in range(ways))}
    return all(n % k == 0 for n in sizes)


def _place(digits: list[Digit], axis: str, k: int) -> list[Digit] | None:
    """Puts an even flat cut before the local digits it fixes; ``None`` where no digit boundary falls on it."""
    result: list[Digit] = []
    left = k
    for digit in digits:
        if digit.axis is not None or left == 1:
            result.append(digit)
        elif digit.size % left == 0:
            result += [Digit(left, axis), Digit(digit.size // left)] if digit.size != left else [Digit(left, axis)]
            left = 1
        elif left % digit.size == 0:
            left //= digit.size
            result.append(Digit(digit.size, axis, left))
        else:
            return None
    return result if left == 1 else None


def chunk(n: int, ways: int, index: int) -> tuple[int, int]:
    """The interval of ``range(n)`` that ``torch.chunk`` gives part ``index`` of ``ways`` (empty at the end)."""
    step = -(-n // ways)
    return min(index * step, n), min((index + 1) * step, n)


def _axes_of(dim: CanonicalDim) -> tuple[str, ...]:
    return tuple(dict.fromkeys([d.axis for d in dim.digits if d.axis is not None] + [a for a, _ in dim.flat]))


@lru_cache(maxsize=1 << 16)
def _runs(dim: CanonicalDim, coordinates: tuple[int, ...]) -> Runs:
    at = dict(zip(_axes_of(dim), coordinates, strict=True))
    if dim.size == 0:
        return ()
    starts, length = [0], 1
    tail = len(dim.digits)
    if dim.digits and dim.digits[-1].axis is None:
        tail -= 1
        length = dim.digits[-1].size
    stride = length
    for digit in reversed(dim.digits[:tail]):
        if digit.axis is None:
            starts = [s + v * stride for v in range(digit.size) for s in starts]
        else:
            offset = at[digit.axis] // digit.divisor % digit.size * stride
            starts = [s + offset for s in starts]
        stride *= digit.size
    runs = join_runs((s, s + length) for s in sorted(starts))
    for axis, ways in dim.flat:
        total = sum(b - a for a, b in runs)
        runs = take_runs(runs, *chunk(total, ways, at[axis]))
    return runs


def join_runs(runs: Iterator[tuple[int, int]]) -> Runs:
    """Ascending intervals with those that touch joined and empty ones left out."""
    joined: list[tuple[int, int]] = []
    for a, b in runs:
        if a == b:
            continue
        if joined and joined[-1][1] == a:
            joined[-1] = (joined[-1][0], b)
        else:
            joined.append((a, b))
    return tuple(joined)


def take_runs(runs: Runs, start: int, stop: int) -> Runs:
    """The elements at positions ``[start, stop)`` of the concatenated runs."""
    taken: list[tuple[int, int]] = []
    at = 0
    for a, b in runs:
        lo, hi = max(start, at), min(stop, at + b - a)
        if lo < hi:
            taken.append((a + lo - at, a + hi - at))
        at += b - a
    return tuple(taken)


def intersect_runs(left: Runs, right: Runs) -> Runs:
    """The indices in both."""
    common: list[tuple[int, int]] = []
    i = j = 0
    while i < len(left) and j < len(right):
        lo, hi = max(left[i][0], right[j][0]), min(left[i][1], right[j][1])
        if lo < hi:
            common.append((lo, hi))
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return tuple(common)
