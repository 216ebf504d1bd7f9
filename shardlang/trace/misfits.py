"""From a misfit of a rule to a diagnostic: what does not fit, and the ways out with their price."""

from __future__ import annotations

from collections.abc import Sequence

from shardlang.diagnostics import Diagnostic, sl05_functions
from shardlang.diagnostics.sl05_functions import Choice, Operand
from shardlang.mesh import Mesh
from shardlang.source import Span
from shardlang.trace.fit import Candidate, Misfit
from shardlang.trace.pieces import layout_of
from shardlang.trace.rule import Rule
from shardlang.trace.values import Value

Way = tuple[int, int, Candidate]


def operand(value: Value) -> Operand:
    return Operand(value.name, str(value.layout), value.origin)


def describe(
    operator: str,
    span: Span | None,
    misfit: Misfit,
    rule: Rule,
    values: Sequence[Value],
    ways: Sequence[Way],
    mesh: Mesh,
) -> Diagnostic:
    """The diagnostic of a misfit; ``ways`` are candidates with (time, bytes), cheapest first."""
    operands = [operand(values[i]) for i in dict.fromkeys(misfit.operands)]
    choices = [_choice(way, values, mesh) for way in ways]
    dim = misfit.dims[0] if misfit.dims else None
    if misfit.kind == "differ":
        return sl05_functions.operands_differ(operator, span, operands, choices)
    if misfit.kind == "whole":
        return sl05_functions.dim_must_be_whole(
            operator, span, operands[0], dim, str(misfit.axis), rule.why_whole, choices
        )
    if misfit.kind == "axis":
        return sl05_functions.axis_meets_itself(operator, span, str(misfit.axis), operands, choices)
    if misfit.kind == "boundary":
        return sl05_functions.view_cuts_split(operator, span, operands[0], dim, misfit.axis, choices)
    if misfit.kind == "nonlinear":
        return sl05_functions.pending_meets_nonlinear(operator, span, operands[0], f"`{misfit.axis}`", choices)
    return sl05_functions.pending_meets_whole(operator, span, operands, str(misfit.axis), choices)


def _choice(way: Way, values: Sequence[Value], mesh: Mesh) -> Choice:
    time, size, _ = way
    return Choice(way_text(way, values, mesh), size, time)


def way_text(way: Way, values: Sequence[Value], mesh: Mesh) -> str:
    """What to write for a way, and what the result then is."""
    candidate = way[2]
    parts = [
        f'`sl.reshard({v.name}, "{layout_of(mesh, s)}")`'
        for v, s in zip(values, candidate.operands, strict=True)
        if v.state != s
    ]
    result = layout_of(mesh, candidate.fit.results[0])
    return f"{' and '.join(dict.fromkeys(parts))}: the result is {result}"
