"""Budgets: what a model may take at most, held against what is known before it runs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from shardlang.check.memory import is_trained, predict
from shardlang.check.model import ModelLayouts
from shardlang.check.program import Budget
from shardlang.diagnostics import Diagnostic, sl06_budgets
from shardlang.mesh import Mesh


def budget_faults(budget: Budget, layouts: ModelLayouts) -> list[Diagnostic]:
    """SL0651 for more memory than allowed, SL0652 for what FSDP sends by a link on which that is forbidden, and the
    warning SL0656 where the size of an axis, and so all of it, is open."""
    faults: list[Diagnostic] = []
    if not layouts.parameters:
        return faults
    open_axes = [a.name for a in layouts.mesh.axes if a.open]
    if open_axes:
        return [sl06_budgets.budget_not_held(budget.span, budget.model, layouts.mesh.name, open_axes[0])]
    if budget.memory is not None:
        needed = predict(layouts)
        if needed.total > budget.memory:
            ways = -(-(needed.total - needed.gathered) // max(1, budget.memory - needed.gathered))
            faults.append(
                sl06_budgets.memory_over(
                    budget.memory_span or budget.span,
                    budget.model,
                    needed.total,
                    budget.memory,
                    {
                        "parameters": needed.parameters,
                        "gradients": needed.gradients,
                        "optimizer": needed.optimizer,
                        "gathered groups": needed.gathered,
                    },
                    needed.ungrouped,
                    ways if budget.memory > needed.gathered else None,
                )
            )
    for kind, axes, group in sorted(set(fsdp_collectives(layouts))):
        faults += forbidden(budget, layouts.mesh, kind, axes, f"FSDP of `{group or 'root'}`")
    return faults


def forbidden(budget: Budget, mesh: Mesh, kind: str, axes: Sequence[str], who: str) -> list[Diagnostic]:
    """SL0652 for each limit that a collective breaks; ``who`` sends it, in words."""
    links = {mesh.axis(a).link.name for a in axes if mesh.axis(a).size > 1}
    faults: list[Diagnostic] = []
    for (step, link), span in zip(budget.forbid, budget.forbid_spans, strict=True):
        if step == kind and link in links:
            faults.append(sl06_budgets.forbidden_step(span, budget.model, kind, link, list(axes), who))
    return faults


def fsdp_collectives(layouts: ModelLayouts) -> Iterator[tuple[str, tuple[str, ...], str]]:
    """(kind, axes, first module) of each collective of FSDP, one for each line and kind."""
    seen: set[int] = set()
    for group in layouts.groups:
        line = group.line
        if id(line) in seen or not group.parameters:
            continue
        seen.add(id(line))
        over = tuple(leaf for a in line.over for leaf in layouts.mesh.expand(a))
        copies = tuple(leaf for a in line.replicate for leaf in layouts.mesh.expand(a))
        trained = any(is_trained(layouts.parameters[n]) for n in group.parameters)
        if math.prod(layouts.mesh.axis(a).size for a in over) > 1:
            yield "all_gather", over, line.pattern.text
            if trained:
                yield "reduce_scatter", over, line.pattern.text
        if trained and math.prod(layouts.mesh.axis(a).size for a in copies) > 1:
            yield "all_reduce", copies, line.pattern.text
