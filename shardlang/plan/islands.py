"""What any plan must cost between blocks without common digits: the bounds of ``bounds``, counted cell by cell.

The tensor falls apart into *cells* that no block cuts. For each link class, ranks that agree on the axes of that class
and slower ones are an *island*: what an island needs and does not hold crosses links of that class or slower, and some
member receives at least its share. A value that is reduced over ``p`` islands and needed on ``c`` takes ``p - 1``
merges of each cell and ``c - 1`` further receipts, one more where none that needs it holds a part. One of ``k`` parts
that stays pending and moves takes ``k - 1`` more, of its parts or to merge them.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from shardlang.layout import Layout
from shardlang.plan.bounds import rounds
from shardlang.plan.exchange import reduced_axes, slowness
from shardlang.plan.problem import link_cost

COUNTED, CELLS = 64, 1 << 15
"""Up to so many ranks, and cells, are counted."""

Cells = NDArray[np.bool_]


def least(source: Layout, target: Layout, itemsize: int) -> tuple[int, int] | None:
    """Time (units of 2^-SHIFT ps) and bytes received by some rank, of any plan between two layouts on one mesh.

    ``None`` where there are too many ranks or cells to count, or two meshes.
    """
    mesh = source.mesh
    if (mesh.axes, mesh.splits, mesh.first_rank) != (target.mesh.axes, target.mesh.splits, target.mesh.first_rank):
        return None
    if mesh.size > COUNTED:
        return None
    edges = [_edges(source, target, d) for d in range(len(source.dims))]
    if math.prod(max(1, len(e) - 1) for e in edges) > CELLS:
        return None
    volume = np.ones(1, dtype=np.int64)
    for e in edges:
        volume = np.multiply.outer(volume, np.diff(np.array(e))).ravel()
    held, needed = (np.stack([_block(x, r, edges) for r in mesh.ranks]) for x in (source, target))
    late = {p.axis for p in target.owed()}
    reduced = set(reduced_axes(source, target))
    links = sorted({a.link for a in mesh.leaves() if a.size > 1}, key=slowness)
    costs = [link_cost(link) for link in links]
    time = crossed = known = 0
    latency: int | None = None
    for c, (lag, rate) in enumerate(costs):
        apart = [a.name for a in mesh.leaves() if a.size > 1 and a.link in links[: c + 1] and a.name not in late]
        near = [p.axis for p in source.owed() if mesh.axis(p.axis).link in links[: c + 1]]
        stays = math.prod(mesh.axis(a).size for a in near if a not in reduced)
        ending = [a for a in apart if a in reduced]
        here, hears, members = _crossing(source, held, needed, volume, apart, ending, stays)
        crossed = max(crossed, here * itemsize)
        time += crossed * (rate - (costs[c + 1][1] if c + 1 < len(costs) else 0))
        lowest = lag if latency is None else min(latency, lag)
        if latency is not None:
            time += (latency - lowest) * known
        latency = lowest
        known = max(known, rounds(hears, members))
    return time + (latency or 0) * known, crossed


def _crossing(
    layout: Layout,
    held: Cells,
    needed: Cells,
    volume: NDArray[np.int64],
    apart: list[str],
    reduced: list[str],
    stays: int,
) -> tuple[int, int, int]:
    """Elements that some rank receives over the links between islands, of how many islands one hears (itself
    included), and the ranks of each."""
    mesh = layout.mesh
    islands: dict[tuple[int, ...], list[int]] = {}
    for i, rank in enumerate(mesh.ranks):
        islands.setdefault(tuple(mesh.coordinate(rank, a) for a in apart), []).append(i)
    has = np.stack([held[ranks].any(axis=0) for ranks in islands.values()])
    wants = np.stack([needed[ranks].any(axis=0) for ranks in islands.values()])
    members = mesh.size // len(islands)
    parts = math.prod(mesh.axis(a).size for a in reduced)
    if parts > 1:
        copies = wants.sum(axis=0)
        receipts = parts - 1 + copies - 1 + ~(has & wants).any(axis=0)
        shared = int((receipts * (copies > 0)) @ volume)
        largest = int((wants @ volume).max())
        return max(-(-shared // mesh.size), -(-largest // members)), parts, members
    lacks = wants & ~has
    missing = lacks @ volume
    hears = 1
    for i in np.nonzero(missing)[0].tolist():
        given = (has & lacks[i]) @ volume
        hears = max(hears, 1 - int(-missing[i] // given.max()))
    shared = int(missing.sum()) + (stays - 1) * int(lacks.any(axis=0) @ volume)
    return max(-(-int(missing.max()) // members), -(-shared // mesh.size)), hears, members


def _edges(source: Layout, target: Layout, dim: int) -> list[int]:
    found = {0, source.dims[dim].size}
    for layout in (source, target):
        for rank in layout.mesh.ranks:
            for start, stop in layout.runs(rank)[dim]:
                found |= {start, stop}
    return sorted(found)


def _block(layout: Layout, rank: int, edges: list[list[int]]) -> Cells:
    """Which cells a rank's block has."""
    block = np.ones(1, dtype=np.bool_)
    for runs, e in zip(layout.runs(rank), edges, strict=True):
        starts = np.array(e[:-1])
        inside = np.zeros(len(starts), dtype=np.bool_)
        for start, stop in runs:
            inside |= (starts >= start) & (starts < stop)
        block = np.logical_and.outer(block, inside).ravel()
    return block
