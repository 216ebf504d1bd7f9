"""FSDP groups: which modules an ``fsdp`` line matches, which parameters each group gathers, and what cannot be."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from attrs import frozen

from shardlang.check.facts import Facts
from shardlang.check.program import FsdpLine, PathPattern, TensorSpec
from shardlang.diagnostics import Diagnostic, sl06_models
from shardlang.layout import Layout
from shardlang.mesh import Mesh


@frozen
class FsdpGroup:
    """One ``fully_shard`` group: a module and the parameters in it that no deeper group has."""

    line: FsdpLine
    module: str
    parameters: tuple[str, ...]


def fsdp_groups(
    lines: Sequence[FsdpLine], facts: Facts, match: Callable[[PathPattern], list[str]], errors: list[Diagnostic]
) -> tuple[FsdpGroup, ...]:
    """The groups, bottom up. Reports SL0608 for a module that two lines match. ``match`` reports patterns in vain."""
    lines_of: dict[str, FsdpLine] = {}
    for line in lines:
        for module in match(line.pattern):
            first = lines_of.setdefault(module, line)
            if first is not line:
                errors.append(sl06_models.grouped_twice(line.pattern.span, module, first.pattern.span))
    members: dict[str, list[str]] = {module: [] for module in lines_of}
    for name in facts.parameters:
        home = group_of(name, lines_of)
        if home is not None:
            members[home].append(name)
    order = sorted(lines_of, key=lambda m: -_depth(m))
    return tuple(FsdpGroup(lines_of[m], m, tuple(members[m])) for m in order)


def _depth(module: str) -> int:
    return module.count(".") + 1 if module else 0


def group_of(parameter: str, modules: Mapping[str, object]) -> str | None:
    """The deepest of the modules that holds a parameter."""
    prefix = parameter
    while prefix:
        prefix = prefix.rpartition(".")[0]
        if prefix in modules:
            return prefix
    return None


def group_faults(
    mesh: Mesh, groups: Sequence[FsdpGroup], layouts: Mapping[str, tuple[Layout, TensorSpec]], facts: Facts
) -> list[Diagnostic]:
    """SL0607 for an axis that splits a parameter and is to shard what is stored of it, SL0610 for tied parameters
    that would be gathered by two groups."""
    faults: list[Diagnostic] = []
    seen: set[tuple[int, int]] = set()
    for group in groups:
        line = group.line
        axes = {leaf: axis for axis in (*line.over, *line.replicate) for leaf in mesh.expand(axis)}
        for name in group.parameters:
            layout, spec = layouts[name]
            if (id(line), id(spec)) in seen:
                continue
            seen.add((id(line), id(spec)))
            taken = [leaf for axis in layout.cut_axes() for leaf in mesh.expand(axis) if leaf in axes]
            if taken:
                span = line.over_span or line.span
                faults.append(sl06_models.fsdp_axis_splits(span, axes[taken[0]], name, spec.span))
    homes = {name: group for group in groups for name in group.parameters}
    for names in facts.tied:
        first = homes.get(names[0])
        for name in names[1:]:
            other = homes.get(name)
            if first is other:
                continue
            # The deeper group would take the parameter away from the module around it.
            inner, outer = (first, other) if first is not None else (other, first)
            assert inner is not None
            around = outer.line.pattern.span if outer else None
            ours, theirs = (names[0], name) if inner is first else (name, names[0])
            faults.append(sl06_models.tied_groups(inner.line.pattern.span, ours, theirs, around))
    return faults
