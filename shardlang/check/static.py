"""What can be held against a spec before any shape is known: sizes that are constants must divide."""

from __future__ import annotations

import math

from attrs import evolve

from shardlang.check.bind import Operand, layout_of
from shardlang.check.program import Size, SpecDim, SpecFactor, TensorSpec
from shardlang.check.sizes import evaluate
from shardlang.diagnostics import Diagnostic, ShardlangError, sl03_layouts
from shardlang.mesh import Mesh
from shardlang.source import Span


def static_faults(spec: TensorSpec, mesh: Mesh, name: str, sizes: dict[str, int] | None = None) -> list[Diagnostic]:
    """The faults (SL0302) of the dims and factors whose sizes are constants or in ``sizes``."""
    known = {} if sizes is None else sizes
    faults: list[Diagnostic] = []
    for dim in spec.dims or ():
        part = _known_part(dim, known, spec.span)
        if part is None:
            continue
        size = math.prod(evaluate(f.size, known) or 0 for f in part.factors if f.size)
        try:
            layout_of(Operand(name, TensorSpec((part,), spec.span), (size,), mesh), known)
        except ShardlangError as error:
            faults += error.diagnostics
    if spec.grad is not None and spec.grad.dims is not spec.dims:
        faults += static_faults(spec.grad, mesh, f"the gradient of {name}", known)
    return faults


def choice_faults(spec: TensorSpec, name: str, *, argument: bool = False) -> list[Diagnostic]:
    """SL0322 for every ``/?`` of a spec, and of its gradient's, that no planner sees before its tensor is placed. For
    an ``argument`` of a function, or a side of a transition, one does: there only the gradient's are faults."""
    dims = () if argument else spec.dims or ()
    faults = [sl03_layouts.nothing_chooses(d.span or spec.span, name) for d in dims if d.choose]
    if spec.grad is not None and spec.grad.dims is not spec.dims:
        faults += choice_faults(spec.grad, f"the gradient of {name}")
    return faults


def _known_part(dim: SpecDim, known: dict[str, int], span: Span) -> SpecDim | None:
    """The dim with its unknown factors left out of account (each is one, uncut); ``None`` where nothing is to hold."""
    if not dim.flat and not any(f.cuts for f in dim.factors):
        return None
    factors = []
    for factor in dim.factors:
        sized = factor.size is not None and evaluate(factor.size, known) is not None
        factors.append(factor if sized else SpecFactor(Size("int", dim.span or span, value=1)))
    whole = all(a is b for a, b in zip(factors, dim.factors, strict=True))
    if not any(f.cuts for f in factors) and not (whole and dim.flat):
        return None
    return evolve(dim, factors=tuple(factors), flat=dim.flat if whole else (), choose=False)
