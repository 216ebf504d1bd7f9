"""Exact minimisation of a sum of tables over variables, one variable at a time.

The tables are factors of a graph; a variable is eliminated by adding up the tables that it is in and taking the least
over it, which leaves one table over its neighbours (dynamic programming where the graph is a chain or a tree, and exact
on any graph; the cost is the size of the tables met on the way). Variables whose table would be larger than a limit
are left as a core. All numbers are integers and ties go to the first value, so that every process finds the same.

Equal questions are answered once: a table that was added up and minimised before, at another place of the graph, is
not again, since messages are kept with their least entry taken out and equal ones are one object. The layers of a deep
model are such equal places.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence

import torch
from attrs import define, field, frozen

NEVER = 1 << 60
"""The cost of what cannot be. Real costs are far below it."""


@frozen(eq=False)
class Factor:
    """A table of costs over the variables of ``scope`` (ascending numbers), a dim of int64 each."""

    scope: tuple[int, ...]
    table: torch.Tensor


@frozen(eq=False)
class _Answer:
    least: torch.Tensor
    """Over the other variables: the least cost, its own least entry taken out."""
    best: torch.Tensor
    """The first value of the variable that gives it."""
    offset: int


@define(eq=False)
class Memory:
    """Answers that were found before, and one object for equal tables."""

    answers: dict[tuple[object, ...], _Answer] = field(factory=dict)
    tables: dict[tuple[object, ...], list[torch.Tensor]] = field(factory=dict)
    parts: dict[tuple[object, ...], torch.Tensor] = field(factory=dict)
    hits: int = 0

    def one(self, table: torch.Tensor) -> torch.Tensor:
        """The object that stands for all tables equal to this one; it stays alive, so that its ``id`` names it."""
        weights = torch.arange(1, table.numel() + 1)
        alike = self.tables.setdefault((tuple(table.shape), int((table.reshape(-1) * weights).sum())), [])
        for other in alike:
            if torch.equal(other, table):
                return other
        alike.append(table)
        return table

    def narrowed(self, table: torch.Tensor, kept: Sequence[tuple[int, ...]]) -> torch.Tensor:
        """The table for some values of each of its variables; made once."""
        table = self.one(table)
        key = (id(table), *kept)
        if key not in self.parts:
            for dim, values in enumerate(kept):
                if len(values) != table.shape[dim]:
                    table = table.index_select(dim, torch.tensor(values))
            self.parts[key] = self.one(table)
        return self.parts[key]


@frozen(eq=False)
class Eliminated:
    """What is left after elimination: a constant, the core's factors, and how to get the others' values."""

    constant: int
    core: tuple[Factor, ...]
    records: tuple[tuple[int, tuple[int, ...], torch.Tensor], ...]

    def variables(self) -> tuple[int, ...]:
        """Those of the core."""
        return tuple(sorted({v for f in self.core for v in f.scope}))

    def complete(self, core: dict[int, int]) -> dict[int, int]:
        """A value for every variable, from those of the core."""
        values = dict(core)
        for variable, scope, best in reversed(self.records):
            values[variable] = int(best[tuple(values[v] for v in scope)])
        return values


def eliminate(sizes: Sequence[int], factors: Iterable[Factor], limit: int, memory: Memory | None = None) -> Eliminated:
    """Eliminates variables while the tables stay within ``limit`` entries, the smallest table first.

    ``sizes`` are the numbers of values. A variable without a factor takes its first value.
    """
    memory = memory or Memory()
    live = {i: Factor(f.scope, memory.one(f.table)) for i, f in enumerate(factors)}
    holders: list[set[int]] = [set() for _ in sizes]
    for number, factor in live.items():
        for v in factor.scope:
            holders[v].add(number)
    constant = 0
    records: list[tuple[int, tuple[int, ...], torch.Tensor]] = []
    count = len(live)

    def weight(v: int) -> int:
        return math.prod(sizes[u] for u in {u for n in holders[v] for u in live[n].scope} | {v})

    queue = [(weight(v), v) for v in range(len(sizes))]
    heapq.heapify(queue)
    left = set(range(len(sizes)))
    while queue:
        noted, v = heapq.heappop(queue)
        if v not in left:
            continue
        now = weight(v)
        if now != noted:
            heapq.heappush(queue, (now, v))
            continue
        if now > limit:
            break
        left.discard(v)
        mine = sorted(holders[v])
        scope = tuple(sorted({u for n in mine for u in live[n].scope} | {v}))
        others = tuple(u for u in scope if u != v)
        answer = _minimised(memory, [live[n] for n in mine], scope, v, sizes)
        for n in mine:
            for u in live.pop(n).scope:
                holders[u].discard(n)
        records.append((v, others, answer.best))
        constant += answer.offset
        if others:
            live[count] = Factor(others, answer.least)
            for u in others:
                holders[u].add(count)
                if u in left:
                    heapq.heappush(queue, (weight(u), u))
            count += 1
    return Eliminated(constant, tuple(live[n] for n in sorted(live)), tuple(records))


def _minimised(
    memory: Memory, factors: Sequence[Factor], scope: tuple[int, ...], variable: int, sizes: Sequence[int]
) -> _Answer:
    """The sum of factors over ``scope``, minimised over one variable of it."""
    at = {v: i for i, v in enumerate(scope)}
    key = (
        at[variable],
        tuple(sizes[v] for v in scope),
        tuple(sorted((tuple(at[v] for v in f.scope), id(f.table)) for f in factors)),
    )
    found = memory.answers.get(key)
    if found is not None:
        memory.hits += 1
        return found
    total = torch.zeros([sizes[v] for v in scope], dtype=torch.int64)
    for factor in factors:
        shape = [1] * len(scope)
        for v in factor.scope:
            shape[at[v]] = sizes[v]
        total += factor.table.reshape(shape)
        total.clamp_(max=NEVER)
    dim = at[variable]
    best = total.argmin(dim)
    least = total.gather(dim, best.unsqueeze(dim)).squeeze(dim)
    offset = int(least.min())
    least = torch.where(least >= NEVER, least, least - offset)
    kinds = torch.int16 if sizes[variable] < 1 << 15 else torch.int64
    found = _Answer(memory.one(least), best.to(kinds), offset)
    memory.answers[key] = found
    return found


def cost_of(factors: Iterable[Factor], values: dict[int, int]) -> int:
    """The sum of the tables at these values."""
    return sum(int(f.table[tuple(values[v] for v in f.scope)]) for f in factors)
