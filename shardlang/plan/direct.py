"""Plans where no common digits say both layouts (uneven cuts, other ranks): reductions, an exchange or two, a mask."""

from __future__ import annotations

import math

from attrs import evolve

from shardlang.dtypes import DTYPES
from shardlang.layout import Cut, Dim, Layout, Pending, ReduceOp, intersect_runs
from shardlang.plan.cost import log2
from shardlang.plan.exchange import reduced_axes, slowness
from shardlang.plan.islands import COUNTED, least
from shardlang.plan.plan import Plan
from shardlang.plan.problem import SHIFT, link_cost
from shardlang.plan.render import OPS
from shardlang.plan.steps import Kind, Objective, Step
from shardlang.plan.uneven import lacking, measure

Steps = tuple[Step, ...]


def plan_directly(
    source: Layout, target: Layout, dtype: str, objective: Objective, cap: float | None, limit: int | None
) -> Plan:
    """The best of a few plans with one exchange, or two where that is cheaper. ``limit`` is the largest array under the
    cap, in bytes."""
    itemsize = DTYPES[dtype].itemsize
    by_bytes = objective == "bytes"
    missing, floor = _floor(source, target, itemsize, by_bytes)

    def order(steps: Steps) -> tuple[int, int, int]:
        received, time = sum(s.bytes_received for s in steps), sum(s.time for s in steps)
        first, second = (received, time) if by_bytes else (time, received)
        return first, second, len(steps)

    starts = [
        (steps, now, base)
        for steps, now in _reductions(source, target, itemsize, limit)
        for base in _before_masks(now, target)
    ]
    found = [
        steps + last
        for steps, now, base in starts
        for last in [_moved(now, base, target, itemsize, limit)]
        if last is not None
    ]
    best = min(found, key=order)
    if order(best)[0] > floor and source.mesh == target.mesh:
        for steps, now, base in starts:
            for halfway in _halfway(base)[: HALVES if source.mesh.size <= COUNTED // 4 else 1]:
                first = _moved(now, halfway, halfway, itemsize, limit)
                if first is None or order(steps + first)[0] >= order(best)[0]:
                    continue
                second = _moved(halfway, base, target, itemsize, limit)
                if second is not None and order(steps + first + second) < order(best):
                    best = steps + first + second
    received, sent = sum(s.bytes_received for s in best), sum(s.bytes_sent for s in best)
    if not source.owed() and not target.owed():
        # What ranks lack is what an exchange brings.
        missing = min(sum(s.bytes_received for s in x) for x in found)
        floor = max(floor, missing) if by_bytes else floor
    cost = order(best)[0]
    floor, missing = min(floor, cost), min(missing, received)
    return Plan(source, target, dtype, best, objective, cap, received, sent, missing, floor, cost <= floor)


HALVES = 4
"""So many layouts short of the target are tried on the way to it, on few ranks."""


def _floor(source: Layout, target: Layout, itemsize: int, by_bytes: bool) -> tuple[int, int]:
    """Bytes that some rank receives at least, and the objective's bound."""
    counted = least(source, target, itemsize)
    if counted is not None:
        time, missing = counted
        return missing, missing if by_bytes else time >> SHIFT
    missing = 0
    if not target.owed():
        # Of a reduced value every element comes at least once from another rank.
        missing = target.block_numel() * itemsize if source.owed() else lacking(source, target) * itemsize
    links = {a.link for layout in (source, target) for a in layout.mesh.axes}
    if by_bytes or not missing or not links:
        return missing, missing if by_bytes else 0
    time = min(x.latency for x in links) * log2(2) + missing * min(link_cost(x)[1] for x in links)
    return missing, time >> SHIFT


def _halfway(base: Layout) -> list[Layout]:
    """A layout further cut over axes on which it is whole: all of them, those of all but the slowest link."""
    mesh = base.mesh
    idle = base.whole_axes()
    slowest = min((a.link for a in mesh.leaves() if a.size > 1), key=slowness, default=None)
    groups = [g for g in (tuple(a for a in idle if mesh.axis(a).link != slowest), idle) if g]
    local = base.local_shape(mesh.first_rank)
    dims = sorted(range(len(base.dims)), key=lambda d: -local[d])
    found = []
    for group in dict.fromkeys(groups):
        for d in dims[:2]:
            cut = evolve(base.dims[d], flat=(*base.dims[d].flat, *(Cut(a, uneven=True) for a in group)))
            found.append(evolve(base, dims=(*base.dims[:d], cut, *base.dims[d + 1 :])))
    return found


def _kept(source: Layout, target: Layout) -> tuple[Pending, ...]:
    """What is pending in both, on the same leaf axes of the same mesh."""
    left, right = source.mesh, target.mesh
    if (left.axes, left.splits, left.first_rank) != (right.axes, right.splits, right.first_rank):
        return ()
    return tuple(p for p in source.owed() if p in target.owed())


def _reductions(source: Layout, target: Layout, itemsize: int, limit: int | None) -> list[tuple[Steps, Layout]]:
    """Ways to reduce what must be: in the exchange itself; where it stands; onto a dim that divides."""
    kept = _kept(source, target)
    ending = [p for p in source.owed() if p not in kept]
    if not ending:
        return [((), source)]
    ways: list[tuple[Steps, Layout]] = []
    one_operator = len({p.op for p in ending}) == 1
    if one_operator:
        ways.append(((), source))
    now = source
    steps: list[Step] = []
    for op in OPS:
        axes = tuple(p.axis for p in ending if p.op == op)
        if axes:
            after = evolve(now, pending=tuple(p for p in now.owed() if p.axis not in axes))
            steps.append(_collective("all_reduce", axes, now, after, itemsize, op))
            now = after
    ways.append((tuple(steps), now))
    if one_operator:
        axes = tuple(p.axis for p in ending)
        for i, dim in enumerate(source.dims):
            if len(dim.factors) == 1 and not dim.flat:
                factor = evolve(dim.factors[0], cuts=(*dim.factors[0].cuts, *axes))
                dims = (*source.dims[:i], evolve(dim, factors=(factor,)), *source.dims[i + 1 :])
                try:
                    after = Layout(source.mesh, dims, kept)
                except ValueError:
                    pass
                else:
                    step = _collective("reduce_scatter", axes, source, after, itemsize, ending[0].op)
                    ways.append(((step,), after))
                    continue
            flat = (*dim.flat, *(Cut(a, uneven=True) for a in axes))
            after = Layout(source.mesh, (*source.dims[:i], evolve(dim, flat=flat), *source.dims[i + 1 :]), kept)
            if after.block_numel() < source.block_numel():
                received, sent, time = measure(source, after, itemsize)
                if limit is None or received <= max(limit, after.block_numel() * itemsize):
                    step = Step("exchange", axes, source, after, received, sent, time >> SHIFT, ending[0].op)
                    ways.append(((step,), after))
    return ways


def _collective(kind: Kind, axes: tuple[str, ...], before: Layout, after: Layout, itemsize: int, op: ReduceOp) -> Step:
    """A reduction, priced as ``cost`` does: fast links first."""
    block = before.block_numel() * itemsize * (2 if kind == "all_reduce" else 1)
    group = [before.mesh.axis(leaf) for a in axes for leaf in before.mesh.expand(a)]
    received = time = 0
    cut = 1
    for link in sorted({a.link for a in group}, key=link_cost):
        ways = math.prod(a.size for a in group if a.link == link)
        if ways > 1:
            cut *= ways
            arriving = -(-block * (ways - 1) // cut)
            received += arriving
            time += link.latency * log2(ways) + arriving * link_cost(link)[1]
    return Step(kind, axes, before, after, received, received, time >> SHIFT, op)


def _before_masks(now: Layout, target: Layout) -> list[Layout]:
    """Layouts of which masks make the target: what there is, if it holds each element once among what becomes pending;
    cut by that as it is now, or whole on it."""
    kept = _kept(now, target)
    whole = evolve(target, pending=kept)
    fresh = [p for p in target.owed() if p not in kept]
    if now.mesh != target.mesh or len({p.op for p in fresh}) != 1:
        return [whole]
    axes = {p.axis for p in fresh}
    dims = tuple(_cut_as_now(a, b, axes) for a, b in zip(now.dims, target.dims, strict=True))
    found = [now] if _held_once(now, target, axes) else []
    found += [] if dims == target.dims else [evolve(whole, dims=dims)]
    return [*found, whole]


def _cut_as_now(now: Dim, target: Dim, axes: set[str]) -> Dim:
    """The target further cut over those of some axes that follow what both have in common now."""
    at = len(target.flat)
    if now.factors != target.factors or now.flat[:at] != target.flat:
        return target
    return evolve(target, flat=(*target.flat, *(c for c in now.flat[at:] if c.axis in axes)))


def _held_once(now: Layout, target: Layout, axes: set[str]) -> bool:
    """Is each element of every block of the target held once among the ranks that differ in some axes, counting of
    those that hold the same only the first?"""
    mesh = now.mesh
    if mesh.size > COUNTED or not now.numel or now.owed() != _kept(now, target):
        return False
    idle = axes & set(now.whole_axes())
    others = [a.name for a in mesh.leaves() if a.name not in axes]
    groups: dict[tuple[int, ...], list[int]] = {}
    for rank in mesh.ranks:
        groups.setdefault(tuple(mesh.coordinate(rank, a) for a in others), []).append(rank)
    for group in groups.values():
        wanted = target.runs(group[0])
        need = math.prod(sum(b - a for a, b in runs) for runs in wanted)
        found = 0
        for rank in group:
            if all(mesh.coordinate(rank, a) == 0 for a in idle):
                common = [intersect_runs(h, w) for h, w in zip(now.runs(rank), wanted, strict=True)]
                found += math.prod(sum(b - a for a, b in runs) for runs in common)
        if found != need:
            return False
    return True


def _moved(now: Layout, base: Layout, target: Layout, itemsize: int, limit: int | None) -> Steps | None:
    """An exchange (or a slice, where nothing is missing), then masks. ``None`` where its buffer is over the cap."""
    kept = _kept(now, target)
    ending = reduced_axes(now, base)
    steps: list[Step] = []
    if now.mesh != base.mesh or not now.equivalent(base):
        received, sent, time = measure(now, base, itemsize)
        if ending and limit is not None and received > max(limit, base.block_numel() * itemsize):
            return None
        op = next((p.op for p in now.owed() if p.axis in ending), None)
        same = now.mesh.axes == base.mesh.axes and now.mesh.first_rank == base.mesh.first_rank
        kind: Kind = "exchange" if received or not same or ending else "slice"
        moving = tuple(a.name for a in now.mesh.axes if a.size > 1)
        axes = tuple(a for a in moving if _differs(now, base, a))
        if kind == "exchange" and not axes:
            axes = moving  # the same axes cut other factors
        steps.append(Step(kind, axes, now, base, received, sent, time >> SHIFT, op))
    for op in OPS:
        fresh = tuple(p for p in target.owed() if p not in kept and p.op == op)
        if fresh:
            # Without those of one rank: the target may cut over them.
            after = evolve(base, dims=target.dims, pending=(*base.owed(), *fresh))
            steps.append(Step("mask", tuple(p.axis for p in fresh), base, after, op=op))
            base = after
    if steps and base.equivalent(target):
        steps[-1] = evolve(steps[-1], target=target)
    return tuple(steps)


def _differs(before: Layout, after: Layout, axis: str) -> bool:
    """Is an axis used in only one of two layouts, or otherwise in both? (Those of another mesh are all used.)"""
    if before.mesh != after.mesh:
        return True

    def use(layout: Layout) -> list[tuple[int, int]]:
        leaves = layout.mesh.expand(axis)
        cuts = [(d, i) for d, dim in enumerate(layout.dims) for i, a in enumerate(dim.axes()) if a in (axis, *leaves)]
        return cuts + [(-1, i) for i, p in enumerate(layout.owed()) if p.axis in leaves]

    return use(before) != use(after)
