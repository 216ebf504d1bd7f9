"""A transition in the search's own terms: small integers instead of layouts.

The axes of the mesh fall apart into *atoms* of prime size (a digit of the rank's number each), and the dims of the
tensor into *slots*: a slot is a digit of a dim's index that source or target fixes by an atom, or what is left between
and after those. A state says which atoms, major to minor, cut each slot, and which are pending; every other atom is
one on which the value is whole. Names, links by name and the mesh's size are left out, so that questions that differ
only in those are one question.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from itertools import pairwise

from attrs import frozen

from shardlang.layout import CanonicalDim, Layout
from shardlang.mesh import PICO, Link, Mesh
from shardlang.plan.exchange import slowness

Slots = tuple[tuple[int, ...], ...]
State = tuple[Slots, int]
"""The atoms that cut each slot, and the mask of atoms that are pending."""

SHIFT = 40
"""Costs are in units of 2^-40 picoseconds, so that sums of rounded logarithms and rates stay exact."""


@frozen(cache_hash=True)
class Atom:
    """A digit of a rank's number: ``rank // stride % size``, ``size`` prime."""

    stride: int
    size: int
    link: Link


@frozen(cache_hash=True)
class Question:
    """What the search reads, hashable: equal questions have equal answers, whatever the names."""

    sizes: tuple[int, ...]
    classes: tuple[int, ...]
    """The link class of each atom; 0 is the slowest."""
    links: tuple[tuple[int, int], ...]
    """(latency, units of time a byte) of each class."""
    extents: tuple[int, ...]
    """The size of each slot."""
    frozen: int
    """Bytes of an element times the block sizes of dims that stay as they are."""
    source: State
    target: State
    kept: int
    """The atoms that are pending in both, with operators that go together."""
    limit: int | None
    """The largest array under the cap, in bytes."""
    by_bytes: bool
    axes: int = 4
    """Of more than one rank, of the mesh: by it the search is given its time."""


@frozen
class Problem:
    """A question, and what leads back from its states to layouts."""

    question: Question
    atoms: tuple[Atom, ...]
    slots_of_dim: tuple[tuple[int, ...], ...]
    """For each dim its slots, major to minor; empty for a dim that stays as it is."""


def link_cost(link: Link) -> tuple[int, int]:
    return link.latency, round((PICO << SHIFT) / link.bandwidth)


def primes(n: int) -> list[int]:
    """Prime factors, ascending."""
    found, p = [], 2
    while p * p <= n:
        while n % p == 0:
            found.append(p)
            n //= p
        p += 1
    return found + [n] * (n > 1)


def chain(boundaries: Iterable[int]) -> list[int] | None:
    """The boundaries, descending, if each divides the one before it; else ``None``."""
    ordered = sorted(set(boundaries), reverse=True)
    return ordered if all(a % b == 0 for a, b in pairwise(ordered)) else None


def atoms_of(source: Layout, target: Layout) -> tuple[Atom, ...] | None:
    """The digits of a rank's number that say both layouts, major to minor; ``None`` where there are no such digits."""
    if source.mesh.ranks != target.mesh.ranks:
        return None
    if source.mesh.axes == target.mesh.axes and source.mesh.splits == target.mesh.splits:
        meshes: tuple[Mesh, ...] = (source.mesh,)
    else:
        meshes = (source.mesh, target.mesh)
    divisors = frozenset(
        (layout.mesh.stride(d.axis) * d.divisor)
        for layout in (source, target)
        for dim in layout.canonical()
        for d in dim.digits
        if d.axis is not None and d.divisor != 1
    )
    return _atoms(meshes, divisors)


