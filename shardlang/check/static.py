"""What can be held against a spec before any shape is known: sizes that are constants must divide."""

from __future__ import annotations

import math

from attrs import evolve

from shardlang.check.bind import Operand, layout_of
from shardlang.check.program import SpecDim, TensorSpec
from shardlang.check.sizes import evaluate
from shardlang.diagnostics import Diagnostic, ShardlangError, sl03_layouts
from shardlang.mesh import Mesh


def static_faults(spec: TensorSpec, mesh: Mesh, name: str, sizes: dict[str, int] | None = None) -> list[Diagnostic]:
    """The faults (SL0302) of the dims and factors whose sizes are constants or in ``sizes``."""
    known = {} if sizes is None else sizes
    faults: list[Diagnostic] = []
    for dim in spec.dims or ():
        for part in _known_parts(dim, known):
            size = math.prod(evaluate(f.size, known) or 0 for f in part.factors if f.size)
            alone = TensorSpec((part,), spec.span)
            try:
                layout_of(Operand(name, alone, (size,), mesh), known)
            except ShardlangError as error:
                faults += error.diagnostics
    if spec.grad is not None and spec.grad.dims is not spec.dims:
        faults += static_faults(spec.grad, mesh, f"the gradient of {name}", known)
    return faults


def choice_faults(spec: TensorSpec, name: str) -> list[Diagnostic]:
    """SL0322 for every ``/?`` of a spec that no planner sees before its tensor is placed."""
    return [sl03_layouts.nothing_chooses(d.span or spec.span, name) for d in spec.dims or () if d.choose]


def _known_parts(dim: SpecDim, known: dict[str, int]) -> list[SpecDim]:
    """The dim where all of it is known, else each known factor by itself."""
    if not any(f.cuts for f in dim.factors) and not dim.flat:
        return []
    sized = [f for f in dim.factors if f.size is not None and evaluate(f.size, known) is not None]
    if len(sized) == len(dim.factors):
        return [evolve(dim, choose=False)]
    return [SpecDim((f,), span=f.span) for f in sized if f.cuts]
