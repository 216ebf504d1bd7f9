"""Plans where no common digits say both layouts (uneven cuts, other ranks): reductions, one exchange, a mask."""

from __future__ import annotations

import math

from attrs import evolve

from shardlang.dtypes import DTYPES
from shardlang.layout import Dim, Layout, Pending, ReduceOp
from shardlang.plan.cost import log2
from shardlang.plan.exchange import reduced_axes
from shardlang.plan.plan import Plan
from shardlang.plan.problem import SHIFT, link_cost
from shardlang.plan.render import OPS
from shardlang.plan.steps import Kind, Objective, Step
from shardlang.plan.uneven import measure

Steps = tuple[Step, ...]


def plan_directly(
    source: Layout, target: Layout, dtype: str, objective: Objective, cap: float | None, limit: int | None
) -> Plan:
    """The best of a few plans with one exchange. ``limit`` is the largest array under the cap, in bytes."""
    itemsize = DTYPES[dtype].itemsize
    found: list[Steps] = []
    for steps, now in _reductions(source, target, itemsize):
        for base in _before_masks(now, target):
            last = _moved(now, base, target, itemsize, limit)
            if last is not None:
                found.append(steps + last)

    def order(steps: Steps) -> tuple[int, int, int]:
        received, time = sum(s.bytes_received for s in steps), sum(s.time for s in steps)
        first, second = (received, time) if objective == "bytes" else (time, received)
        return first, second, len(steps)

    steps = min(found, key=order)
    received, sent = sum(s.bytes_received for s in steps), sum(s.bytes_sent for s in steps)
    missing = received
    if target.owed():
        missing = 0
    elif source.owed():
        # Every element of a reduced value comes at least once from another rank.
        missing = min(received, target.block_numel() * itemsize)
    floor = missing
    if objective == "time":
        floor = _least_time(source, target, missing)
    return Plan(source, target, dtype, steps, objective, cap, received, sent, missing, floor, order(steps)[0] <= floor)


def _least_time(source: Layout, target: Layout, missing: int) -> int:
    """Picoseconds in which a rank can hear from one other on the fastest link."""
    links = {a.link for layout in (source, target) for a in layout.mesh.axes}
    if not missing or not links:
        return 0
    return (min(x.latency for x in links) * log2(2) + missing * min(link_cost(x)[1] for x in links)) >> SHIFT


def _kept(source: Layout, target: Layout) -> tuple[Pending, ...]:
    """What is pending in both, on the same leaf axes of the same mesh."""
    left, right = source.mesh, target.mesh
    if (left.axes, left.splits, left.first_rank) != (right.axes, right.splits, right.first_rank):
        return ()
    return tuple(p for p in source.owed() if p in target.owed())


def _reductions(source: Layout, target: Layout, itemsize: int) -> list[tuple[Steps, Layout]]:
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
                    continue
                step = _collective("reduce_scatter", axes, source, after, itemsize, ending[0].op)
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
    """Layouts of which masks make the target: whole on the axes that become pending, or cut by them as now."""
    kept = _kept(now, target)
    whole = evolve(target, pending=kept)
    fresh = [p for p in target.owed() if p not in kept]
    if now.mesh != target.mesh or len({p.op for p in fresh}) != 1:
        return [whole]
    axes = {p.axis for p in fresh}
    dims = tuple(_cut_as_now(a, b, axes) for a, b in zip(now.dims, target.dims, strict=True))
    return [whole] if dims == target.dims else [evolve(whole, dims=dims), whole]


def _cut_as_now(now: Dim, target: Dim, axes: set[str]) -> Dim:
    """``now`` where the target is that without its last flat cuts, all over some of ``axes``; else the target."""
    at = len(target.flat)
    same = now.factors == target.factors and now.flat[:at] == target.flat
    return now if same and {c.axis for c in now.flat[at:]} <= axes else target


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
            after = evolve(base, dims=target.dims, pending=(*base.pending, *fresh))
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