@lru_cache(maxsize=256)
def _atoms(meshes: tuple[Mesh, ...], divisors: frozenset[int]) -> tuple[Atom, ...] | None:
    boundaries = {meshes[0].size, 1, *divisors}
    for mesh in meshes:
        boundaries.update(mesh.stride(a.name) for a in mesh.leaves())
    ordered = chain(boundaries)
    if ordered is None:
        return None
    atoms: list[Atom] = []
    for high, low in pairwise(ordered):
        links = {_link_at(mesh, low) for mesh in meshes}
        stride = high
        for p in primes(high // low):
            stride //= p
            atoms.append(Atom(stride, p, min(links, key=slowness)))
    return tuple(atoms)


def _link_at(mesh: Mesh, stride: int) -> Link:
    """The link of the declared axis in which a digit of this stride lies."""
    for axis in mesh.axes:
        if axis.size > 1 and mesh.stride(axis.name) <= stride:
            return axis.link
    raise AssertionError("a digit lies outside the mesh")


def problem(source: Layout, target: Layout, itemsize: int, limit: int | None, by_bytes: bool) -> Problem | None:
    """The transition in digits; ``None`` where uneven cuts or sizes without common digits stand in the way."""
    atoms = atoms_of(source, target)
    if atoms is None:
        return None
    frozen_size = itemsize
    same_mesh = source.mesh == target.mesh
    locked = {
        n
        for x, a, b in zip(source.dims, source.canonical(), target.canonical(), strict=True)
        if a.flat or b.flat
        for n in x.axes()
    }
    for name in locked:
        low = source.mesh.stride(name)
        atoms = tuple(a for a in atoms if not low <= a.stride < low * source.mesh.axis(name).size)
    left = _strides(source.mesh)
    right = left if same_mesh else _strides(target.mesh)
    extents: list[int] = []
    before: list[tuple[int, ...]] = []
    after: list[tuple[int, ...]] = []
    slots_of_dim: list[tuple[int, ...]] = []
    first = source.mesh.first_rank
    for i, (a, b) in enumerate(zip(source.canonical(), target.canonical(), strict=True)):
        if a.flat or b.flat:
            if not same_mesh or a != b:
                return None
            frozen_size *= sum(y - x for x, y in source.dim_runs(i, source.mesh.coordinates(first)))
            slots_of_dim.append(())
            continue
        cut = _slots(a, b, left, right, atoms)
        if cut is None:
            return None
        start = len(extents)
        for extent, s, t in cut:
            extents.append(extent)
            before.append(s)
            after.append(t)
        slots_of_dim.append(tuple(range(start, len(extents))))
    owed = sum(1 << x for p in source.owed() for x in _range(left, p.axis, 1, source.mesh.axis(p.axis).size, atoms))
    due = sum(1 << x for p in target.owed() for x in _range(right, p.axis, 1, target.mesh.axis(p.axis).size, atoms))
    together = _family(source) == _family(target)
    links = sorted({a.link for a in atoms}, key=slowness)
    question = Question(
        tuple(a.size for a in atoms),
        tuple(links.index(a.link) for a in atoms),
        tuple(link_cost(link) for link in links),
        tuple(extents),
        frozen_size,
        (tuple(before), owed),
        (tuple(after), due),
        owed & due if together else 0,
        limit,
        by_bytes,
        sum(a.size > 1 for a in source.mesh.axes),
    )
    if any(
        atoms[x].size != atoms[y].size for s, t in zip(before, after, strict=True) for x, y in zip(s, t, strict=False)
    ):
        return None
    return Problem(question, atoms, tuple(slots_of_dim))


def _family(layout: Layout) -> str | None:
    """``sum`` for sums and averages, which go together."""
    for p in layout.owed():
        return "sum" if p.op == "avg" else p.op
    return None


@lru_cache(maxsize=256)
def _strides(mesh: Mesh) -> dict[str, int]:
    """The stride of every axis and sub-axis."""
    return {a.name: mesh.stride(a.name) for a in mesh.all_axes()}


def _range(strides: dict[str, int], axis: str, divisor: int, size: int, atoms: tuple[Atom, ...]) -> list[int]:
    """The atoms, major to minor, of the digit ``coordinate // divisor % size`` of an axis."""
    low = strides[axis] * divisor
    return [i for i, a in enumerate(atoms) if low <= a.stride < low * size]


def _digits(dim: CanonicalDim, strides: dict[str, int], atoms: tuple[Atom, ...]) -> list[tuple[int, int | None]]:
    """(size, atom or None) major to minor."""
    digits: list[tuple[int, int | None]] = []
    for d in dim.digits:
        if d.axis is None:
            digits.append((d.size, None))
        else:
            digits += [(atoms[i].size, i) for i in _range(strides, d.axis, d.divisor, d.size, atoms)]
    return digits


def _slots(
    a: CanonicalDim, b: CanonicalDim, left: dict[str, int], right: dict[str, int], atoms: tuple[Atom, ...]
) -> list[tuple[int, tuple[int, ...], tuple[int, ...]]] | None:
    """(size, atoms in the source, atoms in the target) of each slot of a dim."""
    x, y = _digits(a, left, atoms), _digits(b, right, atoms)
    if a.size == 0:
        return [(0, tuple(i for _, i in x if i is not None), tuple(i for _, i in y if i is not None))]
    edges_x, edges_y = _edges(x), _edges(y)
    boundaries = chain([*edges_x, *edges_y])
    if boundaries is None:
        if _hole_free(x) and _hole_free(y):
            return [(a.size, tuple(i for _, i in x if i is not None), tuple(i for _, i in y if i is not None))]
        return None
    slots: list[tuple[int, tuple[int, ...], tuple[int, ...]]] = []
    for high, low in pairwise(boundaries):
        s, t = edges_x.get(low), edges_y.get(low)
        s = s if s is not None and atoms[s].size == high // low else None
        t = t if t is not None and atoms[t].size == high // low else None
        slots.append((high // low, () if s is None else (s,), () if t is None else (t,)))
    if not slots or slots[-1][1] or slots[-1][2]:
        slots.append((1, (), ()))
    return slots


def _edges(digits: list[tuple[int, int | None]]) -> dict[int, int | None]:
    """Suffix products of digits -> the atom of the digit that starts there; the whole size too."""
    edges: dict[int, int | None] = {}
    low = 1
    for size, atom in reversed(digits):
        edges[low] = atom
        low *= size
    edges.setdefault(low, None)
    edges.setdefault(1, None)
    return edges


def _hole_free(digits: list[tuple[int, int | None]]) -> bool:
    local = [i is None for _, i in digits]
    return local == sorted(local)


__all__ = ["Atom", "Problem", "Question", "State", "problem"]
