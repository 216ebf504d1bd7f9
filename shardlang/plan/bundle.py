"""Many tensors in one plan: steps of one kind, group and dtype share flat buffers of bounded size.

The first steps of all tensors come first, then the second ones, and so on. Steps up to ``SMALL`` are packed, in the
order of the tensors, into buffers of at most ``BUCKET``; larger ones go alone, since packing them would cost a copy and
save nothing. So the number of collectives grows with the groups, not with the tensors.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, lru_cache

from attrs import evolve, frozen

from shardlang.layout import Layout, ReduceOp
from shardlang.mesh import PICO, Link, Mesh
from shardlang.plan.cost import log2
from shardlang.plan.plan import Plan
from shardlang.plan.problem import SHIFT, link_cost
from shardlang.plan.search import plan_transition
from shardlang.plan.steps import FREE, Kind, Objective, Step

SMALL = 1 << 20
"""Bytes of the larger end of a step up to which it is packed."""
BUCKET = 16 << 20
"""Bytes of a packed buffer at most."""


@frozen
class Packed:
    """One collective for steps of several tensors. Bytes are those of the worst rank, time is in picoseconds."""

    kind: Kind
    axes: tuple[str, ...]
    mesh: Mesh
    dtype: str
    op: ReduceOp | None
    members: tuple[tuple[int, int], ...]
    """(tensor, index of the step in its plan)."""
    buffer: int
    bytes_received: int
    bytes_sent: int
    time: int


@frozen(slots=False)
class Bundle:
    """The plans of many tensors, and the collectives that carry them out together, in order."""

    plans: tuple[Plan, ...]
    collectives: tuple[Packed, ...]

    @property
    def bytes_received(self) -> int:
        return sum(c.bytes_received for c in self.collectives)

    @property
    def seconds(self) -> float:
        return sum(c.time for c in self.collectives) / PICO

    @property
    def largest_buffer(self) -> int:
        """Bytes of the largest packed buffer (0 where nothing is packed)."""
        return max((c.buffer for c in self.collectives if len(c.members) > 1), default=0)

    @cached_property
    def hash(self) -> str:
        digest = hashlib.sha256()
        for plan in self.plans:
            digest.update(plan.hash.encode())
        for c in self.collectives:
            digest.update(f"{c.kind} {c.axes} {c.members}".encode())
        return digest.hexdigest()[:16]


def plan_bundle(
    transitions: Iterable[tuple[Layout, Layout, str]], *, objective: Objective = "time", cap: float | None = 1.0
) -> Bundle:
    """One plan for many tensors: (source, target, dtype) of each. Raises as ``plan_transition``."""
    plans = tuple(plan_transition(s, t, dtype, objective=objective, cap=cap) for s, t, dtype in transitions)
    collectives: list[Packed] = []
    for depth in range(max((len(p.steps) for p in plans), default=0)):
        kinds: dict[tuple[object, ...], list[int]] = {}
        for i, plan in enumerate(plans):
            if depth < len(plan.steps) and plan.steps[depth].kind not in FREE:
                step = plan.steps[depth]
                large = _buffer(step, plan) > SMALL
                key = (
                    step.kind,
                    step.axes,
                    _nameless(step.source.mesh),
                    _nameless(step.target.mesh),
                    step.op,
                    plan.dtype,
                    i if large else -1,
                )
                kinds.setdefault(key, []).append(i)
        for members in kinds.values():
            for bucket in _buckets(members, [_buffer(plans[i].steps[depth], plans[i]) for i in members]):
                collectives.append(_packed([plans[i] for i in bucket], bucket, depth))
    return Bundle(plans, tuple(collectives))


@lru_cache(maxsize=256)
def _nameless(mesh: Mesh) -> Mesh:
    """A mesh as far as steps go: what a file calls it does not count."""
    return evolve(mesh, name="")


def _buffer(step: Step, plan: Plan) -> int:
    """Bytes of the larger end of a step."""
    return max(step.source.block_numel(), step.target.block_numel()) * plan.itemsize


def _buckets(members: Sequence[int], sizes: Sequence[int]) -> Iterator[list[int]]:
    bucket: list[int] = []
    filled = 0
    for member, size in zip(members, sizes, strict=True):
        if bucket and filled + size > BUCKET:
            yield bucket
            bucket, filled = [], 0
        bucket.append(member)
        filled += size
    if bucket:
        yield bucket


def _packed(plans: Sequence[Plan], members: Sequence[int], depth: int) -> Packed:
    """Bytes add up; latency is paid once (that of the slowest member, for exchanges whose peers differ)."""
    steps = [p.steps[depth] for p in plans]
    first = steps[0]
    latency = [s.time - _carrying(s) for s in steps]
    return Packed(
        first.kind,
        first.axes,
        first.source.mesh,
        plans[0].dtype,
        first.op,
        tuple((i, depth) for i in members),
        sum(_buffer(s, p) for s, p in zip(steps, plans, strict=True)),
        sum(s.bytes_received for s in steps),
        sum(s.bytes_sent for s in steps),
        sum(s.time for s in steps) - (sum(latency) - max(latency)),
    )


def _carrying(step: Step) -> int:
    """The part of a step's time that is not latency, in picoseconds: never more than leaves its group's latency."""
    mesh = step.source.mesh
    links: dict[Link, int] = {}
    for name in step.axes:
        axis = mesh.axis(name)
        links[axis.link] = links.get(axis.link, 0) + log2(axis.size)
    if step.kind in ("exchange", "permute"):
        # Who hears from whom is not told by the group; at least one other rank, over the fastest link.
        latency = min((x.latency for x in links), default=0) * log2(2)
    else:
        latency = sum(x.latency * logs for x, logs in links.items())
    least = max(step.bytes_received, step.bytes_sent) * min((link_cost(x)[1] for x in links), default=0)
    return max(step.time - (latency >> SHIFT), min(step.time, least >> SHIFT))
