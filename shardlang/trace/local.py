"""The last pass over a local program: where the parts of gradients are added up.

A value that is whole over an axis may be used where others vary over it; each rank's gradient of that use is then a
part of the sum. The parts are added up once for each value and set of axes, in the backward of a move whose forward
is the identity; or, where the value comes from a move itself, in that move's backward, which then goes straight from
the parts to the gradient of its source (a reduce-scatter in the place of an all-reduce and a slice).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from attrs import evolve
from torch import fx

from shardlang.layout import Layout, Pending
from shardlang.plan.plan import Plan, dual
from shardlang.plan.search import plan_transition
from shardlang.trace.builder import Builder
from shardlang.trace.call import operator_name
from shardlang.trace.program import Move, inner, move
from shardlang.trace.rules import names
from shardlang.trace.values import Value, dtype_name, values_of

PASS = names(
    "view reshape _unsafe_view transpose t permute unsqueeze squeeze flatten contiguous clone alias numpy_T mT"
)
"""Operators of one operand whose gradient has as many elements: parts pass through them to a move."""


def add_gradients(
    builder: Builder,
    arguments: Sequence[Value],
    declared: Sequence[Layout | None],
    parts: Sequence[frozenset[str]],
) -> tuple[Layout, ...]:
    """Inserts the moves that gradients need. ``declared``: the layout of an argument's gradient, where it is written;
    ``parts``: axes over which it may stay a sum that is owed.

    Returns the layout of each argument's gradient.
    """
    wanted = {id(v): d for v, d in zip(arguments, declared, strict=True)}
    allowed = {id(v): p for v, p in zip(arguments, parts, strict=True)}
    owed = _absorbed(builder, {v.node: allowed[id(v)] for v in arguments if wanted[id(v)] is None})
    results: dict[int, Layout] = {}
    for node in list(builder.graph.nodes):
        value = node.meta.get("value")
        if not isinstance(value, Value) or not value.differentiable:
            continue
        is_argument = node.op == "placeholder"
        asked = wanted.get(id(value)) if is_argument else None
        uses = _uses(node, value, owed)
        kept = owed.get(node, frozenset())
        if is_argument and (asked is not None or allowed[id(value)]):
            kept = _common(uses.values()) if uses else frozenset()
            kept = kept if asked is not None else kept & allowed[id(value)]
        _vary(builder, node, value, uses, kept)
        if node.target is move:
            _absorb(builder, node, value, kept)
        if is_argument:
            results[id(value)] = asked or _parts(value.layout, kept)
            if asked is not None:
                _declared(builder, node, value, kept, asked)
    return tuple(results.get(id(v), dual(v.layout)) for v in arguments)


def _parts(layout: Layout, axes: frozenset[str]) -> Layout:
    """The gradient's layout with a sum owed over axes."""
    owed = tuple(Pending(a.name, "sum") for a in layout.mesh.leaves() if a.name in axes)
    return Layout(layout.mesh, layout.dims, owed)


def _uses(node: fx.Node, value: Value, owed: dict[fx.Node, frozenset[str]]) -> dict[fx.Node, frozenset[str]]:
    """For each use that a gradient comes back from: the axes over which that gradient is a part of a sum."""
    uses: dict[fx.Node, frozenset[str]] = {}
    for user in node.users:
        if user.op == "output" or user.target in (move, inner):
            uses[user] = frozenset()
            continue
        held = [v for v in values_of(user) if v.differentiable]
        if not held:
            continue
        axes = frozenset(a for v in held for a in v.axes()) | owed.get(user, frozenset())
        uses[user] = axes - value.axes()
    return uses


