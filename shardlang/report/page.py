"""A whole file as one drawing, or as the sections of one HTML page with the figures beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import frozen

from shardlang.check.model import ModelLayouts, ParameterLayout
from shardlang.plan.plan import Plan
from shardlang.report.drawing import Drawing, below, beside, layout_drawing, page, plan_drawing, svg
from shardlang.report.lock import Lock, ModelLock, numberless
from shardlang.report.plan import duration, size

ROW = 3
"""Drawings of parameters in a row."""


@frozen
class Section:
    """A heading, a drawing, and a table whose first row is its head."""

    heading: str
    drawing: Drawing
    table: Sequence[Sequence[str]]


def sections(plans: Mapping[str, Plan], models: Mapping[str, ModelLayouts], lock: Lock) -> list[Section]:
    """Every plan with its steps; every model with its figures, and with each layout that a parameter has."""
    found = [_plan(name, plan) for name, plan in plans.items()]
    for name, layouts in models.items():
        drawn = [layout_drawing(p.layout, path) for path, p in distinct(layouts).items()]
        rows = [beside(drawn[i : i + ROW]) for i in range(0, len(drawn), ROW)]
        locked = lock.models[name]
        found.append(Section(f"model {name} on {layouts.mesh}", below(rows), _figures(locked)))
        found.append(Section(f"parameters of {name}", below([]), _parameters(distinct(layouts), locked)))
    return found


def _plan(name: str, plan: Plan) -> Section:
    head = ("step", "axes", "layout after it", "received", "sent", "time")
    steps = [
        (s.kind, "/".join(s.axes), str(s.target), size(s.bytes_received), size(s.bytes_sent), duration(s.time))
        for s in plan.steps
    ]
    change = f"{plan.dtype}{plan.source} => {plan.target}"
    return Section(f"reshard {name}: {change}", plan_drawing(plan, name), [head, *steps])


def _figures(model: ModelLock) -> list[Sequence[str]]:
    rows: list[Sequence[str]] = [("of a rank, a step", "axes", "count", "bytes")]
    rows += [(f"memory for {part}", "", "", size(n)) for part, n in model.memory.items()]
    rows += [(kind, axes, str(n), size(b)) for (kind, axes), (n, b) in model.collectives.items()]
    return rows


def _parameters(parameters: Mapping[str, ParameterLayout], model: ModelLock) -> list[Sequence[str]]:
    rows: list[Sequence[str]] = [("parameter", "dtype", "layout", "stored", "gathered with", "gathers a step")]
    for path, parameter in parameters.items():
        entry = model.parameters[parameter.name]
        gathers = size(entry.gathers) if entry.gathers else ""
        rows.append((path, entry.dtype, entry.layout, size(entry.stored), entry.group, gathers))
    return rows


def distinct(layouts: ModelLayouts) -> dict[str, ParameterLayout]:
    """One parameter for each name without its numbers and each layout, called by the former where that tells it."""
    found: dict[tuple[str, str], ParameterLayout] = {}
    for parameter in layouts.unique_parameters():
        found.setdefault((numberless(parameter.name), str(parameter.layout)), parameter)
    names = [key for key, _ in found]
    return {(key if names.count(key) == 1 else p.name): p for (key, _), p in found.items()}


def file_svg(parts: Sequence[Section]) -> str:
    """The drawings of a file below each other, as one SVG document."""
    return svg(below([part.drawing for part in parts if part.drawing.height])) + "\n"


def file_page(title: str, parts: Sequence[Section]) -> str:
    """The HTML page of a file."""
    return page(title, [(p.heading, svg(p.drawing) if p.drawing.height else "", p.table) for p in parts])
