"""The plan of a transition, the cheapest one where axes were left to choose."""

from __future__ import annotations

from collections.abc import Iterable

from shardlang.check.transition import Transition
from shardlang.plan.plan import Plan
from shardlang.plan.search import plan_transition
from shardlang.plan.steps import Objective


def plan_cheapest(ways: Iterable[Transition], *, objective: Objective = "time", cap: float | None = 1.0) -> Plan:
    """The cheapest plan of several transitions by the objective, then by the other; of equal ones the first.

    Raises ShardlangError: SL0401 to SL0404, as ``plan_transition``.
    """
    plans = [plan_transition(w.source, w.target, w.dtype, objective=objective, cap=cap) for w in ways]
    return min(plans, key=lambda plan: (plan.cost, plan.time, plan.bytes_received))