def _absorbed(builder: Builder, allowed: Mapping[fx.Node, frozenset[str]]) -> dict[fx.Node, frozenset[str]]:
    """The axes over which a node's gradient may stay in parts, since the move it comes from can add them up, or the
    argument it comes from may be given them (``allowed``)."""
    every = frozenset(a.name for a in builder.mesh.leaves())
    owed: dict[fx.Node, frozenset[str]] = {}
    for node in reversed(builder.graph.nodes):
        value = node.meta.get("value")
        if not isinstance(value, Value) or not value.differentiable:
            continue
        origin = _origin(node)
        if origin is None:
            continue
        uses = _uses(node, value, owed)
        common = _common(uses.values()) if uses else frozenset()
        common &= every if origin.target is move else allowed.get(origin, frozenset())
        if common:
            owed[node] = common
    # Parts that a view lets through have to be let through by all that it comes from.
    for node in builder.graph.nodes:
        if node in owed and node.op == "call_function" and node.target is not move:
            source = node.args[0]
            if isinstance(source, fx.Node) and source not in owed:
                del owed[node]
    return owed


def _common(sets: Iterable[frozenset[str]]) -> frozenset[str]:
    return frozenset.intersection(*sets)


def _origin(node: fx.Node) -> fx.Node | None:
    """The move or argument that a value comes from by views that nothing else uses, if its gradient can be in parts."""
    while node.op == "call_function" and node.target is not move:
        if not isinstance(node.target, torch._ops.OpOverload):
            return None
        if ".".join(operator_name(node.target).split(".")[:2]) not in PASS:
            return None
        source = node.args[0]
        if not isinstance(source, fx.Node) or len(source.users) != 1:
            return None
        node = source
    if node.op == "placeholder":
        return node
    if node.target is not move:
        return None
    made: Move = node.meta["move"]
    plan = made.forward
    linear = plan is not None and all(p.op == "sum" for side in (plan.source, plan.target) for p in side.owed())
    return node if linear else None


def _vary(
    builder: Builder, node: fx.Node, value: Value, uses: dict[fx.Node, frozenset[str]], kept: frozenset[str]
) -> None:
    """Puts identity moves whose backward adds the parts up between a value and its uses, one for each set of axes."""
    order = [a.name for a in builder.mesh.leaves()]
    groups: dict[frozenset[str], list[fx.Node]] = {}
    for user, axes in uses.items():
        if axes - kept:
            groups.setdefault(axes - kept, []).append(user)
    made: list[tuple[frozenset[str], fx.Node]] = []
    for axes in sorted(groups, key=lambda s: (len(s), sorted(s))):
        done, base = max(((s, n) for s, n in made if s <= axes), key=lambda p: len(p[0]), default=(frozenset(), node))
        missing = [a for a in order if a in axes - done]
        parts = _parts(value.layout, frozenset(missing))
        plan = plan_transition(parts, dual(value.layout), dtype_name(value.dtype))
        with builder.graph.inserting_after(base):
            new = builder.add_move(base, Move(None, plan, "gradient", value.name, node.meta.get("site")))
        new.meta["move"] = builder.moves[-1]
        new.meta["site"] = node.meta.get("site")
        for user in groups[axes]:
            user.replace_input_with(node, new)
        made.append((axes, new))


def _absorb(builder: Builder, node: fx.Node, value: Value, kept: frozenset[str]) -> None:
    """Gives a move the backward that starts from a gradient in parts over ``kept`` axes."""
    if not kept:
        return
    index = node.args[1]
    assert isinstance(index, int)
    made = builder.moves[index]
    assert made.forward is not None
    parts = _parts(made.forward.target, kept)
    plan: Plan = plan_transition(parts, dual(made.forward.source), dtype_name(value.dtype))
    builder.moves[index] = evolve(made, backward=plan if plan.steps else None)


def _declared(builder: Builder, node: fx.Node, value: Value, kept: frozenset[str], asked: Layout) -> None:
    """Brings the gradient of an argument to the layout that the signature gives it."""
    parts = _parts(value.layout, kept)
    if parts.equivalent(asked):
        return
    plan = plan_transition(parts, asked, dtype_name(value.dtype))
    users = list(node.users)
    with builder.graph.inserting_after(node):
        new = builder.add_move(node, Move(None, plan, "boundary", value.name, node.meta.get("site")))
    new.meta["move"] = builder.moves[-1]
    for user in users:
        user.replace_input_with(node, new)
