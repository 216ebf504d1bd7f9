"""``plan_transition``: the plan from one layout to another."""

from __future__ import annotations

import math
from functools import lru_cache, partial

from attrs import evolve

from shardlang.diagnostics import ShardlangError, sl04_plans
from shardlang.dtypes import DTYPES
from shardlang.layout import Layout
from shardlang.plan.astar import FEW_AXES, Answer, at_once, proved, solve
from shardlang.plan.bounds import bound
from shardlang.plan.cost import Costs
from shardlang.plan.direct import plan_directly
from shardlang.plan.everywhere import search_everywhere
from shardlang.plan.field import Field
from shardlang.plan.fuse import Made, fused, matched, spread, unfused
from shardlang.plan.places import Places, count, places, roomy, single
from shardlang.plan.plan import WAIVER, Plan
from shardlang.plan.problem import SHIFT, Problem, Question, problem
from shardlang.plan.render import steps_of
from shardlang.plan.soonest import received, sooner, time
from shardlang.plan.steps import Objective

PRIME, MOST_ATOMS = 5, 10
"""Up to so many prime atoms the search is on them as well (on more where states are an eighth of ``STATES``); of more
than so many not all states are looked at."""
WORTH = 64
"""Where a plan misses the floor by no more than this share, no finer digits than those that go together are tried."""
STATES = (2600, 2600, 2600, 2600, 8000)
"""By the mesh's axes of more than one rank: up to how many states are looked at all."""
TURNS = (24, 24, 24, 24, 400, 140)
"""By the mesh's axes of more than one rank: how many states the search takes up before it gives up, if they are few."""


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
    if asked is None or not source.numel:
        # An empty tensor has no bytes to move: what its blocks are is told in one step.
        return plan_directly(source, target, dtype, objective, cap, limit)
    question = asked.question
    _, missing = bound(Costs(question), question.source, question.target)
    asked, answer = best_path(asked)
    steps = steps_of(asked, source, target, answer.path)
    floor = answer.bound if question.by_bytes else answer.bound >> SHIFT
    moved = sum(s.bytes_received for s in steps), sum(s.bytes_sent for s in steps)
    return Plan(source, target, dtype, steps, objective, cap, *moved, missing, floor, answer.complete, answer.together)


def best_path(asked: Problem) -> tuple[Problem, Answer]:
    """The best path of a question, and the problem in whose slots it is told."""
    told, answer = _best(asked)
    question = asked.question
    if not question.by_bytes or proved(time(answer), bound(Costs(question), question.source, question.target)[0]):
        return told, answer
    # Of paths that receive as few bytes the fastest: the fastest of all, if it does, else one that is sought for.
    other, found = _best(Problem(evolve(question, by_bytes=False), asked.atoms, asked.slots_of_dim))
    if time(found) < time(answer) and received(found) > received(answer):
        small, made = fused(asked)
        sought = sooner(small, answer, STATES[0], partial(_turns, question))
        if sought is None:
            return told, answer
        other, found = _whole(*sought, made, asked)
    if time(found) >= time(answer):
        return told, answer
    costs = Costs(question)
    path = tuple((state, costs.edge(*edge[1:])) for state, edge in found.path)
    told = Problem(evolve(other.question, by_bytes=True), other.atoms, other.slots_of_dim)
    return told, evolve(answer, path=path, cost=sum(edge[0] for _, edge in path))


def _best(asked: Problem) -> tuple[Problem, Answer]:
    """The best path by the objective alone.

    The search is over all states where they are few: on digits that go together in both ends, then on finer ones.
    """
    small, made = fused(asked)
    told, answer = small, at_once(small.question, asked.question)
    if not answer.complete:
        least = answer.bound
        told, answer = _everywhere(small, least)
        cost = Costs(small.question).primary(answer.cost)
        if proved(cost, least):
            answer = evolve(answer, bound=cost, complete=True)
        elif len(made) < len(asked.question.sizes):
            # Parts of a digit may have ways of their own that nobody looked at: only the floor holds for those.
            answer = evolve(answer, bound=min(least, cost), complete=False, together=answer.complete)
            told, made, answer = _finer(asked, told, made, answer)
    return _whole(told, answer, made, asked)


def _whole(told: Problem, answer: Answer, made: Made, asked: Problem) -> tuple[Problem, Answer]:
    """A path of a fused problem in the atoms of the question."""
    path = tuple((spread(state, made), edge) for state, edge in answer.path)
    return unfused(told, made, asked), evolve(answer, path=path)


def _finer(asked: Problem, told: Problem, made: Made, answer: Answer) -> tuple[Problem, Made, Answer]:
    """The answer or a better one: on prime digits where states are few, else on such as fit where smaller ones are."""
    question, least = asked.question, answer.bound
    cost = Costs(question).primary(answer.cost)
    if not single(asked):
        return told, made, answer
    most = STATES[min(question.axes, len(STATES) - 1)]
    prime = tuple((a,) for a in range(len(question.sizes)))
    costs, allowed = _states(asked)
    if len(prime) <= PRIME or count(allowed) <= most // 8:
        field = Field(costs, allowed)
        found = search_everywhere(costs, field, _turns(question, len(field)), ceiling=cost, least=least)
        if found.path:
            return roomy(asked), prime, found
        return told, made, evolve(answer, bound=found.bound, complete=found.complete)
    apart = matched(asked, made) if cost - least > cost // WORTH else frozenset[int]()
    between, parts = fused(asked, apart)
    if apart and single(between):
        costs, allowed = _states(between)
        if count(allowed) <= most:
            field = Field(costs, allowed)
            found = search_everywhere(costs, field, _turns(question, len(field)), ceiling=cost, least=least)
            if found.path:
                together = answer.together or found.complete
                return roomy(between), parts, evolve(found, bound=least, complete=False, together=together)
    return told, made, answer


def _states(asked: Problem) -> tuple[Costs, Places]:
    """Where the atoms of a problem may be on the way, in all."""
    costs = Costs(roomy(asked).question)
    return costs, places(costs, foreign=True)


def _everywhere(asked: Problem, least: int) -> tuple[Problem, Answer]:
    """The search over all states, or among fewer where there are too many."""
    question = asked.question
    if not single(asked) or len(question.sizes) > MOST_ATOMS:
        return asked, evolve(solve(question), bound=least)
    room = roomy(asked)
    costs = Costs(room.question)
    most = STATES[min(question.axes, len(STATES) - 1)]
    allowed = places(costs, foreign=True)
    if count(allowed) <= most:
        field = Field(costs, allowed)
        return room, search_everywhere(costs, field, _turns(question, len(field)), least=least)
    other = solve(question)
    allowed = places(costs, foreign=False)
    if question.axes > FEW_AXES and count(allowed) <= most:
        field = Field(costs, allowed)
        found = search_everywhere(costs, field, _turns(question, len(field)), ceiling=costs.primary(other.cost))
        if found.path:
            # Among so few places nothing is proved.
            return room, evolve(found, bound=min(least, costs.primary(found.cost)), complete=False)
    return asked, evolve(other, bound=least, complete=proved(costs.primary(other.cost), least))


def _turns(question: Question, states: int) -> int:
    """How many states the search may take up: more for meshes of more axes, fewer where each costs more."""
    return TURNS[min(question.axes, len(TURNS) - 1)] * 1000 // (1000 + states)


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
