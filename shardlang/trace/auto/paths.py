"""Times of the transitions between all layouts of one tensor at once: shortest paths over single steps.

One by one the planner takes milliseconds for each, and a search over layouts asks for thousands. Here the layouts that
axes can make of a tensor are the nodes, the planner's closed formulas for single steps the edges, and no array on a
path is larger than the larger of its ends, as in a plan. The planner, which also takes axes apart, never gives a dearer
plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise, product

import torch
from attrs import frozen

from shardlang.layout import CanonicalDim, Digit, Layout
from shardlang.mesh import Mesh
from shardlang.plan.cost import Costs
from shardlang.plan.cost import between as step_between
from shardlang.plan.exchange import slowness
from shardlang.plan.plan import WAIVER
from shardlang.plan.problem import SHIFT, Atom, Question, atoms_of, chain, link_cost, primes
from shardlang.plan.problem import State as Point
from shardlang.trace.auto.eliminate import NEVER
from shardlang.trace.pieces import Piece, State, cut_more, whole_piece

MANY = 400
"""Layouts of one tensor that are taken into one table."""


@frozen(eq=False)
class Paths:
    """The picoseconds from each layout to each, by their numbers."""

    number: dict[State, int]
    times: list[list[int]]


def every_state(mesh: Mesh, shape: Sequence[int]) -> Iterable[State]:
    """Each axis splits a dim that it divides, is owed as a sum, or does neither; several split a dim major to minor."""
    axes = [a for a in mesh.leaves() if a.size > 1]
    for chosen in product(*([None, *range(len(shape)), "sum"] for _ in axes)):
        pieces: list[Piece | None] = [whole_piece(n) for n in shape]
        for axis, at in zip(axes, chosen, strict=True):
            if isinstance(at, int):
                before = pieces[at]
                pieces[at] = cut_more(before, axis.name, axis.size) if before is not None else None
        made = [p for p in pieces if p is not None]
        if len(made) == len(shape):
            yield State(tuple(made), {a.name: "sum" for a, at in zip(axes, chosen, strict=True) if at == "sum"})


def paths(mesh: Mesh, states: Iterable[State], itemsize: int) -> Paths:
    """The table of these layouts; those that it cannot hold (uneven cuts, other reductions than sums) are left out."""
    usable = [s for s in dict.fromkeys(states) if _plain(s)][:MANY]
    if not usable:
        return Paths({}, [])
    shape = usable[0].shape
    anywhere = Layout.whole(mesh, shape)
    atoms = atoms_of(anywhere, anywhere) or ()
    nested = [chain(e for s in usable for e in _edges(s.pieces[d])) for d in range(len(shape))]
    if any(e is None for e in nested):
        # Sizes such as 2 and 3 crosswise: a dim is one slot, which only cuts without a hole can say.
        usable = [s for s in usable if all(_contiguous(p) for p in s.pieces)]
        nested = [None] * len(shape)
    slots = [[(n, 1)] if e is None else [*pairwise(e), (1, 1)] for n, e in zip(shape, nested, strict=True)]
    points = [_point(mesh, atoms, slots, s, nested) for s in usable]
    links = sorted({a.link for a in atoms}, key=slowness)
    question = Question(
        tuple(a.size for a in atoms),
        tuple(links.index(a.link) for a in atoms),
        tuple(link_cost(link) for link in links),
        tuple(hi // lo for dim in slots for hi, lo in dim),
        itemsize,
        points[0],
        points[0],
        0,
        None,
        False,
        sum(a.size > 1 for a in mesh.axes),
    )
    costs = Costs(question)
    blocks = [costs.block(p) for p in points]
    return Paths({s: i for i, s in enumerate(usable)}, _shortest(costs, points, blocks))


def _shortest(costs: Costs, points: Sequence[Point], blocks: Sequence[int]) -> list[list[int]]:
    count = len(points)
    rows = []
    for i, x in enumerate(points):
        row = []
        for j, y in enumerate(points):
            if i == j or _masks(x, y):
                row.append(0)
                continue
            costs.limit = max(blocks[i], blocks[j], WAIVER)
            edge = step_between(costs, x, y)
            row.append(NEVER if edge is None else edge[4] >> SHIFT)
        rows.append(row)
    table = torch.tensor(rows, dtype=torch.int64)
    largest = torch.tensor(blocks, dtype=torch.int64)
    ends = torch.maximum(largest[:, None], largest[None, :])
    allowed = ends.clamp(min=WAIVER)
    found = table.clone()
    way = table.clone()
    order = sorted(range(count), key=lambda k: (blocks[k], k))
    for place, k in enumerate(order):
        way = torch.minimum(way, way[:, k, None] + way[None, k, :])
        if place + 1 == count or blocks[order[place + 1]] != blocks[k]:
            # With layouts up to this size on the way: right for the pairs that allow those and no larger ones.
            found = torch.where(allowed >= blocks[k], torch.minimum(found, way), found)
    result: list[list[int]] = found.clamp(max=NEVER).tolist()
    return result


def _masks(x: Point, y: Point) -> bool:
    """Does ``y`` owe over atoms on which ``x`` is whole or split, all else equal? That is a mask, which is free."""
    new = y[1] & ~x[1]
    if not new or x[1] & ~y[1]:
        return False
    return all(tuple(a for a in s if not new >> a & 1) == t for s, t in zip(x[0], y[0], strict=True))


def _plain(state: State) -> bool:
    return all(op == "sum" for op in state.pending.values()) and all(not p.flat and p.size for p in state.pieces)


def _contiguous(piece: Piece) -> bool:
    local = [d.axis is None for d in piece.digits]
    return local == sorted(local)


def _edges(piece: CanonicalDim) -> list[int]:
    """The products of the sizes of trailing digits, those of an axis taken apart into primes."""
    edges = [1]
    for size, _, _ in reversed(_digits(piece)):
        edges.append(edges[-1] * size)
    return edges


def _digits(piece: CanonicalDim) -> list[tuple[int, Digit | None, int]]:
    """(size, digit, product of what follows in the digit), prime by prime for those of an axis."""
    found: list[tuple[int, Digit | None, int]] = []
    for digit in piece.digits:
        if digit.axis is None:
            found.append((digit.size, None, 1))
            continue
        left = digit.size
        for p in primes(digit.size):
            left //= p
            found.append((p, digit, left))
    return found


def _point(
    mesh: Mesh,
    atoms: Sequence[Atom],
    slots: Sequence[Sequence[tuple[int, int]]],
    state: State,
    nested: Sequence[list[int] | None],
) -> Point:
    cuts: list[tuple[int, ...]] = []
    for piece, dim, edges in zip(state.pieces, slots, nested, strict=True):
        at: dict[int, int] = {}
        low = 1
        for size, digit, after in reversed(_digits(piece)):
            if digit is not None and digit.axis is not None:
                stride = mesh.stride(digit.axis) * digit.divisor * after
                at[low] = next(i for i, a in enumerate(atoms) if a.stride == stride)
            low *= size
        if edges is None:
            cuts.append(tuple(at[lo] for lo in sorted(at, reverse=True)))
            continue
        cuts += [(at[lo],) if lo in at and atoms[at[lo]].size == hi // lo else () for hi, lo in dim]
    owed = 0
    for name in state.pending:
        low, size = mesh.stride(name), mesh.axis(name).size
        owed |= sum(1 << i for i, a in enumerate(atoms) if low <= a.stride < low * size)
    return tuple(cuts), owed
