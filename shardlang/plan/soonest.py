"""Of plans that receive as few bytes, the fastest: what ``objective bytes`` leaves open."""

from __future__ import annotations

from collections.abc import Callable

from attrs import evolve

from shardlang.plan.astar import Answer, solve
from shardlang.plan.cost import Costs
from shardlang.plan.everywhere import Within, search_everywhere
from shardlang.plan.field import Field
from shardlang.plan.places import count, places, roomy, single
from shardlang.plan.problem import Problem


def received(answer: Answer) -> int:
    return sum(edge[2] for _, edge in answer.path)


def time(answer: Answer) -> int:
    """Units of 2^-SHIFT ps."""
    return sum(edge[4] for _, edge in answer.path)


def sooner(small: Problem, answer: Answer, states: int, turns: Callable[[int], int]) -> tuple[Problem, Answer] | None:
    """A faster path of a question that receives no more; ``None`` where none is found.

    The search is over all states where they are no more than ``states``, and takes up so many ``turns`` of so many.
    """
    if single(small):
        room = roomy(small)
        timed = Costs(evolve(room.question, by_bytes=False))
        allowed = places(timed, foreign=True)
        if count(allowed) <= states:
            within = Within(Field(Costs(room.question), allowed), received(answer))
            field = Field(timed, allowed)
            found = search_everywhere(timed, field, turns(len(field)), ceiling=time(answer), within=within)
            if found.path and received(found) <= within.most and time(found) < time(answer):
                return room, found
            return None
    found = solve(small.question)
    if received(found) <= received(answer) and time(found) < time(answer):
        return small, found
    return None


__all__ = ["received", "sooner", "time"]
