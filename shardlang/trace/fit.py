"""Does an operator's rule fit the layouts of its operands, and if not, what would make it fit?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice, product
from typing import Literal

from attrs import evolve, field, frozen

from shardlang.layout import ReduceOp
from shardlang.mesh import Mesh
from shardlang.trace.pieces import Piece, State, axes_of, cut_more, has_empty_block, is_whole, join, split, whole_piece
from shardlang.trace.rule import Rule

MisfitKind = Literal["differ", "whole", "axis", "boundary", "nonlinear", "mixed", "owed"]
CANDIDATES = 4096
"""How many combinations of operand layouts are looked at for one operator."""


@frozen
class Fit:
    """The layouts of the results. ``masks``: axes over which a whole operand has to be made pending first.

    ``scalar_axes``: axes over which an added literal is owed by one rank only.
    """

    results: tuple[State, ...]
    masks: tuple[frozenset[str], ...] = field(default=())
    op: ReduceOp = "sum"
    scalar_axes: frozenset[str] = frozenset()
    axes: frozenset[str] = frozenset()
    """The axes that split a factor, so that each rank does a part of the work."""


@frozen
class Misfit:
    """Why an operator cannot run on its operands as they are.

    ``differ``: two operands hold factor ``factor`` differently. ``whole``: ``factor`` must be whole. ``axis``: ``axis``
    would split two factors. ``boundary``: a cut lies across a boundary of factors. ``nonlinear``: a pending operand
    where the operator is not linear. ``mixed``: pending and whole operands are added. ``owed``: an axis would be
    both splitting and pending, or owed with two operators.
    """

    kind: MisfitKind
    operands: tuple[int, ...]
    dims: tuple[int | None, ...] = ()
    axis: str | None = None


def fit(rule: Rule, operands: Sequence[State], mesh: Mesh) -> Fit | Misfit:
    """Types the results of one operator, or says what is in the way."""
    found: dict[str, tuple[Piece, int, int]] = {}
    for i, (state, terms) in enumerate(zip(operands, rule.inputs, strict=True)):
        for d, (piece, term) in enumerate(zip(state.pieces, terms, strict=True)):
            parts = split(piece, [rule.sizes[n] for n in term]) if term else ()
            if not term and not is_whole(piece):
                return Misfit("whole", (i,), (d,), next(axes_of(piece, mesh)))
            if parts is None:
                return Misfit("boundary", (i,), (d,), next(axes_of(piece, mesh), None))
            for name, part in zip(term, parts, strict=True):
                if name not in found:
                    found[name] = (part, i, d)
                elif found[name][0] != part:
                    return Misfit("differ", (found[name][1], i), (found[name][2], d))
                if not _allowed(rule, name, part):
                    return Misfit("whole", (i,), (d,), next(axes_of(part, mesh)))
    splitting: dict[str, str] = {}
    for name, (piece, i, d) in found.items():
        for axis in axes_of(piece, mesh):
            if axis in splitting:
                other = found[splitting[axis]]
                return Misfit("axis", (other[1], i), (other[2], d), axis)
        splitting.update(dict.fromkeys(axes_of(piece, mesh), name))
    contracted = {a: rule.op for n in rule.contract if n in found for a in axes_of(found[n][0], mesh)}
    owed = _owed(rule, operands, splitting, contracted, mesh)
    if isinstance(owed, Misfit):
        return owed
    pending, masks, scalar_axes, op = owed
    results = []
    for terms in rule.outputs:
        pieces: list[Piece] = []
        for term in terms:
            factors = [found[n][0] if n in found else whole_piece(rule.sizes[n]) for n in term]
            joined = join(factors) if term else whole_piece(1)
            if joined is None:
                i, at = next((found[n][1], found[n][2]) for n in term if n in found and found[n][0].flat)
                return Misfit("boundary", (i,), (at,), None)
            pieces.append(joined)
        results.append(State(tuple(pieces), pending))
    return Fit(tuple(results), masks, op, scalar_axes, frozenset(splitting))


def _allowed(rule: Rule, name: str, piece: Piece) -> bool:
    """May the factor be split like this?"""
    if name in rule.whole:
        return is_whole(piece)
    return not (rule.solid and piece.flat and has_empty_block(piece))


_Owed = tuple[dict[str, ReduceOp], tuple[frozenset[str], ...], frozenset[str], ReduceOp]


def _owed(
    rule: Rule, operands: Sequence[State], splitting: dict[str, str], contracted: dict[str, ReduceOp], mesh: Mesh
) -> _Owed | Misfit:
    """What the results owe, and which operands have to be masked for it."""
    pending: dict[str, ReduceOp] = dict(contracted)
    masks: list[set[str]] = [set() for _ in operands]
    scalar_axes: set[str] = set()
    axes = dict.fromkeys([*contracted, *(a for s in operands for a in s.pending)])
    for axis in axes:
        owing = {i: s.pending[axis] for i, s in enumerate(operands) if axis in s.pending}
        ops = set(owing.values()) | ({rule.op} if axis in contracted else set())
        if len(ops) > 1 or (axis in splitting and axis not in contracted):
            at = [
                i
                for i, s in enumerate(operands)
                if axis in s.pending or any(axis in axes_of(p, mesh) for p in s.pieces)
            ]
            return Misfit("owed", tuple(at), (None,) * len(at), axis)
        op = ops.pop()
        if op in ("max", "min"):
            if axis not in contracted and not (rule.monotone and len(operands) == 1):
                return Misfit("nonlinear", tuple(owing), (None,) * len(owing), axis)
            pending[axis] = op
            continue
        if axis in contracted:
            must: frozenset[int] = rule.additive
            if not set(owing) <= must:
                return Misfit("owed", tuple(owing), (None,) * len(owing), axis)
        else:
            groups = [g for g in rule.linear if set(owing) <= g]
            if not groups:
                return Misfit("nonlinear", tuple(owing), (None,) * len(owing), axis)
            must = groups[0]
        missing = sorted(must - set(owing))
        if op == "sum" and [i for i in missing if i not in rule.additive]:
            rest = tuple(i for i in missing if i not in rule.additive)
            return Misfit("mixed", (*owing, *rest), (None,) * (len(owing) + len(rest)), axis)
        if op == "sum":  # an average of (x + b) is the average of x, plus b: nothing to mask
            for i in missing:
                masks[i].add(axis)
        if rule.scalars and op == "sum":
            scalar_axes.add(axis)
        pending[axis] = op
    kinds = set(pending.values())
    if len(kinds - {"avg"}) > 1 or ("avg" in kinds and kinds & {"max", "min"}):
        return Misfit("owed", tuple(range(len(operands))), (None,) * len(operands), next(iter(pending)))
    op = "avg" if kinds == {"avg"} else "sum"
    return pending, tuple(frozenset(m) for m in masks), frozenset(scalar_axes), op


@frozen
class Candidate:
    """Operand layouts under which the operator fits."""

    operands: tuple[State, ...]
    fit: Fit


def candidates(rule: Rule, mesh: Mesh, operands: Sequence[State]) -> Iterator[Candidate]:
    """Operand layouts near the given ones under which the rule fits; the given pending axes kept or resolved."""
    options = _factor_options(rule, operands)
    names = list(options)
    seen: set[tuple[State, ...]] = set()
    for kept in product(*[_pending_options(s) for s in operands]):
        for pieces in islice(product(*options.values()), CANDIDATES):
            chosen = dict(zip(names, pieces, strict=True))
            for extra in _scatters(mesh, operands, kept, chosen):
                target = _target(rule, mesh, operands, kept, extra)
                if target is None or target in seen:
                    continue
                seen.add(target)
                result = fit(rule, target, mesh)
                if isinstance(result, Misfit) and result.kind == "mixed":
                    target = _masked(mesh, target, result)
                    result = fit(rule, target, mesh)
                if isinstance(result, Fit):
                    yield Candidate(target, result)


def _factor_options(rule: Rule, operands: Sequence[State]) -> dict[str, list[Piece]]:
    """For each factor the pieces that an operand has, and the whole one."""
    options: dict[str, list[Piece]] = {}
    for state, terms in zip(operands, rule.inputs, strict=True):
        for piece, term in zip(state.pieces, terms, strict=True):
            parts = split(piece, [rule.sizes[n] for n in term]) if term else ()
            for name, part in zip(term, parts or [whole_piece(rule.sizes[n]) for n in term], strict=True):
                have = options.setdefault(name, [])
                if part not in have and _allowed(rule, name, part):
                    have.append(part)
    for name, have in options.items():
        whole = whole_piece(rule.sizes[name])
        if whole not in have:
            have.append(whole)
    return options


def _pending_options(state: State) -> list[frozenset[str]]:
    """The pending axes that an operand may keep: all or none."""
    return [frozenset(state.pending), frozenset()] if state.pending else [frozenset()]


def _scatters(
    mesh: Mesh, operands: Sequence[State], kept: Sequence[frozenset[str]], chosen: dict[str, Piece]
) -> Iterator[dict[str, Piece]]:
    """The chosen pieces as they are, and with each axis that is no longer owed splitting one factor more."""
    yield chosen
    for state, keep in zip(operands, kept, strict=True):
        for axis in state.pending:
            if axis in keep:
                continue
            for name, piece in chosen.items():
                more = cut_more(piece, axis, mesh.axis(axis).size) if axis not in axes_of(piece, mesh) else None
                if more is not None:
                    yield {**chosen, name: more}


def _target(
    rule: Rule, mesh: Mesh, operands: Sequence[State], kept: Sequence[frozenset[str]], chosen: dict[str, Piece]
) -> tuple[State, ...] | None:
    target = []
    for state, terms, keep in zip(operands, rule.inputs, kept, strict=True):
        pieces = []
        for size, term in zip(state.shape, terms, strict=True):
            piece = join([chosen[n] for n in term]) if term else whole_piece(size)
            if piece is None:
                return None
            pieces.append(piece)
        pending = {a: op for a, op in state.pending.items() if a in keep}
        new = State(tuple(pieces), pending)
        cuts = [a for p in pieces for a in axes_of(p, mesh)]
        if len(set(cuts)) != len(cuts) or set(cuts) & set(pending):
            return None
        target.append(new)
    return tuple(target)


def _masked(mesh: Mesh, target: tuple[State, ...], misfit: Misfit) -> tuple[State, ...]:
    """The whole operands of a sum made pending like the others (free: one rank keeps the value)."""
    assert misfit.axis is not None
    owing: dict[str, ReduceOp] = {}
    for i in misfit.operands:
        owing.update(target[i].pending)
    changed = list(target)
    for i in misfit.operands:
        busy = {a for p in target[i].pieces for a in axes_of(p, mesh)}
        changed[i] = evolve(target[i], pending={**{a: o for a, o in owing.items() if a not in busy}})
    return tuple(changed)
