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
from typing import cast

from attrs import frozen

from shardlang.plan.bounds import bound
from shardlang.plan.cost import Costs, Edge, between, log2
from shardlang.plan.moves import every_state, fits, homeward, is_goal, neighbours, stations, whole
from shardlang.plan.problem import Question, State

LOOKS = 8000
"""Steps whose price is asked before the best plan so far is taken."""
EXHAUSTIVE = 3


@frozen
class Answer:
    """A path: each step and the state after it. ``bound`` is the least that any path can cost, in the objective's unit
    (units of 2^-SHIFT ps, or bytes); ``complete``: the search ended by itself."""

    path: tuple[tuple[State, Edge], ...]
    cost: int
    bound: int
    complete: bool
    looks: int = 0


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


class _Search:
    """The open ends of one search, and the best path so far."""

    __slots__ = ("best", "came", "costs", "done", "end", "heap", "looks", "lows", "reached", "target")

    def __init__(self, costs: Costs, ceiling: int | None) -> None:
        self.costs = costs
        self.target = costs.question.target
        self.best, self.end = ceiling, cast("State | None", None)
        self.reached: dict[State, int] = {costs.question.source: 0}
        self.came: dict[State, tuple[State, Edge]] = {}
        self.heap: list[tuple[int, int, State]] = []
        self.done: set[State] = set()
        self.lows: dict[State, int] = {}
        self.looks = 0

    def low(self, state: State) -> int:
        """What the way from a state to the target costs at least."""
        found = self.lows.get(state)
        if found is None:
            found = self.lows[state] = self.costs.weigh(*bound(self.costs, state, self.target))
        return found

    def look(self, state: State, cost: int, after: State) -> None:
        """Takes the step from one state, reached at a cost, to another, if it may be on the best path."""
        least = cost + self.low(after)
        if (self.best is not None and least >= self.best) or after in self.done or not fits(self.costs, after):
            return
        self.looks += 1
        edge = between(self.costs, state, after)
        if edge is None:
            return
        total = cost + edge[0]
        if total >= self.reached.get(after, total + 1):
            return
        through = total + self.lows[after]
        if self.best is not None and through >= self.best:
            return
        self.reached[after] = total
        self.came[after] = (state, edge)
        if is_goal(self.costs, after):
            self.best, self.end = total, after
        else:
            heappush(self.heap, (through, total, after))


def _search(costs: Costs, where: Iterable[State] | None, ceiling: int | None) -> Answer:
    start = costs.question.source
    if is_goal(costs, start):
        return Answer((), 0, 0, True)
    search = _Search(costs, ceiling)
    floor = costs.primary(search.low(start))
    direct = (costs.question.target[0], start[1] & costs.question.kept)
    sliced = (homeward(costs, start[0], whole(costs, start))[0], start[1])
    search.look(start, 0, direct)
    if sliced != start:
        search.look(start, 0, sliced)
        if sliced in search.came:
            search.look(sliced, 0, direct)
    heappush(search.heap, (search.low(start), 0, start))
    ranked: list[tuple[int, State]] | None = None
    while search.heap:
        least, cost, state = heappop(search.heap)
        if search.best is not None:
            if least >= search.best or costs.primary(search.best) <= floor:
                break
            if search.looks >= LOOKS:
                shown = max(floor, costs.primary(least))
                return Answer(_path(search, start), search.best, shown, False, search.looks)
        if state in search.done:
            continue
        search.done.add(state)
        tried = {state}
        for after in neighbours(costs, state):
            if after not in tried:
                tried.add(after)
                search.look(state, cost, after)
        if ranked is None:
            found = stations(costs) if where is None else where
            ranked = sorted((search.low(s) + _least(costs, s), s) for s in found)
        for entry, after in ranked:
            if search.best is not None and cost + entry >= search.best:
                break
            if after not in tried:
                search.look(state, cost, after)
    assert search.best is not None, "every target can be reached"
    return Answer(_path(search, start), search.best, costs.primary(search.best), True, search.looks)


def _least(costs: Costs, state: State) -> int:
    """What any step that sends anything costs at least if it ends here: half a block from one other rank."""
    half = costs.block(state) // 2
    return costs.weigh(min(costs.latency) * log2(2) + half * min(costs.rate), half)


def _path(search: _Search, start: State) -> tuple[tuple[State, Edge], ...]:
    """The best path; none where it is no better than the ceiling."""
    path: list[tuple[State, Edge]] = []
    state = search.end
    while state is not None and state != start:
        before, edge = search.came[state]
        path.append((state, edge))
        state = before
    return tuple(reversed(path))
