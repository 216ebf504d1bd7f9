"""From a traced function to typed values: every node of the trace in order, each through its rule."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from shardlang.layout import Layout
from shardlang.trace.builder import Builder, is_random
from shardlang.trace.call import operator_name
from shardlang.trace.capture import INNER, MARK, Inner
from shardlang.trace.inner import put_inner
from shardlang.trace.rewrites import REWRITES
from shardlang.trace.rules import is_declared
from shardlang.trace.values import Value

LayoutOf = Callable[[int, Value], Layout]
"""The layout that ``sl.reshard`` number ``n`` of the trace asks for, for this value."""


def walk(
    builder: Builder,
    module: fx.GraphModule,
    arguments: Sequence[Value],
    layout_of_mark: LayoutOf | None = None,
    inner: Sequence[Inner] = (),
    *,
    keep_site: bool = False,
) -> Any:
    """Types and builds every node; returns the values of the graph's output, in its structure.

    ``inner``: the calls that the trace did not look into. ``keep_site``: the nodes all stand for the operator that the
    builder is at.
    """
    known: dict[fx.Node, Any] = {}
    feed = iter(arguments)
    for node in module.graph.nodes:
        if not keep_site:
            builder.site = node.meta.get("site")
        if node.op == "placeholder":
            known[node] = next(feed)
        elif node.op == "get_attr":
            tensor = getattr(module, str(node.target))
            with builder.fake:
                fake = torch.empty(tensor.shape, dtype=tensor.dtype)
            known[node] = builder.constant(tensor.detach(), fake)
        elif node.op == "output":
            return fx.node.map_arg(node.args[0], lambda n: known[n])
        else:
            args = fx.node.map_aggregate(node.args, lambda a: known[a] if isinstance(a, fx.Node) else a)
            kwargs = fx.node.map_aggregate(node.kwargs, lambda a: known[a] if isinstance(a, fx.Node) else a)
            builder.label = "" if keep_site else node.name
            known[node] = _node(builder, node, args, dict(kwargs), layout_of_mark, inner)
    raise AssertionError("a graph without an output")


def _node(
    builder: Builder,
    node: fx.Node,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    layout_of_mark: LayoutOf | None,
    inner: Sequence[Inner],
) -> Any:
    target: Any = node.target
    if target is operator.getitem:
        return args[0][args[1]]
    if target is torch._C._set_grad_enabled:
        builder.gradients = bool(args[0])
        builder.graph.call_function(target, args)
        return None
    if target is MARK:
        assert layout_of_mark is not None
        return builder.move(args[0], layout_of_mark(args[1], args[0]), "asked")
    if target is INNER:
        return put_inner(builder, args[1], inner[args[1]], args[0], node.meta["val"])
    args, kwargs = builder.arranged(node, args, kwargs)
    return operate(builder, target, args, kwargs, node.meta.get("val"))


def operate(builder: Builder, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Any:
    """One operator on values, by its rewrite or its rule; ``result`` is the global one, as fake tensors."""
    if is_random(target):
        drawn = rewritten(builder, target, args, kwargs)
        return drawn if drawn is not None else builder.apply(target, args, kwargs, result)
    target, cast = out_of_place(target)
    made = rewritten(builder, target, args, kwargs)
    if made is None:
        made = builder.apply(target, args, kwargs, result) if cast is None else builder.call(target, *args, **kwargs)
    if cast is not None and isinstance(made, Value) and made.dtype != args[0].dtype:
        made = builder.call(torch.ops.aten.to.dtype, made, args[0].dtype)
    return made


def rewritten(builder: Builder, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The results of an operator's rewrite; ``None`` where there is none, or its rule will do or is a user's."""
    name = operator_name(op)
    if is_declared(name):
        return None
    rewrite = REWRITES.get(name) or REWRITES.get(".".join(name.split(".")[:2]))
    return rewrite(builder, op, args, kwargs) if rewrite is not None else None


def out_of_place(target: Any) -> tuple[Any, bool | None]:
    """The operator that makes a new tensor, for one that changes its first operand; else the operator itself."""
    name = target._schema.name.split("::")[-1]
    if not target._schema.is_mutable or not name.endswith("_"):
        return target, None
    packet = getattr(getattr(torch.ops, target.namespace), name[:-1], None)
    made = getattr(packet, target._overloadname, None)
    return (target, None) if made is None else (made, True)  # `normal_` and its like have no such twin


def values_in(structure: Any) -> list[Value]:
    """The values in the output of a graph, in order."""
    return [v for v in pytree.tree_leaves(structure) if isinstance(v, Value)]
