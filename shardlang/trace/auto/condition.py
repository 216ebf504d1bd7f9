"""A core that elimination leaves, by cases: one variable at a time is given each of its values, until elimination does.

Exact, like elimination; tables shrink by the number of the variable's values, and are made as often as it has some.
"""

from __future__ import annotations

from collections.abc import Sequence

from shardlang.trace.auto.eliminate import NEVER, Factor, cost_of, eliminate

CASES = 1 << 10
"""How many cases are gone through at most."""


def by_cases(sizes: Sequence[int], core: Sequence[Factor], limit: int, cases: int = CASES) -> dict[int, int] | None:
    """The values that minimise the sum of a core's tables, the first ones among equals; ``None`` where that would take
    more than ``cases``. ``limit``: the entries of the largest table of an elimination."""
    variables = sorted({v for f in core for v in f.scope})
    chosen = max(variables, key=lambda v: (sum(v in f.scope for f in core), sizes[v], -v))
    left = cases // sizes[chosen]
    if left < 1:
        return None
    best: dict[int, int] = {}
    least = NEVER
    for value in range(sizes[chosen]):
        given = [_given(f, chosen, value) for f in core if f.scope != (chosen,)]
        done = eliminate(sizes, given, limit)
        rest = by_cases(sizes, done.core, limit, left) if done.core else {}
        if rest is None:
            return None
        values = done.complete(rest) | {chosen: value}
        cost = cost_of(core, values)
        if cost < least:
            best, least = values, cost
    return {v: best[v] for v in variables} if best else dict.fromkeys(variables, 0)


def _given(factor: Factor, variable: int, value: int) -> Factor:
    """A table where one variable has a value."""
    if variable not in factor.scope:
        return factor
    at = factor.scope.index(variable)
    return Factor((*factor.scope[:at], *factor.scope[at + 1 :]), factor.table.select(at, value))


__all__ = ["by_cases"]
