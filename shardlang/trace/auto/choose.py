"""The layouts of a whole program, chosen for the least modelled time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from attrs import frozen
from torch import fx

from shardlang.layout import Layout
from shardlang.mesh import Mesh
from shardlang.trace.auto.condition import by_cases
from shardlang.trace.auto.descend import descend
from shardlang.trace.auto.eliminate import NEVER, Eliminated, Factor, cost_of, eliminate
from shardlang.trace.auto.integer import solve_core
from shardlang.trace.auto.network import network_of
from shardlang.trace.auto.search import Given, NoWay, Search, search_of
from shardlang.trace.capture import Trace
from shardlang.trace.pieces import State

SMALL = 12
"""Operators of a program that is searched whole."""
ENTRIES = 1 << 25
"""The largest table of the elimination; what would need a larger one goes to the solver library."""
COLUMNS = 1 << 17
"""Entries of the tables that the solver library takes well. With more, and three axes or more, two axes go at a time;
with fewer axes it is gone by cases, where these are few."""


@frozen(eq=False)
class Chosen:
    """A solution: the modelled time of all that the model counts, a value for each variable, the gap as a share
    (``None``: not known); the number of tables, and of variables that elimination left.
    """

    time: int
    values: Mapping[int, int]
    gap: float | None
    tables: int
    core: int


@frozen(eq=False)
class Least:
    """The layouts of least modelled time: in which each operator takes its tensors, and in which the body sees each
    argument.
    """

    search: Search
    chosen: Chosen
    wanted: dict[fx.Node, tuple[State, ...]]
    seen: list[Layout]


def least(
    trace: Trace,
    given: Sequence[Given],
    mesh: Mesh,
    results: Callable[[Sequence[tuple[int, ...]]], Sequence[Layout | None]],
    layout_of_mark: Callable[[int, tuple[int, ...]], Layout | None],
    name: str,
) -> Least | None:
    """The layouts of least modelled time, by elimination and, for what that leaves, by a solver library.

    Small programs are searched whole. In larger ones, or where elimination alone does not do, operators that only pass
    a value on follow it. ``None`` where some operator cannot be built at all. Raises ShardlangError: SL0529 where the
    solver library is needed and absent.
    """
    net = network_of(trace)
    shapes = [q.shape for q in net.outputs]
    final = list(results(shapes))
    if len(final) != len(shapes):
        return None
    try:
        if len(net.operations) <= SMALL:
            search = search_of(trace, net, given, mesh, final, layout_of_mark, name)
            chosen = solve(search, core=False)
            if chosen is not None:
                return Least(search, chosen, wanted(search, chosen), seen(search, chosen))
        search = search_of(trace, net, given, mesh, final, layout_of_mark, name, follow=True)
    except NoWay:
        return None
    chosen = solve(search)
    return Least(search, chosen, wanted(search, chosen), seen(search, chosen)) if chosen is not None else None


def solve(search: Search, limit: int = ENTRIES, extra: Sequence[Factor] = (), *, core: bool = True) -> Chosen | None:
    """The solution of least modelled time; ``None`` where ``extra`` forbids every one, or where elimination leaves a
    ``core`` that is not wanted.

    Raises ShardlangError: SL0529 where a solver library is needed and absent.
    """
    model = search.model
    factors = [*model.factors, *extra]
    done: Eliminated = eliminate(model.sizes, factors, limit, search.memory)
    rest: dict[int, int] = {}
    gap: float | None = 0.0
    if done.core:
        if not core:
            return None
        large = sum(f.table.numel() for f in done.core) > COLUMNS
        if large:
            descended = descend(search, factors, limit)
            if descended is not None:
                time = cost_of(factors, descended)
                return Chosen(time + model.constant, descended, None, len(factors), len(done.variables()))
        cases = by_cases(model.sizes, done.core, limit) if large else None
        if cases is not None:
            rest = cases
        else:
            found = solve_core(model.sizes, done.core, search.name)
            rest, gap = found.values, found.gap
    values = done.complete(rest)
    time = cost_of(factors, values)
    if time >= NEVER:
        return None
    return Chosen(time + model.constant, values, gap, len(factors), len(done.variables()))


def wanted(search: Search, chosen: Chosen) -> dict[fx.Node, tuple[State, ...]]:
    """For each operator the layouts in which it takes its tensors."""
    made = {}
    for operation, strategies, choice in zip(search.net.operations, search.strategies, search.choices, strict=True):
        value = 0 if choice.variable is None else chosen.values[choice.variable]
        made[operation.node] = tuple(w.state for w in strategies[choice.kinds[value]].wants)
    return made


def seen(search: Search, chosen: Chosen) -> list[Layout]:
    """For each argument the layout that the body sees."""
    return [g.options[0 if v is None else chosen.values[v]] for g, v in zip(search.given, search.options, strict=True)]
