"""A plan: the steps from one layout to another, what they cost, and what is known about how good that is."""

from __future__ import annotations

import hashlib
import json
import math
from fractions import Fraction
from functools import cached_property
from typing import Any

from attrs import frozen

from shardlang.diagnostics import ShardlangError, sl04_plans
from shardlang.dtypes import DTYPES
from shardlang.layout import Layout, Pending
from shardlang.mesh import PICO, Mesh
from shardlang.plan.steps import FREE, Objective, Step

WAIVER = 1 << 20
"""Bytes: an array this small is never over the cap."""


@frozen(slots=False)
class Plan:
    """The steps from ``source`` to ``target``, in order; none where both are the same.

    Bytes are those of the worst rank. ``bytes_bound`` is what some rank needs and does not hold; ``bound`` is the
    least that any plan can cost in the unit of the objective (picoseconds or bytes), and the search proved it to be
    ``cost`` where it was ``complete``. Where it was so only among plans that move as one the digits that go together in
    both ends, it is ``complete_together``. ``cap`` is in units of the larger of the two ends; ``None`` lifts it.
    """

    source: Layout
    target: Layout
    dtype: str
    steps: tuple[Step, ...]
    objective: Objective
    cap: float | None
    bytes_received: int
    bytes_sent: int
    bytes_bound: int
    bound: int
    complete: bool = False
    complete_together: bool = False

    def __str__(self) -> str:
        steps = ", then ".join(f"{s.kind} {'/'.join(s.axes)} to {s.target}" for s in self.steps) or "nothing to do"
        return (
            f"{self.dtype}{self.source} => {self.target}: {steps}; {self.bytes_received} B received,"
            f" {self.seconds * 1e6:.1f} us"
        )

    @property
    def itemsize(self) -> int:
        return DTYPES[self.dtype].itemsize

    @property
    def time(self) -> int:
        """Modelled time in picoseconds."""
        return sum(s.time for s in self.steps)

    @property
    def seconds(self) -> float:
        return self.time / PICO

    @property
    def cost(self) -> int:
        """What the objective counts: picoseconds, or bytes received by the worst rank."""
        return self.time if self.objective == "time" else self.bytes_received

    @property
    def gap(self) -> float:
        """By which share of its cost the plan may miss the least: 0 where the search was complete."""
        return 0.0 if self.complete or self.cost <= self.bound else 1 - self.bound / self.cost

    @property
    def collectives(self) -> int:
        """The number of steps that send anything."""
        return sum(s.kind not in FREE for s in self.steps)

    @property
    def ends_bytes(self) -> int:
        """The larger of source and destination, in bytes of the largest block."""
        return max(self.source.block_numel(), self.target.block_numel()) * self.itemsize

    @property
    def largest_array_bytes(self) -> int:
        arrays = [self.source.block_numel(), self.target.block_numel()]
        arrays += [largest_array(s, self.itemsize) // self.itemsize for s in self.steps]
        return max(arrays) * self.itemsize

    @property
    def largest_array_ratio(self) -> float:
        """The largest array over the larger of source and destination (1.0 where both are empty)."""
        return self.largest_array_bytes / self.ends_bytes if self.ends_bytes else 1.0

    @property
    def live_peak_bytes(self) -> int:
        """What is alive at once at worst: a step's source and target and its staging buffers."""
        ends = [self.source.block_numel() * self.itemsize]
        return max(ends + [live_bytes(s, self.itemsize) for s in self.steps])

    @cached_property
    def hash(self) -> str:
        """Names the plan: equal for the same question and answer in every process."""
        said = {
            "source": [_mesh_text(self.source.mesh), str(self.source)],
            "target": [_mesh_text(self.target.mesh), str(self.target)],
            "dtype": self.dtype,
            "objective": self.objective,
            "cap": self.cap,
            "steps": [
                [s.kind, list(s.axes), _mesh_text(s.target.mesh), str(s.target), s.op, str(s.scale)] for s in self.steps
            ],
        }
        return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:16]

    def to_json(self) -> dict[str, Any]:
        """The object that ``shardlang plan --format json`` prints."""
        return {
            "steps": [
                {
                    "kind": s.kind,
                    "axes": list(s.axes),
                    "bytes_received": s.bytes_received,
                    "bytes_sent": s.bytes_sent,
                    "seconds": s.time / PICO,
                    "layout": str(s.target),
                }
                for s in self.steps
            ],
            "bytes_received": self.bytes_received,
            "bytes_sent": self.bytes_sent,
            "bytes_bound": self.bytes_bound,
            "largest_array_ratio": self.largest_array_ratio,
            "live_peak_bytes": self.live_peak_bytes,
            "collectives": self.collectives,
            "seconds": self.seconds,
            "hash": self.hash,
        }

    def transpose(self) -> Plan:
        """The plan of the dual transition, which carries the gradient: from that of the target to that of the source.

        The gradient of a split value is split alike, that of a whole value and of a pending sum is whole; a pending
        average scales. Raises ShardlangError (SL0405) for a pending max or min, whose gradient needs the values.
        """
        from shardlang.plan.search import plan_transition

        for side in (self.source, self.target):
            for owed in side.owed():
                if owed.op in ("max", "min"):
                    raise ShardlangError(sl04_plans.no_dual(owed.axis, owed.op, str(side)))
        plan = plan_transition(dual(self.target), dual(self.source), self.dtype, objective=self.objective, cap=self.cap)
        factor = Fraction(_averaged(self.target), _averaged(self.source))
        if factor == 1:
            return plan
        start = plan.source
        return evolve_steps(plan, (Step("scale", (), start, start, scale=factor), *plan.steps))


def evolve_steps(plan: Plan, steps: tuple[Step, ...]) -> Plan:
    """The same plan with other steps (its costs are left as they are)."""
    from attrs import evolve

    return evolve(plan, steps=steps)


def dual(layout: Layout) -> Layout:
    """The layout of the gradient of a value in ``layout``: split alike, whole where it was whole or pending."""
    return Layout(layout.mesh, layout.dims)


def _averaged(layout: Layout) -> int:
    return math.prod(layout.mesh.axis(p.axis).size for p in layout.owed() if p.op == "avg")


def largest_array(step: Step, itemsize: int) -> int:
    """Bytes of the largest array of a step. What an exchange receives is one buffer, its parts not yet added up."""
    ends = max(step.source.block_numel(), step.target.block_numel()) * itemsize
    return max(ends, step.bytes_received) if step.kind == "exchange" else ends


def live_bytes(step: Step, itemsize: int) -> int:
    """Bytes alive at once on the worst rank: source, target, and the step's packed buffers."""
    before, after = step.source.block_numel() * itemsize, step.target.block_numel() * itemsize
    staging = {
        "all_gather": after,
        "all_to_all": before + after,
        # Its pieces packed, and those of the others until they are added up.
        "reduce_scatter": 2 * before,
        # A rank's share of the sum, beside the room of the result that the parts came into.
        "all_reduce": after // 2,
        "exchange": step.bytes_sent + step.bytes_received,
    }
    return before + after + staging.get(step.kind, 0)


def _mesh_text(mesh: Mesh) -> str:
    axes = [f"{a.name}:{a.size}@{a.link.name},{a.link.bandwidth},{a.link.latency}" for a in mesh.axes]
    splits = [f"{n}={'*'.join(f'{p.name}:{p.size}' for p in parts)}" for n, parts in sorted(mesh.splits.items())]
    return f"{' * '.join(axes)} ranks {mesh.first_rank}.. {' '.join(splits)}"


__all__ = ["Pending", "Plan", "dual", "largest_array", "live_bytes"]
