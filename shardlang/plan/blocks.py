"""Blocks from the definition of a layout alone, for the checker of plans: it shares no code with what makes plans.

Factors are cut evenly, major to minor, then come the flat cuts in ``torch.chunk``'s way.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from attrs import frozen

from shardlang.layout import Dim, Layout
from shardlang.mesh import Mesh
from shardlang.plan.steps import Step

RANKS = 128
"""Up to so many ranks all are looked at; of more (over the axes that matter) a fixed sample."""

Runs = tuple[tuple[int, int], ...]
Box = tuple[Runs, ...]


@frozen
class View:
    """A layout as the checker sees it: each rank's box, and its coordinates on the pending axes."""

    boxes: dict[int, Box]
    owed: tuple[tuple[str, str], ...]
    parts: dict[int, tuple[int, ...]]
    numel: int


def ranks_of(step: Step) -> tuple[int, ...]:
    """The ranks to look at: all, or of many a fixed sample: every coordinate of the step's own axes as far as that is
    bearable, and of others that matter the first two and the last."""
    mesh = step.source.mesh
    if max(mesh.size, step.target.mesh.size) <= RANKS or step.target.mesh.axes != mesh.axes:
        return tuple(sorted({*mesh.ranks[:RANKS], *step.target.mesh.ranks[:RANKS]}))
    tops = {mesh.parent(a) or a for a in step.axes}
    names = tops | {mesh.parent(a) or a for x in (step.source, step.target) for a in used_axes(x)}
    ranks = {mesh.first_rank}
    for axis in sorted(mesh.axes, key=lambda a: a.name not in tops):
        if axis.name in names and axis.size > 1:
            stride = mesh.stride(axis.name)
            every = len(ranks) * axis.size <= 4 * RANKS
            ranks = {r + stride * c for r in ranks for c in (range(axis.size) if every else (0, 1, axis.size - 1))}
    return tuple(sorted(ranks))


def used_axes(layout: Layout) -> Iterator[str]:
    for dim in layout.dims:
        for factor in dim.factors:
            yield from factor.cuts
        for cut in dim.flat:
            yield cut.axis
    for p in layout.pending:
        yield p.axis


def coordinate(mesh: Mesh, rank: int, name: str) -> int:
    return (rank - mesh.first_rank) // mesh.stride(name) % mesh.axis(name).size


def indices(dim: Dim, mesh: Mesh, rank: int) -> Runs:
    """The indices of a dim that a rank holds, from the definition."""
    runs: list[tuple[int, int]] = [(0, 1)]
    for factor in dim.factors:
        low, high = 0, factor.size
        for name in factor.cuts:
            length = (high - low) // mesh.axis(name).size
            low += coordinate(mesh, rank, name) * length
            high = low + length
        if (low, high) == (0, factor.size):
            runs = [(a * factor.size, b * factor.size) for a, b in runs]
        else:
            runs = [(i * factor.size + low, i * factor.size + high) for a, b in runs for i in range(a, b)]
    for cut in dim.flat:
        total = sum(b - a for a, b in runs)
        step = -(-total // mesh.axis(cut.axis).size)
        start = min(coordinate(mesh, rank, cut.axis) * step, total)
        stop, at, kept = min(start + step, total), 0, []
        for a, b in runs:
            lo, hi = max(start, at), min(stop, at + b - a)
            if lo < hi:
                kept.append((a + lo - at, a + hi - at))
            at += b - a
        runs = kept
    joined: list[tuple[int, int]] = []
    for a, b in runs:
        if joined and joined[-1][1] == a:
            joined[-1] = (joined[-1][0], b)
        elif a < b:
            joined.append((a, b))
    return tuple(joined)


def view(layout: Layout, ranks: tuple[int, ...]) -> View:
    mesh = layout.mesh
    owed = sorted({(leaf, p.op) for p in layout.pending for leaf in mesh.expand(p.axis) if mesh.axis(leaf).size > 1})
    inside = [r for r in ranks if r in mesh.ranks]
    boxes = {r: tuple(indices(d, mesh, r) for d in layout.dims) for r in inside}
    parts = {r: tuple(coordinate(mesh, r, a) for a, _ in owed) for r in inside}
    return View(boxes, tuple(owed), parts, math.prod(math.prod(f.size for f in d.factors) for d in layout.dims))


def volume(box: Box) -> int:
    return math.prod(sum(b - a for a, b in runs) for runs in box)


def common(left: Box, right: Box) -> int:
    """How many elements two boxes share."""
    total = 1
    for x, y in zip(left, right, strict=True):
        here = i = j = 0
        while i < len(x) and j < len(y):
            here += max(0, min(x[i][1], y[j][1]) - max(x[i][0], y[j][0]))
            if x[i][1] < y[j][1]:
                i += 1
            else:
                j += 1
        total *= here
    return total


def size_of(dim: Dim) -> int:
    return math.prod(f.size for f in dim.factors)


def merged(axes: Sequence[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
    """Pending digits of a rank's number, neighbours with one operator joined."""
    joined: list[tuple[int, int, str]] = []
    for stride, size, op in axes:
        if joined and joined[-1][0] * joined[-1][1] == stride and joined[-1][2] == op:
            joined[-1] = (joined[-1][0], joined[-1][1] * size, op)
        else:
            joined.append((stride, size, op))
    return joined


def groups(step: Step, ranks: tuple[int, ...]) -> list[list[int]]:
    """The ranks that differ only on the step's axes."""
    mesh = step.source.mesh
    groups: dict[int, list[int]] = {}
    for rank in ranks:
        offset = sum(coordinate(mesh, rank, a) * mesh.stride(a) for a in step.axes)
        groups.setdefault(rank - offset, []).append(rank)
    full = math.prod(mesh.axis(a).size for a in step.axes)
    return [g for g in groups.values() if len(g) == full]


def largest(layout: Layout) -> int:
    """Elements of the largest block: by the rule of chunks the first rank's."""
    return volume(tuple(indices(d, layout.mesh, layout.mesh.first_rank) for d in layout.dims))
