"""Who sends what to whom when each rank receives exactly what it lacks; pure algebra over runs.

A *part* is one block of the source as some ranks hold it: the same runs, and the same coordinates on the pending axes
(parts of a pending value differ). Every rank that holds a part is a *holder* of it. A rank that needs elements of a
part and holds it keeps its own; every other one *demands* them, from the holders that are nearest, which is those in
the smallest neighbourhood of the receiver (the ranks that agree with it on every axis of a slower link) that has any.
The demands of one neighbourhood are laid on a line, receivers ascending, and holders ascending take equal shares of
it; a demand is never divided. So the sending is spread evenly, each rank hears from as few others as can be, and on one
link no rank sends more than some rank receives.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import lru_cache

from attrs import field, frozen

from shardlang.layout import Layout, Runs, intersect_runs
from shardlang.mesh import Link, Mesh

Key = tuple[tuple[Runs, ...], tuple[int, ...], tuple[int, ...]]
"""A part: its runs, its coordinates on the axes that are reduced, and on those that stay pending."""


@frozen
class Transfer:
    """A box of elements (the product of its runs, in global indices) that one rank sends to another, or keeps.

    ``part`` are the sender's coordinates on the pending axes whose reduction ends here, in mesh order: boxes that
    differ in it alone are added up (or whatever the operator is) by the receiver.
    """

    sender: int
    receiver: int
    runs: tuple[Runs, ...]
    part: tuple[int, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(sum(b - a for a, b in runs) for runs in self.runs)

    @property
    def numel(self) -> int:
        return math.prod(self.shape)


@frozen
class _Parts:
    """Every part of a source, in order of first holder, and what each rank holds."""

    holders: Mapping[Key, tuple[int, ...]] = field(eq=False)
    of_rank: Mapping[int, Key] = field(eq=False)
    needed: Mapping[tuple[tuple[Runs, ...], tuple[int, ...]], tuple[int, ...]] = field(eq=False)
    """The ranks of the target by the block (and the coordinates on what stays pending) that they need."""


def receives(source: Layout, target: Layout, rank: int) -> tuple[Transfer, ...]:
    """What ``rank`` gets: in order of part, from itself (sender and receiver are equal) or from another rank."""
    found = []
    if rank in target.mesh.ranks:
        for key in _parts(source, target).holders:
            transfer = _served(source, target, key).get(rank)
            if transfer is not None:
                found.append(transfer)
    return tuple(found)


def sends(source: Layout, target: Layout, rank: int) -> tuple[Transfer, ...]:
    """What ``rank`` sends to others, receivers ascending."""
    key = _parts(source, target).of_rank.get(rank)
    if key is None:
        return ()
    return tuple(t for t in _served(source, target, key).values() if t.sender == rank != t.receiver)


def transfers(source: Layout, target: Layout) -> Iterator[Transfer]:
    """All of them, those that stay on their rank included, part by part."""
    for key in _parts(source, target).holders:
        yield from _served(source, target, key).values()


def reduced_axes(source: Layout, target: Layout) -> tuple[str, ...]:
    """The leaf axes, in mesh order, whose pending reduction ends between the two."""
    kept = set(target.owed())
    return tuple(p.axis for p in source.owed() if p not in kept)


@lru_cache(maxsize=64)
def _parts(source: Layout, target: Layout) -> _Parts:
    ending = reduced_axes(source, target)
    kept = tuple(p.axis for p in target.owed())
    holders: dict[Key, list[int]] = {}
    of_rank: dict[int, Key] = {}
    for rank in source.mesh.ranks:
        key = (source.runs(rank), _at(source.mesh, rank, ending), _at(source.mesh, rank, kept))
        holders.setdefault(key, []).append(rank)
        of_rank[rank] = key
    needed: dict[tuple[tuple[Runs, ...], tuple[int, ...]], list[int]] = {}
    for rank in target.mesh.ranks:
        needed.setdefault((target.runs(rank), _at(target.mesh, rank, kept)), []).append(rank)
    return _Parts({k: tuple(v) for k, v in holders.items()}, of_rank, {k: tuple(v) for k, v in needed.items()})


@lru_cache(maxsize=4096)
def _served(source: Layout, target: Layout, key: Key) -> dict[int, Transfer]:
    """Receiver -> what it gets of one part, receivers ascending."""
    parts = _parts(source, target)
    have, part, stays = key
    boxes: dict[int, tuple[Runs, ...]] = {}
    for (wanted, at), ranks in parts.needed.items():
        if at != stays:
            continue
        box = tuple(intersect_runs(h, w) for h, w in zip(have, wanted, strict=True))
        if all(box):
            boxes.update(dict.fromkeys(ranks, box))
    holders = parts.holders[key]
    served = {rank: Transfer(rank, rank, boxes[rank], part) for rank in holders if rank in boxes}
    levels = neighbourhoods(source.mesh, target.mesh)
    homes: list[dict[tuple[int, ...], list[int]]] = []
    for axes in levels:
        level: dict[tuple[int, ...], list[int]] = {}
        for holder in holders:
            level.setdefault(_at(source.mesh, holder, axes), []).append(holder)
        homes.append(level)
    lines: dict[tuple[int, tuple[int, ...]], list[int]] = {}
    for rank in sorted(boxes):
        if rank in served:
            continue
        for i, axes in enumerate(levels):
            home = _at(target.mesh, rank, axes)
            if home in homes[i]:
                lines.setdefault((i, home), []).append(rank)
                break
    for (i, home), line in lines.items():
        near = homes[i][home]
        sizes = [Transfer(0, 0, boxes[r]).numel for r in line]
        total, start = sum(sizes), 0
        for rank, size in zip(line, sizes, strict=True):
            served[rank] = Transfer(near[start * len(near) // total], rank, boxes[rank], part)
            start += size
    return dict(sorted(served.items()))


def slowness(link: Link) -> tuple[int, int, str]:
    """Sorts links from slow to fast."""
    return (link.bandwidth, -link.latency, link.name)


@lru_cache(maxsize=256)
def neighbourhoods(source: Mesh, target: Mesh) -> tuple[tuple[str, ...], ...]:
    """For each link, fast to slow, the axes of slower links: ranks that agree on them are neighbours over it.

    Between two meshes that are not the same axes over the same ranks there is one neighbourhood: everybody.
    """
    if source.axes != target.axes or source.first_rank != target.first_rank:
        return ((),)
    links = sorted({a.link for a in source.axes if a.size > 1}, key=slowness, reverse=True)
    return tuple(
        tuple(a.name for a in source.axes if a.size > 1 and slowness(a.link) < slowness(link)) for link in links
    ) or ((),)


def _at(mesh: Mesh, rank: int, axes: tuple[str, ...]) -> tuple[int, ...]:
    return tuple(mesh.coordinate(rank, a) for a in axes)
