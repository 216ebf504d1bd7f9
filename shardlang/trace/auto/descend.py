"""Meshes of many axes: the layouts of two axes at a time, with those of the others as they are so far.

With each axis an operator has several times as many strategies, so that from three axes on a program may be too large
to be solved at once. Then it is solved exactly over two axes while the others stay, for every pair of axes in turn,
until no pair makes it quicker. What is found cannot be made quicker by changing two axes, anywhere; that nothing is
quicker at all is not shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from shardlang.trace.auto.eliminate import NEVER, Factor, cost_of, eliminate
from shardlang.trace.auto.search import Search
from shardlang.trace.auto.strategies import Strategy
from shardlang.trace.pieces import axes_of

Role = tuple[tuple[tuple[bool, ...], str | None], ...]
"""Of each layout of an operator's tensors: which dims an axis cuts, and what is owed over it."""
TURNS = 4
"""How often all pairs are gone through."""


def descend(search: Search, factors: Sequence[Factor], limit: int) -> dict[int, int] | None:
    """Values of all variables; ``None`` where there are none without a fault, or tables are too large even so."""
    model = search.model
    axes = [a.name for a in model.prices.mesh.leaves() if a.size > 1]
    if len(axes) < 3:
        return None
    roles = {axis: _roles(search, axis) for axis in axes}
    best: dict[int, int] | None = None
    least = NEVER
    for _ in range(TURNS):
        before = least
        for free in combinations(axes, 2):
            fixed = [roles[a] for a in axes if a not in free]
            allowed = [_alike(model.sizes[v], v, fixed, best) for v in range(len(model.sizes))]
            found = _restricted(search, factors, allowed, limit)
            if found is not None and (cost := cost_of(factors, found)) < least:
                least, best = cost, found
        if least == before:
            break
    return best


def _roles(search: Search, axis: str) -> dict[int, list[Role]]:
    """For each variable and value of it, what the axis does in the operators that hang on it."""
    mesh = search.model.prices.mesh
    known: dict[int, Role] = {}

    def role(strategy: Strategy) -> Role:
        if id(strategy) not in known:
            states = (*(w.state for w in strategy.wants), *strategy.results)
            known[id(strategy)] = tuple(
                (tuple(axis in axes_of(p, mesh) for p in s.pieces), s.pending.get(axis)) for s in states
            )
        return known[id(strategy)]

    found: dict[int, list[Role]] = {}
    for strategies, choice in zip(search.strategies, search.choices, strict=True):
        if choice.variable is None:
            continue
        rows = found.setdefault(choice.variable, [()] * len(choice.kinds))
        for value, kind in enumerate(choice.kinds):
            rows[value] = (*rows[value], *role(strategies[kind]))
    return found


def _alike(size: int, variable: int, fixed: Sequence[dict[int, list[Role]]], best: dict[int, int] | None) -> list[int]:
    """The values in which the fixed axes do what they do so far; at first, nothing."""
    values = list(range(size))
    for roles in fixed:
        rows = roles.get(variable)
        if rows is None:
            continue
        if best is not None:
            values = [v for v in values if rows[v] == rows[best[variable]]]
        else:
            values = [v for v in values if not _busy(rows[v])]
    return values


def _busy(row: Role) -> bool:
    return any(any(cuts) or op is not None for cuts, op in row)


def _restricted(
    search: Search, factors: Sequence[Factor], allowed: Sequence[Sequence[int]], limit: int
) -> dict[int, int] | None:
    """The least over the allowed values of each variable."""
    if not all(allowed):
        return None
    memory = search.memory
    small = [Factor(f.scope, memory.narrowed(f.table, [tuple(allowed[v]) for v in f.scope])) for f in factors]
    done = eliminate([len(a) for a in allowed], small, limit, memory)
    if done.core:
        return None
    values = {v: allowed[v][i] for v, i in done.complete({}).items()}
    return values if cost_of(factors, values) < NEVER else None
