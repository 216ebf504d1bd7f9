"""Exhaustive search, as simple as can be: every layout on prime sub-axes, every pair of them, Dijkstra."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import combinations, permutations
from math import prod

from shardlang.plan.cost import Costs, between
from shardlang.plan.moves import is_goal
from shardlang.plan.problem import Problem, Question, Slots, State


class Oracle:
    """All states of a mesh of atoms and a tensor with one slot a dim, and the price of every single step."""

    def __init__(
        self,
        sizes: tuple[int, ...],
        classes: tuple[int, ...],
        links: tuple[tuple[int, int], ...],
        extents: tuple[int, ...],
        element: int,
        by_bytes: bool,
    ) -> None:
        self.given = (sizes, classes, links)
        self.extents, self.element, self.by_bytes = extents, element, by_bytes
        self.states = self._states(sizes)
        costs = Costs(self._question(self.states[0], self.states[0], None))
        self.block = {x: costs.block(x) for x in self.states}
        self.known: tuple[tuple[State, int] | None, dict[State, int]] = (None, {})
        self.edges = {
            x: [(y, e) for y in self.states if x != y for e in [between(costs, x, y)] if e is not None]
            for x in self.states
        }

    def _states(self, sizes: tuple[int, ...]) -> list[State]:
        found: set[Slots] = set()
        waiting: list[Slots] = [((),) * len(self.extents)]
        while waiting:
            slots = waiting.pop()
            if slots in found:
                continue
            found.add(slots)
            used = {a for at in slots for a in at}
            for a in set(range(len(sizes))) - used:
                for v, at in enumerate(slots):
                    if self.extents[v] % (sizes[a] * prod(sizes[b] for b in at)) == 0:
                        waiting.append((*slots[:v], (*at, a), *slots[v + 1 :]))
        states = []
        for slots in found:
            rest = sorted(set(range(len(sizes))) - {a for at in slots for a in at})
            for k in range(len(rest) + 1):
                states += [(slots, sum(1 << a for a in owed)) for owed in combinations(rest, k)]
        return sorted(states)

    def _question(self, source: State, target: State, limit: int | None) -> Question:
        kept = source[1] & target[1]
        return Question(*self.given, self.extents, self.element, source, target, kept, limit, self.by_bytes)

    def asked(self, source: State, target: State) -> tuple[Problem, Costs]:
        """The transition as the planner sees it, under a cap of 1, and its costs."""
        limit = max(self.block[source], self.block[target], 1 << 20)
        question = self._question(source, target, limit)
        slots: list[tuple[int, tuple[int, ...], tuple[int, ...]]] = []
        of_dim = []
        for extent, s, t in zip(self.extents, source[0], target[0], strict=True):
            start, left = len(slots), extent
            for i in range(max(len(s), len(t))):
                n = self.given[0][(s[i : i + 1] or t[i : i + 1])[0]]
                slots.append((n, s[i : i + 1], t[i : i + 1]))
                left //= n
            slots.append((left, (), ()))
            of_dim.append(tuple(range(start, len(slots))))
        extents, befores, afters = zip(*slots, strict=True)
        finer = Question(
            *self.given, extents, self.element, (befores, source[1]), (afters, target[1]),
            question.kept, limit, self.by_bytes,
        )  # fmt: skip
        return Problem(finer, (), tuple(of_dim)), Costs(question)

    def pairs(self) -> Iterator[tuple[State, list[State]]]:
        """Sources, each with its targets: of pairs that are one up to names the first."""
        sizes, classes, _ = self.given
        alike = [
            names
            for names in permutations(range(len(sizes)))
            if all((sizes[a], classes[a]) == (sizes[b], classes[b]) for a, b in enumerate(names))
        ]
        turns = [
            list(p) for p in permutations(range(len(self.extents))) if [self.extents[i] for i in p] == [*self.extents]
        ]

        def renamed(state: State, names: tuple[int, ...], turn: list[int]) -> State:
            slots = tuple(tuple(names[a] for a in state[0][v]) for v in turn)
            return slots, sum(1 << names[a] for a in range(len(sizes)) if state[1] >> a & 1)

        for source in self.states:
            others = [(names, turn) for names in alike for turn in turns]
            if any(renamed(source, *other) < source for other in others):
                continue
            still = [other for other in others if renamed(source, *other) == source]
            yield (
                source,
                [
                    target
                    for target in self.states
                    if target != source and not any(renamed(target, *other) < target for other in still)
                ],
            )

    def least(self, source: State, costs: Costs) -> int:
        """As ``best``, for many targets of one source."""
        assert costs.limit is not None
        if self.known[0] != (source, costs.limit):
            self.known = (source, costs.limit), self._all(source, costs.limit)
        return min(cost for x, cost in self.known[1].items() if is_goal(costs, x))

    def _all(self, source: State, limit: int) -> dict[State, int]:
        """The least cost from a state to each other under a cap."""
        found, heap, done = {source: 0}, [(0, source)], set()
        while heap:
            cost, x = heappop(heap)
            if x in done:
                continue
            done.add(x)
            for y, edge in self.edges[x]:
                staged = edge[2] if edge[1] == "exchange" and x[1] & ~y[1] else 0
                if max(self.block[y], staged) <= limit and cost + edge[0] < found.get(y, cost + edge[0] + 1):
                    found[y] = cost + edge[0]
                    heappush(heap, (found[y], y))
        return found

    def best(self, source: State, costs: Costs) -> int:
        """The least cost from a state to what a mask makes the target, under the question's cap."""
        assert costs.limit is not None
        return min(cost for x, cost in self._all(source, costs.limit).items() if is_goal(costs, x))
