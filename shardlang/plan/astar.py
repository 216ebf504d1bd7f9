"""A*: the cheapest way from a state to the target, bounded by states visited, never by time (ranks must agree).

The graph's edges are all named steps (slices, gathers, all-to-alls, reductions, permutations) and exchanges to
*stations*: the target, layouts a step or two short of it, and those that balance the crossing of slow links. With up to
``EXHAUSTIVE`` atoms every layout is a station, so that the search is over all plans. Ties are broken by bytes, then by
the number of collectives, then by kind, then by the states themselves: the same question has one answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from heapq import heappop, heappush

from attrs import frozen

from shardlang.plan.bounds import bound
from shardlang.plan.cost import Costs, Edge, between
from shardlang.plan.moves import every_state, fits, is_goal, neighbours, stations
from shardlang.plan.problem import Question, State

VISITS = 250
"""States whose neighbours are looked at before the best plan so far is taken."""
EXHAUSTIVE = 3


@frozen
class Answer:
    """A path: each step and the state after it. ``bound`` is the least that any path can cost, in the objective's unit
    (units of 2^-SHIFT ps, or bytes); ``complete``: the search ended by itself."""

    path: tuple[tuple[State, Edge], ...]
    cost: int
    bound: int
    complete: bool
    visits: int = 0


@lru_cache(maxsize=1 << 14)
def solve(question: Question) -> Answer:
    """The best path among named steps and exchanges to stations."""
    return _search(Costs(question), None, None)


@lru_cache(maxsize=1 << 12)
def solve_exhaustively(question: Question, ceiling: int) -> Answer | None:
    """The best path among all layouts if it is cheaper than ``ceiling``; ``None`` if there is none."""
    costs = Costs(question)
    answer = _search(costs, [s for s in every_state(costs) if fits(costs, s)], ceiling)
    return answer if answer.path else None


def _search(costs: Costs, where: Iterable[State] | None, ceiling: int | None) -> Answer:
    start, target = costs.question.source, costs.question.target
    if is_goal(costs, start):
        return Answer((), 0, 0, True)
    lows: dict[State, int] = {}

    def low(state: State) -> int:
        found = lows.get(state)
        if found is None:
            found = lows[state] = costs.weigh(*bound(costs, state, target))
        return found

    floor = costs.primary(low(start))
    best, end = ceiling, None
    reached: dict[State, int] = {start: 0}
    came: dict[State, tuple[State, Edge]] = {}
    heap: list[tuple[int, int, State]] = [(low(start), 0, start)]
    done: set[State] = set()
    visits = 0
    if where is None:
        where = stations(costs)
    while heap:
        f, cost, state = heappop(heap)
        if best is not None and (f >= best or costs.primary(best) <= floor):
            break
        if state in done:
            continue
        if visits >= VISITS and best is not None:
            return Answer(_path(came, start, end), best, max(floor, costs.primary(f)), False, visits)
        visits += 1
        done.add(state)
        tried = {state}
        for many in (neighbours(costs, state), where):
            for after in many:
                if after in tried:
                    continue
                tried.add(after)
                if after in done or not fits(costs, after):
                    continue
                if best is not None and cost + low(after) >= best:
                    continue
                edge = between(costs, state, after)
                if edge is None:
                    continue
                total = cost + edge[0]
                if total >= reached.get(after, total + 1) or (best is not None and total + low(after) >= best):
                    continue
                reached[after] = total
                came[after] = (state, edge)
                if is_goal(costs, after):
                    best, end = total, after
                else:
                    heappush(heap, (total + low(after), total, after))
    if end is None:
        assert ceiling is not None, "every target can be reached"
        return Answer((), ceiling, costs.primary(ceiling), True, visits)
    assert best is not None
    return Answer(_path(came, start, end), best, costs.primary(best), True, visits)


def _path(came: dict[State, tuple[State, Edge]], start: State, end: State | None) -> tuple[tuple[State, Edge], ...]:
    path: list[tuple[State, Edge]] = []
    while end is not None and end != start:
        before, edge = came[end]
        path.append((end, edge))
        end = before
    return tuple(reversed(path))
