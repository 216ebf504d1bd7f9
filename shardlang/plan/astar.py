"""A good plan where there are too many states to look at all: A* among a few, bounded by prices asked, never by time.

The graph's edges are all named steps (slices, gathers, all-to-alls, reductions, permutations) and exchanges to
*stations*: the target, layouts a step or two short of it, and those that balance the crossing of slow links. Ties are
broken by bytes, then by the number of collectives, then by kind, then by the states themselves: the same question has
one answer. How good it is, is said by the lower bound alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from heapq import heappop, heappush

from attrs import frozen

from shardlang.plan.bounds import bound
from shardlang.plan.cost import Costs, Edge, between, log2
from shardlang.plan.floor import floor
from shardlang.plan.moves import fits, goals, homeward, is_goal, neighbours, whole
from shardlang.plan.problem import Question, State
from shardlang.plan.stations import stations

DIVE, LOOKS = 900, 1600
"""Prices asked: by a first, greedy search for a good plan, then by the wide one."""
MASKED = 16
"""Of states from which a mask leads to the target so many are looked at first."""
NAMED = {"slice", "all_gather", "all_to_all", "reduce_scatter", "all_reduce"}
"""Kinds that back ends do well."""
FEW_AXES = 3
"""Up to so many axes a quarter of that is enough."""


@frozen
class Answer:
    """A path: each step and the state after it. ``bound`` is the least that any path can cost, in the objective's unit
    (units of 2^-SHIFT ps, or bytes); ``complete``: no path is cheaper; ``together``: none is of those that move as one
    what goes together in both ends."""

    path: tuple[tuple[State, Edge], ...]
    cost: int
    bound: int
    complete: bool
    looks: int = 0
    together: bool = False


class _Search:
    """The open ends of one search, and the best path so far. ``lows`` bound the way from each state from below."""

    __slots__ = ("best", "came", "costs", "done", "greed", "heap", "looks", "lows", "path", "ranked", "reached")

    def __init__(self, costs: Costs) -> None:
        self.costs = costs
        self.best: int | None = None
        self.path: tuple[tuple[State, Edge], ...] = ()
        self.lows: dict[State, int] = {}
        self.looks = 0
        self.ranked: list[tuple[int, State]] | None = None
        self.restart(0)

    def restart(self, greed: int) -> None:
        """Opens the source alone; with ``greed``, states near the target come before those on a short way."""
        start = self.costs.question.source
        self.greed = greed
        self.reached: dict[State, int] = {start: 0}
        self.came: dict[State, tuple[State, Edge]] = {}
        self.done: set[State] = set()
        self.heap: list[tuple[int, int, int, State]] = [(self.low(start), 0, 0, start)]

    def directly(self) -> None:
        """Looks at one exchange, and at one after slicing what may be sliced on the way home."""
        costs, start = self.costs, self.costs.question.source
        direct = (costs.question.target[0], start[1] & costs.question.kept)
        self.look(start, 0, direct)
        sliced = (homeward(costs, start[0], whole(costs, start))[0], start[1])
        if sliced != start:
            self.look(start, 0, sliced)
            if sliced in self.came:
                self.look(sliced, 0, direct)

    def masked(self) -> None:
        """Looks at one step to what a mask makes the target, and at one after slicing what it cuts besides."""
        costs, start = self.costs, self.costs.question.source
        free = whole(costs, start)
        for goal in goals(costs)[:MASKED]:
            self.look(start, 0, goal)
            slots = tuple(
                b if b[: len(a)] == a and all(free >> x & 1 for x in b[len(a) :]) else a
                for a, b in zip(start[0], goal[0], strict=True)
            )
            sliced = (slots, start[1])
            if slots != start[0]:
                self.look(start, 0, sliced)
                if sliced in self.came:
                    self.look(sliced, 0, goal)

    def rank(self, where: Iterable[State]) -> None:
        self.ranked = sorted((self.low(s) + _least(self.costs, s), s) for s in where)

    def low(self, state: State) -> int:
        """What the way from a state to the target costs at least."""
        found = self.lows.get(state)
        if found is None:
            found = self.lows[state] = self.costs.weigh(*bound(self.costs, state, self.costs.question.target))
        return found

    def look(self, state: State, cost: int, after: State) -> None:
        """Takes the step from one state, reached at a cost, to another, if it may be on the best path."""
        low = self.lows.get(after)
        if low is None:
            low = self.low(after)
        best = self.best
        if (best is not None and cost + low >= best) or self.reached.get(after, cost + 1) <= cost:
            return
        if not fits(self.costs, after):
            return
        self.looks += 1
        edge = between(self.costs, state, after)
        if edge is None:
            return
        total = cost + edge[0]
        if total >= self.reached.get(after, total + 1) or (best is not None and total + low >= best):
            return
        self.reached[after] = total
        self.came[after] = (state, edge)
        self.done.discard(after)
        if is_goal(self.costs, after):
            self.best, self.path = total, self.way(after)
        else:
            # Of ends that promise alike the one that has come further goes first.
            heappush(self.heap, (total + low + self.greed * low // 2, -total, total, after))

    def way(self, state: State) -> tuple[tuple[State, Edge], ...]:
        """The path from the source to a state."""
        path: list[tuple[State, Edge]] = []
        while state in self.came:
            before, edge = self.came[state]
            path.append((state, edge))
            state = before
        return tuple(reversed(path))

    def run(self, looks: int, *, wide: bool) -> None:
        """Goes on until so many prices are asked.

        Only a ``wide`` search takes named steps to states that are no stations.
        """
        costs, limit = self.costs, self.looks + looks
        floor = self.low(costs.question.source)
        while self.heap:
            _, _, cost, state = heappop(self.heap)
            if state in self.done or cost > self.reached[state]:
                continue
            least = cost + self.low(state)
            if self.best is not None:
                if costs.at_most(self.best, floor) or (not self.greed and least >= self.best):
                    return
                if self.looks >= limit:
                    return
                if least >= self.best:
                    continue
            self.done.add(state)
            tried = {state}
            for after in neighbours(costs, state) if wide else ():
                if after not in tried:
                    tried.add(after)
                    self.look(state, cost, after)
            if self.ranked is None:
                self.rank(stations(costs))
            for entry, after in self.ranked or ():
                if self.best is not None and cost + entry >= self.best:
                    break
                if after not in tried:
                    self.look(state, cost, after)


def at_once(question: Question, asked: Question) -> Answer:
    """One exchange, at most after a slice; complete where no path can be cheaper by the bounds.

    ``asked`` is the same question in prime atoms, for which they are to hold.
    """
    costs = Costs(question)
    if is_goal(costs, question.source):
        return Answer((), 0, 0, True)
    search = _Search(costs)
    search.directly()
    assert search.best is not None, "every target can be reached"
    best = costs.primary(search.best)
    least = costs.primary(search.low(question.source))
    if best > least:
        least = costs.primary(costs.weigh(*floor(Costs(asked))))
        if question.target[1] and not proved(best, least):
            search.masked()
            best = costs.primary(search.best)
            if not all(edge[1] in NAMED for _, edge in search.path):
                # There may be one as good whose steps back ends know by name.
                return Answer(search.path, search.best, min(least, best), False)
    return Answer(search.path, search.best, min(least, best), proved(best, least))


def proved(cost: int, least: int) -> bool:
    """Is a cost the least there is, but for what sums of floats may be wrong by?"""
    return cost - least <= cost >> 30


@lru_cache(maxsize=1 << 12)
def solve(question: Question) -> Answer:
    """The best path among named steps and exchanges to stations."""
    costs = Costs(question)
    if is_goal(costs, question.source):
        return Answer((), 0, 0, True)
    search = _Search(costs)
    floor = costs.primary(search.low(question.source))
    search.directly()
    share = 4 if question.axes <= FEW_AXES else 1
    for greed in (2, 0):
        search.restart(greed)
        search.run(DIVE // share, wide=False)
    search.restart(0)
    search.run(LOOKS // share, wide=True)
    assert search.best is not None, "every target can be reached"
    return Answer(search.path, search.best, floor, costs.primary(search.best) <= floor, search.looks)


def _least(costs: Costs, state: State) -> int:
    """What any step that sends anything costs at least if it ends here: half a block from one other rank."""
    half = costs.block(state) // 2
    return costs.weigh(min(costs.latency) * log2(2) + half * min(costs.rate), half)
