"""``plan_transition``: the plan from one layout to another."""

from __future__ import annotations

import math
from functools import lru_cache

from attrs import evolve

from shardlang.diagnostics import ShardlangError, sl04_plans
from shardlang.dtypes import DTYPES
from shardlang.layout import Layout
from shardlang.plan.astar import EXHAUSTIVE, Answer, solve, solve_exhaustively
from shardlang.plan.bounds import bound
from shardlang.plan.cost import Costs
from shardlang.plan.direct import plan_directly
from shardlang.plan.fuse import fused, spread, unfused
from shardlang.plan.plan import WAIVER, Plan
from shardlang.plan.problem import SHIFT, Problem, merged, problem
from shardlang.plan.render import steps_of
from shardlang.plan.steps import Objective


@lru_cache(maxsize=1 << 14)
def plan_transition(
    source: Layout, target: Layout, dtype: str = "f32", *, objective: Objective = "time", cap: float | None = 1.0
) -> Plan:
    """The cheapest plan from ``source`` to ``target`` under a cap on its arrays; the same in every process.

    ``cap`` is in units of the larger end (``None`` lifts it; arrays under 1 MiB are never over it). Raises
    ShardlangError: SL0401 for different shapes, SL0402 for max or min of complex numbers, SL0403 for a cap below 1,
    SL0404 for pending reductions whose order matters.
    """
    _check(source, target, dtype, cap)
    itemsize = DTYPES[dtype].itemsize
    ends = max(source.block_numel(), target.block_numel()) * itemsize
    limit = None if cap is None else max(math.floor(cap * ends), WAIVER)
    asked = problem(source, target, itemsize, limit, objective == "bytes")
    if asked is None:
        return plan_directly(source, target, dtype, objective, cap, limit)
    question = asked.question
    _, missing = bound(Costs(question), question.source, question.target)
    asked, answer = best_path(asked)
    steps = steps_of(asked, source, target, answer.path)
    floor = answer.bound if question.by_bytes else answer.bound >> SHIFT
    received = sum(s.bytes_received for s in steps)
    sent = sum(s.bytes_sent for s in steps)
    return Plan(source, target, dtype, steps, objective, cap, received, sent, missing, floor, answer.complete)


def best_path(asked: Problem) -> tuple[Problem, Answer]:
    """The best of the search among stations and, for a few atoms, the one over every layout."""
    if len(asked.atoms) > EXHAUSTIVE:
        small, made = fused(asked)
        if len(made) < len(asked.atoms):
            spelled, answer = _searched(small)
            path = tuple((spread(state, made), edge) for state, edge in answer.path)
            return unfused(spelled, made, asked), evolve(answer, path=path)
    return _searched(asked)


def _searched(asked: Problem) -> tuple[Problem, Answer]:
    answer = solve(asked.question)
    if len(asked.question.sizes) > EXHAUSTIVE or not answer.path:
        return asked, answer
    costs = Costs(asked.question)
    floor = costs.weigh(*bound(costs, asked.question.source, asked.question.target))
    if costs.primary(answer.cost) <= costs.primary(floor):
        return asked, answer
    joined = merged(asked)
    better = solve_exhaustively(joined.question, answer.cost)
    return (asked, answer) if better is None else (joined, better)


def _check(source: Layout, target: Layout, dtype: str, cap: float | None) -> None:
    if source.shape != target.shape:
        raise ShardlangError(sl04_plans.shapes_differ(str(source), str(target)))
    if cap is not None and cap < 1:
        raise ShardlangError(sl04_plans.cap_below_one(cap))
    for layout in (source, target):
        owed = layout.owed()
        for p in owed:
            if p.op in ("max", "min") and DTYPES[dtype].kind == "complex":
                raise ShardlangError(sl04_plans.no_such_reduction(p.axis, p.op, dtype, str(layout)))
            if (p.op in ("max", "min") or owed[0].op in ("max", "min")) and p.op != owed[0].op:
                first, second = f"{owed[0].op} {owed[0].axis}", f"{p.op} {p.axis}"
                raise ShardlangError(sl04_plans.pending_order(str(layout), first, second))
