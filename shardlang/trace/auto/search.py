"""The question of a whole program: its operators' strategies and its values' costs, as one model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import define, frozen

from shardlang.layout import Layout
from shardlang.mesh import Mesh
from shardlang.trace.auto.eliminate import Memory
from shardlang.trace.auto.model import Atom, Choice, Model
from shardlang.trace.auto.network import Network, pieces_of
from shardlang.trace.auto.operation import Operation, Quantity
from shardlang.trace.auto.prices import SOMEWHERE, Backward, Prices, Want
from shardlang.trace.auto.strategies import PIECES, Pieces, Strategy, Ways, plain
from shardlang.trace.capture import Trace
from shardlang.trace.pieces import State, normal, state_of
from shardlang.trace.values import dtype_name
from shardlang.trace.work import is_free


@frozen(eq=False)
class Given:
    """An argument: the layout that it comes in, those that the body may see it in (one, or several to choose from),
    what is said of its gradient, and the axes over which that may stay in parts.
    """

    layout: Layout
    options: tuple[Layout, ...]
    gradient: Layout | None = None
    parts: frozenset[str] = frozenset()


@define(eq=False)
class Search:
    """The question of one program, as a model, and what its variables stand for."""

    name: str
    net: Network
    model: Model
    strategies: list[tuple[Strategy, ...]]
    """For each operator."""
    choices: list[Choice]
    """For each operator its variable, and the strategy that each value of it means."""
    options: list[int | None]
    """For each argument the variable of its layout."""
    given: Sequence[Given]
    memory: Memory
    followed: bool
    """Do operators that only pass a value on take it as it comes?"""


class NoWay(Exception):
    """Some operator has no strategy at all: building the program says why."""


def search_of(
    trace: Trace,
    net: Network,
    given: Sequence[Given],
    mesh: Mesh,
    results: Sequence[Layout | None],
    layout_of_mark: Callable[[int, tuple[int, ...]], Layout | None],
    name: str,
    follow: bool = False,
) -> Search:
    """The model of a program. Raises ``NoWay`` for one that cannot be built at all.

    ``follow``: operators that pass a value on (views, slices, linear ones of one operand) take it as it comes where
    they can, so that it is moved before or after them.
    """
    prices = Prices(mesh)
    ways = Ways(mesh, trace.fake, prices)
    model = Model(prices)
    search = Search(name, net, model, [], [], [], given, Memory(), follow)
    marks: dict[int, Layout] = {}
    for n, (source, i) in net.marks.items():
        mark = layout_of_mark(i, source.shape)
        assert mark is not None
        marks[n] = normal(mark)
    known = [(q, o) for q, g in zip(net.arguments, given, strict=True) for o in g.options]
    known += [(net.quantities[n], layout) for n, layout in marks.items()]
    known += [(q, layout) for q, layout in zip(net.outputs, results, strict=True) if layout is not None]
    pieces = pieces_of(net, known, mesh)
    owed: dict[int, set[Any]] = {q.number: set() for q in net.quantities}
    for q, layout in known:
        owed[q.number].update((p.axis, p.op) for p in layout.owed())
    produced: dict[int, tuple[Choice, tuple[State, ...]]] = {}
    for number in net.whole:
        produced[number] = (
            Choice(None, (0,)),
            (prices.same(state_of(Layout.whole(mesh, net.quantities[number].shape))),),
        )
    for q, g in zip(net.arguments, given, strict=True):
        variable = model.variable(len(g.options)) if len(g.options) > 1 else None
        search.options.append(variable)
        states = tuple(prices.same(state_of(o)) for o in g.options)
        produced[q.number] = (Choice(variable, tuple(range(len(states)))), states)
    marked = {source.number for source, _ in net.marks.values()}
    uses: dict[int, list[tuple[Choice, tuple[Atom, ...]]]] = {q.number: [] for q in net.quantities}
    for operation in net.operations:
        for q in operation.operands:
            _resolve(net, marks, produced, q)
        sources = [
            (Choice(None, (0,)), (state_of(marks[q.number]),)) if q.number in marks else produced[q.number]
            for q in operation.operands
        ]
        found = ways.of(
            operation,
            [_with(pieces[q.number], states, mesh) for q, (_, states) in zip(operation.operands, sources, strict=True)]
            + [pieces[q.number] for q in operation.results],
            [frozenset(owed[q.number]) for q in operation.operands],
            [states for _, states in sources],
        )
        if not found:
            raise NoWay(operation.node.name)
        choice = _followed(model, operation, found, sources) if follow else None
        if choice is None:
            choice = Choice(model.variable(len(found)) if len(found) > 1 else None, tuple(range(len(found))))
        _worked(model, choice, found)
        search.strategies.append(found)
        search.choices.append(choice)
        for i, q in enumerate(operation.results):
            taken = [found[k].results[i] for k in choice.kinds]
            kinds = tuple(dict.fromkeys(taken))
            produced[q.number] = (Choice(choice.variable, tuple(kinds.index(t) for t in taken)), kinds)
            owed[q.number].update((a, op) for state in kinds for a, op in state.pending.items())
        for q in dict.fromkeys(operation.operands):
            at = [i for i, other in enumerate(operation.operands) if other is q]
            atoms = [tuple(found[k].wants[i] for i in at) for k in choice.kinds]
            order_of = {atom: k for k, atom in enumerate(dict.fromkeys(atoms))}
            uses[q.number].append((Choice(choice.variable, tuple(order_of[a] for a in atoms)), tuple(order_of)))
    for q, final in zip(net.outputs, results, strict=True):
        if final is not None:
            uses[q.number].append((Choice(None, (0,)), ((Want(prices.same(state_of(final)), frozenset()),),)))
    for number in marks:
        _resolve(net, marks, produced, net.quantities[number])
    leaving = {q.number for q, layout in zip(net.outputs, results, strict=True) if layout is None}
    _values(search, produced, uses, marks, marked | leaving)
    return search


def _with(pieces: Pieces, states: Sequence[State], mesh: Mesh) -> Pieces:
    """The pieces of a value with those that it comes in and no axes make by themselves."""
    made = []
    for dim, have in enumerate(pieces):
        found = dict.fromkeys(have)
        for state in states:
            piece = state.pieces[dim]
            if piece not in found and len(found) < PIECES and not plain(piece, piece.size, mesh):
                found[piece] = None
        made.append(tuple(found))
    return tuple(made)


def _worked(model: Model, choice: Choice, found: Sequence[Strategy]) -> None:
    costs = [found[k].cost for k in choice.kinds]
    if choice.variable is None:
        model.constant += costs[0]
    else:
        model.costs(choice.variable, costs)


def _followed(
    model: Model,
    operation: Operation,
    found: Sequence[Strategy],
    sources: Sequence[tuple[Choice, tuple[State, ...]]],
) -> Choice | None:
    """The choice of an operator that follows its operands: ``None`` for one that makes a choice of its own.

    It follows where it is linear and all that it takes hangs on one variable (or is whole and constant). Where it
    cannot take its operands as they come it takes what is nearest.
    """
    rule = operation.rule
    alone = len(sources) == 1 and is_free(operation.op)
    if rule is None or operation.probed or not (alone or rule.linear):
        return None
    moving = [i for i, q in enumerate(operation.operands) if not (q.constant and len(sources[i][1]) == 1)]
    variables = {sources[i][0].variable for i in moving}
    if len(variables) != 1 or rule.contract:
        return None
    variable = next(iter(variables))
    length = len(sources[moving[0]][0].kinds)
    as_they_come: dict[tuple[State, ...], int] = {}
    for n, strategy in enumerate(found):
        as_they_come.setdefault(tuple(strategy.wants[i].state for i in moving), n)
    nearest: dict[tuple[State, ...], int] = {}
    kinds = []
    for value in range(length):
        come = tuple(sources[i][1][sources[i][0].kinds[value]] for i in moving)
        taken = as_they_come.get(come)
        if taken is None:
            if come not in nearest:
                costs = [_fetched(model, operation, s, dict(zip(moving, come, strict=True))) for s in found]
                nearest[come] = costs.index(min(costs))
            taken = nearest[come]
        kinds.append(taken)
    return Choice(variable, tuple(kinds))


def _fetched(model: Model, operation: Operation, strategy: Strategy, come: Mapping[int, State]) -> int:
    """The time of an operator run so, and of bringing it the operands that come in these layouts."""
    cost = strategy.cost
    for i, state in come.items():
        want, q = strategy.wants[i], operation.operands[i]
        parts = () if want.parts is None else (want.parts,)
        if want.state != state:
            cost += model.prices.copy(state, want.state, dtype_name(q.fake.dtype), q.flows, parts)
    return cost


def _resolve(
    net: Network, marks: dict[int, Layout], produced: dict[int, tuple[Choice, tuple[State, ...]]], q: Quantity
) -> None:
    """What ``sl.reshard`` is given comes as its source is produced; from another ``sl.reshard``, as that asks."""
    if q.number in produced:
        return
    source = net.marks[q.number][0]
    _resolve(net, marks, produced, source)
    fixed = (Choice(None, (0,)), (state_of(marks[source.number]),)) if source.number in marks else None
    produced[q.number] = fixed or produced[source.number]


def _values(
    search: Search,
    produced: dict[int, tuple[Choice, tuple[State, ...]]],
    uses: dict[int, list[tuple[Choice, tuple[Atom, ...]]]],
    marks: dict[int, Layout],
    elsewhere: set[int],
) -> None:
    """The tables of all values. ``elsewhere``: values that ``sl.reshard`` or the caller takes as they come, too."""
    net, model = search.net, search.model
    arguments = {q.number: g for q, g in zip(net.arguments, search.given, strict=True)}
    for q in net.quantities:
        used = uses[q.number]
        back = SOMEWHERE
        if q.number in marks:
            if used or q.number in elsewhere:
                model.value(q, produced[q.number], used, back, state_of(marks[q.number]))
            continue
        if q.number in arguments:
            g = arguments[q.number]
            if not used and q.number not in elsewhere:
                continue
            if q.number in elsewhere and len(g.options) == 1:
                used = [*used, (Choice(None, (0,)), ((Want(state_of(g.options[0]), frozenset()),),))]
            if not all(g.layout.equivalent(o) for o in g.options):
                back = Backward(through=state_of(g.layout))
                _boundary(search, q, g, produced[q.number][0])
            elif g.gradient is not None or g.parts:
                back = Backward(g.parts, None if g.gradient is None else state_of(g.gradient))
        if q.number in produced:
            model.value(q, produced[q.number], used, back if q.flows else SOMEWHERE)


def _boundary(search: Search, q: Quantity, given: Given, choice: Choice) -> None:
    """Bringing an argument to the layout that the body sees; its way back is priced with its uses."""
    model = search.model
    dtype = dtype_name(q.fake.dtype)
    costs = [model.prices.between(state_of(given.layout), state_of(o), dtype) for o in given.options]
    if choice.variable is None:
        model.constant += costs[0]
    else:
        model.costs(choice.variable, costs)
