"""Finds the plan of a transition."""

from __future__ import annotations

from functools import lru_cache

from shardlang.dtypes import DTYPES
from shardlang.layout import Layout, Pending, ReduceOp
from shardlang.plan.exchange import transfers
from shardlang.plan.plan import Plan
from shardlang.plan.steps import Objective, Step


OPS: tuple[ReduceOp, ...] = ("sum", "avg", "max", "min")


@lru_cache(maxsize=4096)
def plan_transition(
    source: Layout, target: Layout, dtype: str = "f32", *, objective: Objective = "time", cap: float | None = 1.0
) -> Plan:
    itemsize = DTYPES[dtype].itemsize
    steps: list[Step] = []
    now = source
    kept = tuple(p for p in source.owed() if p in target.owed())
    for op in OPS:
        axes = tuple(p.axis for p in now.owed() if p not in kept and p.op == op)
        if axes:
            after = Layout(now.mesh, now.dims, tuple(p for p in now.owed() if p.axis not in axes))
            n = 2 * now.block_numel() * itemsize
            steps.append(Step("all_reduce", axes, now, after, n, n, n, op))
            now = after
    before_mask = Layout(target.mesh, target.dims, kept)
    if not (now.mesh == before_mask.mesh and now.equivalent(before_mask)):
        received: dict[int, int] = {}
        sent: dict[int, int] = {}
        for t in transfers(now, before_mask):
            if t.sender != t.receiver:
                received[t.receiver] = received.get(t.receiver, 0) + t.numel * itemsize
                sent[t.sender] = sent.get(t.sender, 0) + t.numel * itemsize
        n, m = max(received.values(), default=0), max(sent.values(), default=0)
        axes = tuple(a.name for a in now.mesh.axes)
        steps.append(Step("exchange" if n else "slice", axes, now, before_mask, n, m, max(n, m)))
        now = before_mask
    for op in OPS:
        axes = tuple(p.axis for p in target.owed() if p not in kept and p.op == op)
        if axes:
            after = Layout(now.mesh, now.dims, (*now.pending, *(Pending(a, op) for a in axes)))
            steps.append(Step("mask", axes, now, after, op=op))
            now = after
    received_bytes = sum(s.bytes_received for s in steps)
    return Plan(
        source, target, dtype, tuple(steps), objective, cap, received_bytes, sum(s.bytes_sent for s in steps), 0, 0
    )
