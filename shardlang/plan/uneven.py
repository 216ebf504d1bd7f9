"""The price of an exchange between blocks without common digits: uneven cuts, 2 and 3 crosswise, two meshes.

Up to ``COUNTED`` ranks the transfers themselves are counted. Beyond that what each rank lacks is still exact (over the
axes that matter), all of it is priced on the slowest link, and what a rank sends is bounded by its even share and one
piece more.
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import islice

from attrs import evolve

from shardlang.layout import Layout, intersect_runs
from shardlang.mesh import Link, Mesh
from shardlang.plan.cost import log2
from shardlang.plan.exchange import neighbourhoods, reduced_axes, slowness, transfers
from shardlang.plan.problem import link_cost

COUNTED = 64
LOOPED = 4096


def measure(source: Layout, target: Layout, itemsize: int) -> tuple[int, int, int]:
    """Bytes received and sent by the worst rank, and time in units of 2^-SHIFT ps, of an exchange."""
    source, target = _narrowed(source, target)
    links = {a.link for layout in (source, target) for a in layout.mesh.axes}
    return _measure(source, target, itemsize, tuple((link, link_cost(link)) for link in sorted(links, key=slowness)))


def _narrowed(source: Layout, target: Layout) -> tuple[Layout, Layout]:
    """Both on a mesh of only the axes that split or are pending in either."""
    if source.mesh != target.mesh:
        return source, target
    mesh = source.mesh
    used = {mesh.parent(n) or n for x in (source, target) for n in [*x.cut_axes(), *(p.axis for p in x.pending)]}
    axes = tuple(a for a in mesh.axes if a.name in used)
    small = Mesh(mesh.name, axes, {n: parts for n, parts in mesh.splits.items() if n in used})
    return evolve(source, mesh=small), evolve(target, mesh=small)


@lru_cache(maxsize=1024)
def _measure(
    source: Layout, target: Layout, itemsize: int, links: tuple[tuple[Link, tuple[int, int]], ...]
) -> tuple[int, int, int]:
    if max(source.mesh.size, target.mesh.size) <= COUNTED:
        return _counted(source, target, itemsize, dict(links))
    return _bounded(source, target, itemsize, dict(links))


def _counted(source: Layout, target: Layout, itemsize: int, links: dict[Link, tuple[int, int]]) -> tuple[int, int, int]:
    levels = neighbourhoods(source.mesh, target.mesh)
    classes = sorted({a.link for a in source.mesh.axes if a.size > 1}, key=slowness, reverse=True)
    if len(levels) != len(classes):
        classes = [_slowest(source, target)]
    got: dict[int, list[int]] = {}
    gave: dict[int, list[int]] = {}
    heard: dict[tuple[int, int], int] = {}
    told: dict[tuple[int, int], int] = {}
    for t in transfers(source, target):
        if t.sender == t.receiver:
            continue
        level = next(i for i, axes in enumerate(levels) if _agree(source.mesh, target.mesh, t.sender, t.receiver, axes))
        n = t.numel * itemsize
        got.setdefault(t.receiver, [0] * len(levels))[level] += n
        gave.setdefault(t.sender, [0] * len(levels))[level] += n
        heard[t.receiver, level] = heard.get((t.receiver, level), 0) + 1
        told[t.sender, level] = told.get((t.sender, level), 0) + 1
    time = before = 0
    order = list(reversed(range(len(levels))))
    worst = {level: max((sum(v[level:]) for v in got.values()), default=0) for level in order}
    # The rank that receives most over every class and slower ones together, if there is one, stands for all.
    most = {r for r, v in got.items() if all(sum(v[level:]) == worst[level] for level in order)} or set(got)
    for level in order:
        # What the worst rank receives over this class and slower ones, less what it received over slower ones.
        here, before = worst[level] - before, worst[level]
        leaving = max((v[level] for v in gave.values()), default=0)
        peers = [n for (r, i), n in heard.items() if i == level and r in most]
        peers += [n for (_, i), n in told.items() if i == level]
        if peers:
            latency, rate = links[classes[level]]
            time += latency * log2(1 + max(peers)) + max(here, leaving) * rate
    received = max((sum(v) for v in got.values()), default=0)
    sent = max((sum(v) for v in gave.values()), default=0)
    return received, sent, time


def _bounded(source: Layout, target: Layout, itemsize: int, links: dict[Link, tuple[int, int]]) -> tuple[int, int, int]:
    parts = math.prod(source.mesh.axis(a).size for a in reduced_axes(source, target))
    here = source.mesh.ranks
    received = largest = 0
    for rank in islice(target.mesh.ranks, LOOPED):
        wanted = target.runs(rank)
        need = math.prod(sum(b - a for a, b in runs) for runs in wanted)
        own = 0
        if rank in here:
            common = [intersect_runs(h, w) for h, w in zip(source.runs(rank), wanted, strict=True)]
            own = math.prod(sum(b - a for a, b in runs) for runs in common)
        received = max(received, need * parts - own)
        largest = max(largest, need)
    if not received:
        return 0, 0, 0
    pieces = min(source.mesh.size, -(-largest * parts // max(1, source.block_numel())) + 1)
    copies = max(1, target.mesh.size * largest // max(1, target.numel))
    share = max(received, -(-copies * source.block_numel() // max(1, _copies(source)))) + largest
    sent = min(share, source.block_numel() * target.mesh.size)
    latency, rate = links[_slowest(source, target)]
    bytes_received, bytes_sent = received * itemsize, sent * itemsize
    return bytes_received, bytes_sent, latency * log2(1 + pieces) + max(bytes_received, bytes_sent) * rate


def lacking(source: Layout, target: Layout) -> int:
    """Elements that some rank (of the first ``LOOPED``) needs and does not hold."""
    worst = 0
    for rank in islice(target.mesh.ranks, LOOPED):
        wanted = target.runs(rank)
        need, own = math.prod(sum(b - a for a, b in runs) for runs in wanted), 0
        if rank in source.mesh.ranks:
            common = [intersect_runs(h, w) for h, w in zip(source.runs(rank), wanted, strict=True)]
            own = math.prod(sum(b - a for a, b in runs) for runs in common)
        worst = max(worst, need - own)
    return worst


def _copies(layout: Layout) -> int:
    """How many ranks hold each part, at least."""
    used = {leaf for n in [*layout.cut_axes(), *(p.axis for p in layout.owed())] for leaf in layout.mesh.expand(n)}
    return math.prod(a.size for a in layout.mesh.leaves() if a.name not in used)


def _slowest(source: Layout, target: Layout) -> Link:
    axes = [*source.mesh.axes, *target.mesh.axes]
    return min((a.link for a in axes if a.size > 1), key=slowness, default=axes[0].link if axes else Link("", 1, 0))


def _agree(source: Mesh, target: Mesh, sender: int, receiver: int, axes: tuple[str, ...]) -> bool:
    return all(source.coordinate(sender, a) == target.coordinate(receiver, a) for a in axes)
