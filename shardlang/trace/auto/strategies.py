"""The ways to run one operator: the layouts that it takes its operands in, those that its results come in, its time.

Each axis of the mesh splits one factor of the operator's rule that it divides, or is a reduction that passes through
it, or none. Cuts that a signature has and no single axis makes (fused weights, other orders, uneven ones) are brought
along as pieces. Operators that are put down differently are tried out, one small program for each way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice, product
from typing import Any

from attrs import define, evolve, field, frozen

from shardlang.diagnostics import ShardlangError
from shardlang.layout import ReduceOp
from shardlang.mesh import Mesh
from shardlang.trace.auto.operation import Operation, Quantity
from shardlang.trace.auto.paths import every_state
from shardlang.trace.auto.prices import Prices, Want
from shardlang.trace.auto.probe import probe
from shardlang.trace.fit import Fit, fit
from shardlang.trace.pieces import Piece, State, axes_of, cut_more, join, split, whole_piece
from shardlang.trace.rule import Rule
from shardlang.trace.work import is_free, work_of

LIMIT = 2000
"""How many ways to run an operator are looked at: a count, so that all ranks look at the same."""

PIECES = 12
"""How many cuts of one dim are brought along."""

Owed = frozenset[tuple[str, ReduceOp]]
Pieces = tuple[tuple[Piece, ...], ...]
"""For each dim of a value the cuts that no axis of the mesh makes by itself."""


@frozen
class Strategy:
    """One way to run an operator; ``cost`` is the time of its work and of what moves inside it."""

    wants: tuple[Want, ...]
    results: tuple[State, ...]
    cost: int


@define(eq=False)
class Ways:
    """Finds strategies on one mesh, once for equal operators."""

    mesh: Mesh
    fake: Any
    prices: Prices
    known: dict[tuple[object, ...], tuple[Strategy, ...]] = field(factory=dict)

    def of(
        self,
        operation: Operation,
        pieces: Sequence[Pieces],
        owed: Sequence[Owed],
        sources: Sequence[tuple[State, ...]],
    ) -> tuple[Strategy, ...]:
        """The strategies of an operator, whose operands' and results' dims may have ``pieces``, and whose operands may
        owe ``owed`` and come in the layouts ``sources``.
        """
        free = is_free(operation.op) and len(operation.operands) == 1 and not operation.probed
        key = (operation.key, tuple(pieces), tuple(owed), sources[0] if free else None)
        if key not in self.known:
            found: dict[tuple[object, ...], Strategy] = {}
            tried = self._any(operation, sources[0]) if free else self._states(operation, pieces, owed)
            for states in islice(tried, LIMIT):
                made = self._strategy(operation, states)
                if made is not None:
                    made = self._interned(made)
                    same = (made.wants, made.results)
                    if same not in found or made.cost < found[same].cost:
                        found[same] = made
            self.known[key] = tuple(found.values())
        return self.known[key]

    def _interned(self, made: Strategy) -> Strategy:
        """With one object for equal layouts, so that they are told apart at once."""
        same = self.prices.same
        wants = tuple(Want(same(w.state), w.parts) for w in made.wants)
        return Strategy(wants, tuple(map(same, made.results)), made.cost)

    def _any(self, operation: Operation, source: Sequence[State]) -> Iterator[tuple[State, ...]]:
        """What only rearranges takes its operand as it comes, or as axes make it."""
        shape = operation.operands[0].shape
        owed = {a for s in source for a in s.pending}
        plain_ones = (s for s in every_state(self.mesh, shape) if set(s.pending) <= owed)
        yield from ((s,) for s in dict.fromkeys([*source, *plain_ones]))

    def _states(
        self, operation: Operation, pieces: Sequence[Pieces], owed: Sequence[Owed]
    ) -> Iterator[tuple[State, ...]]:
        """Layouts of the operands, the whole ones first."""
        whole = tuple(State(tuple(whole_piece(n) for n in q.shape)) for q in operation.operands)
        yield whole
        rule = operation.rule
        if rule is None:
            return
        axes = [a.name for a in self.mesh.leaves() if a.size > 1]
        options = factor_pieces(rule, pieces, self.mesh)
        passes = list(_passing(rule, owed))
        choices: list[list[object]] = []
        for axis in axes:
            able = [n for n, have in options.items() if any(axis in axes_of(p, self.mesh) for p in have)]
            choices.append([None, *able, *(p for p in passes if p[0] == axis)])
        for chosen in product(*choices):
            at: dict[str, list[str]] = {}
            pending: list[tuple[str, ReduceOp, frozenset[int]]] = []
            for axis, choice in zip(axes, chosen, strict=True):
                if isinstance(choice, str):
                    at.setdefault(choice, []).append(axis)
                elif isinstance(choice, tuple):
                    pending.append(choice)
            cuts = [
                [p for p in options[n] if sorted(axes_of(p, self.mesh)) == sorted(wanted)] for n, wanted in at.items()
            ]
            for combined in product(*cuts):
                states = _operands(rule, operation.operands, dict(zip(at, combined, strict=True)), pending, self.mesh)
                if states is not None and states != whole:
                    yield states

    def _strategy(self, operation: Operation, states: tuple[State, ...]) -> Strategy | None:
        if any(self.prices.layout(s) is None for s in states):
            return None
        if operation.probed:
            return self._probed(operation, states)
        rule = operation.rule
        assert rule is not None
        found = fit(rule, states, self.mesh)
        if not isinstance(found, Fit):
            return None
        if found.masks:
            masked = [
                evolve(s, pending={**s.pending, **dict.fromkeys(m, "sum")}) if m else s
                for s, m in zip(states, found.masks, strict=True)
            ]
            states = tuple(masked)
        if any(self.prices.layout(s) is None for s in found.results):
            return None
        varying = frozenset(
            a for q, s in zip(operation.results, found.results, strict=True) if q.flows for a in s.axes(self.mesh)
        )
        flows = any(q.flows for q in operation.results)
        wants = tuple(
            Want(s, varying - s.axes(self.mesh) if flows and q.flows else None)
            for q, s in zip(operation.operands, states, strict=True)
        )
        passes = 3 if operation.gradients and any(q.flows for q in operation.operands) else 1
        work = work_of(
            operation.op,
            rule,
            found.axes,
            self.mesh,
            [(s, q.fake.dtype) for s, q in zip(states, operation.operands, strict=True)],
            [(s, q.fake.dtype) for s, q in zip(found.results, operation.results, strict=True)],
            passes,
        )
        return Strategy(wants, found.results, work)

    def _probed(self, operation: Operation, states: tuple[State, ...]) -> Strategy | None:
        try:
            return Strategy(*probe(operation, states, self.mesh, self.fake))
        except (ShardlangError, ValueError):
            return None


def factor_pieces(rule: Rule, pieces: Sequence[Pieces], mesh: Mesh) -> dict[str, list[Piece]]:
    """For each factor the pieces that it may be cut into: by one axis or several, major to minor, and given ones."""
    found: dict[str, list[Piece]] = {}
    for name in rule.names():
        if name in rule.whole:
            continue
        have = [whole_piece(rule.sizes[name])]
        for axis in mesh.leaves():
            if axis.size > 1:
                have += [m for p in have if (m := cut_more(p, axis.name, axis.size)) is not None]
        found[name] = have[1:]
    for given, terms in zip(pieces, (*rule.inputs, *rule.outputs), strict=True):
        for dim, term in zip(given, terms, strict=True):
            for piece in dim:
                parts = split(piece, [rule.sizes[n] for n in term]) if term else None
                for name, part in zip(term, parts or (), strict=False):
                    if name in found and part not in found[name] and any(True for _ in axes_of(part, mesh)):
                        found[name].append(part)
    return found


def dim_pieces(rule: Rule, pieces: Sequence[Pieces], mesh: Mesh) -> list[Pieces]:
    """For each dim of the operands and results, what given pieces of the others bring to it."""
    given: dict[str, list[Piece]] = {}
    for dims, terms in zip(pieces, (*rule.inputs, *rule.outputs), strict=True):
        for dim, term in zip(dims, terms, strict=True):
            for piece in dim:
                parts = split(piece, [rule.sizes[n] for n in term]) if term else None
                for name, part in zip(term, parts or (), strict=False):
                    if part not in given.setdefault(name, []) and any(True for _ in axes_of(part, mesh)):
                        given[name].append(part)
    made: list[tuple[Piece, ...]] = []
    for term in (t for terms in (*rule.inputs, *rule.outputs) for t in terms):
        brought: dict[Piece, None] = {}
        for combined in product(*([whole_piece(rule.sizes[n]), *given.get(n, [])] for n in term)):
            axes = [a for p in combined for a in axes_of(p, mesh)]
            joined = join(combined) if axes and len(set(axes)) == len(axes) else None
            if joined is not None and not plain(joined, joined.size, mesh):
                brought[joined] = None
        made.append(tuple(islice(brought, PIECES)))
    feed = iter(made)
    return [tuple(next(feed) for _ in terms) for terms in (*rule.inputs, *rule.outputs)]


def plain(piece: Piece, size: int, mesh: Mesh) -> bool:
    """Is it what axes of the mesh make of a dim, major to minor?"""
    made: Piece | None = whole_piece(size)
    axes = set(axes_of(piece, mesh))
    for axis in mesh.leaves():
        if axis.name in axes and made is not None:
            made = cut_more(made, axis.name, axis.size)
    return made == piece


def _passing(rule: Rule, owed: Sequence[Owed]) -> Iterator[tuple[str, ReduceOp, frozenset[int]]]:
    """Reductions that may pass: axis, operation, and the operands that owe them together."""
    for group in rule.linear:
        able = dict.fromkeys(sorted({pair for i in group for pair in owed[i] if pair[1] in ("sum", "avg")}))
        for axis, op in able:
            yield axis, op, group
    if rule.monotone and len(rule.inputs) == 1:
        for axis, op in sorted(owed[0]):
            if op in ("max", "min"):
                yield axis, op, frozenset({0})


def _operands(
    rule: Rule,
    operands: Sequence[Quantity],
    cuts: dict[str, Piece],
    pending: Sequence[tuple[str, ReduceOp, frozenset[int]]],
    mesh: Mesh,
) -> tuple[State, ...] | None:
    states = []
    for i, (quantity, terms) in enumerate(zip(operands, rule.inputs, strict=True)):
        pieces = []
        for size, term in zip(quantity.shape, terms, strict=True):
            piece = join([cuts.get(n) or whole_piece(rule.sizes[n]) for n in term]) if term else whole_piece(size)
            if piece is None:
                return None
            pieces.append(piece)
        states.append(State(tuple(pieces), {axis: op for axis, op, group in pending if i in group}))
    return tuple(states)
