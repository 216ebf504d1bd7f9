"""An operator that is put down differently, tried out on operands in given layouts: a program of it alone."""

from __future__ import annotations

from typing import Any

from torch.utils import _pytree as pytree

from shardlang.mesh import Mesh
from shardlang.trace.auto.operation import Operation, Quantity
from shardlang.trace.auto.prices import Want, seconds_of
from shardlang.trace.builder import Builder
from shardlang.trace.local import add_gradients
from shardlang.trace.pieces import State, layout_of
from shardlang.trace.program import move
from shardlang.trace.propagate import operate, rewritten, values_in
from shardlang.trace.values import Value


def probe(
    operation: Operation, states: tuple[State, ...], mesh: Mesh, fake: Any
) -> tuple[tuple[Want, ...], tuple[State, ...], int]:
    """The uses of the operands, the layouts of the results, and the time of moves and work inside.

    Raises ShardlangError or ValueError where the operator cannot run like this.
    """
    builder = Builder(mesh, fake, True, rewrite=rewritten)
    builder.gradients = operation.gradients
    given, structure = pytree.tree_flatten((operation.args, operation.kwargs))
    values: list[Value] = []
    at: list[Any] = []
    feed = iter(states)
    for argument in given:
        if not isinstance(argument, Quantity):
            at.append(argument)
            continue
        value = builder.argument(f"a{len(values)}", layout_of(mesh, next(feed)), argument.fake)
        value.constant, value.differentiable = argument.constant, argument.flows
        values.append(value)
        at.append(value)
    args, kwargs = pytree.tree_unflatten(at, structure)
    made = values_in(operate(builder, operation.node.target, args, kwargs, operation.node.meta.get("val")))
    builder.graph.output(tuple(v.node for v in made))
    builder.graph.eliminate_dead_code()
    every = frozenset(a.name for a in mesh.leaves())
    gradients = add_gradients(builder, values, [None] * len(values), [every] * len(values))
    builder.graph.eliminate_dead_code()
    moves = [builder.moves[i] for i in dict.fromkeys(n.args[1] for n in builder.graph.nodes if n.target is move)]
    cost = builder.work + sum(seconds_of(m.forward) + seconds_of(m.backward) for m in moves)
    flows = any(q.flows for q in operation.results)
    wants = tuple(
        Want(s, frozenset(p.axis for p in g.owed()) if flows and q.flows else None)
        for s, g, q in zip(states, gradients, operation.operands, strict=True)
    )
    return wants, tuple(v.state for v in made), cost
