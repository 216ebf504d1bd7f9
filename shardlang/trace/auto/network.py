"""A trace as a network of choices: its values, its operators, and what each may owe or be cut into."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from attrs import define, field
from torch import fx
from torch.utils import _pytree as pytree

from shardlang.layout import Layout
from shardlang.mesh import Mesh
from shardlang.trace.auto.operation import Operation, Quantity, operation
from shardlang.trace.auto.strategies import PIECES, Pieces, dim_pieces, plain
from shardlang.trace.builder import NO_GRADIENT
from shardlang.trace.call import operator_name
from shardlang.trace.capture import MARK, Trace
from shardlang.trace.pieces import Piece, axes_of
from shardlang.trace.propagate import out_of_place


@define(eq=False)
class Network:
    """The values of a trace by number, and what makes and uses them.

    ``marks``: the value that ``sl.reshard`` number ``n`` gives, by the number of that value: (source, n). ``outputs``:
    the values that the function returns, in order.
    """

    quantities: list[Quantity] = field(factory=list)
    operations: list[Operation] = field(factory=list)
    arguments: list[Quantity] = field(factory=list)
    marks: dict[int, tuple[Quantity, int]] = field(factory=dict)
    outputs: list[Quantity] = field(factory=list)
    whole: set[int] = field(factory=set)
    """Values that depend on no argument and no mark: they are whole."""


def network_of(trace: Trace) -> Network:
    """Reads a trace; its inner calls are none."""
    net = Network()
    known: dict[fx.Node, Any] = {}
    live = _live(trace.graph)
    gradients = True

    def quantity(fake: torch.Tensor, constant: bool, flows: bool, name: str) -> Quantity:
        made = Quantity(len(net.quantities), fake, constant, flows and _inexact(fake), name)
        net.quantities.append(made)
        return made

    for node in trace.graph.nodes:
        if node.op == "placeholder":
            known[node] = quantity(node.meta["val"], False, True, str(node.target))
            net.arguments.append(known[node])
        elif node.op == "get_attr":
            tensor = getattr(trace.module, str(node.target))
            with trace.fake:
                known[node] = quantity(torch.empty(tensor.shape, dtype=tensor.dtype), True, False, node.name)
            net.whole.add(known[node].number)
        elif node.op == "output":
            leaves = pytree.tree_leaves(fx.node.map_arg(node.args[0], lambda n: known[n]))
            net.outputs = [q for q in leaves if isinstance(q, Quantity)]
        elif node.target is operator.getitem:
            known[node] = known[node.args[0]][node.args[1]]
        elif node.target is torch._C._set_grad_enabled:
            gradients = bool(node.args[0])
        else:
            args = fx.node.map_aggregate(node.args, lambda a: known[a] if isinstance(a, fx.Node) else a)
            kwargs = fx.node.map_aggregate(node.kwargs, lambda a: known[a] if isinstance(a, fx.Node) else a)
            operands = [a for a in pytree.tree_leaves((args, dict(kwargs))) if isinstance(a, Quantity)]
            if node.target is MARK:
                source = operands[0]
                known[node] = quantity(node.meta["val"], source.constant, source.flows, source.name)
                net.marks[known[node].number] = (source, args[1])
                continue
            name = operator_name(out_of_place(node.target)[0])
            flows = gradients and any(q.flows for q in operands) and name not in NO_GRADIENT
            constant = all(q.constant for q in operands)
            made = [quantity(t, constant, flows, node.name) for t in _tensors(node.meta.get("val"))]
            known[node] = made[0] if isinstance(node.meta.get("val"), torch.Tensor) else tuple(made)
            if node not in live:
                continue
            if all(q.number in net.whole for q in operands):
                net.whole.update(q.number for q in made)
                continue
            net.operations.append(operation(node, tuple(args), dict(kwargs), made, gradients))
    return net


def _live(graph: fx.Graph) -> set[fx.Node]:
    """The nodes that some result depends on; what moves for others is not in the program."""
    live: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        if node.op == "output" or node in live:
            live.update(node.all_input_nodes)
    return live


def _tensors(result: Any) -> list[torch.Tensor]:
    return [t for t in pytree.tree_leaves(result) if isinstance(t, torch.Tensor)]


def _inexact(fake: torch.Tensor) -> bool:
    return fake.dtype.is_floating_point or fake.dtype.is_complex


ROUNDS = 4
"""How often cuts are carried over the whole trace, forward and back."""


def pieces_of(net: Network, given: Sequence[tuple[Quantity, Layout]], mesh: Mesh) -> list[Pieces]:
    """For each value the cuts of its dims that no axes make by themselves, carried by operators from given layouts."""
    found: list[list[dict[Piece, None]]] = [[{} for _ in q.shape] for q in net.quantities]

    def add(q: Quantity, dim: int, piece: Piece) -> bool:
        have = found[q.number][dim]
        if piece in have or len(have) >= PIECES or plain(piece, piece.size, mesh) or not any(axes_of(piece, mesh)):
            return False
        have[piece] = None
        return True

    for q, layout in given:
        for dim, piece in enumerate(layout.canonical()):
            add(q, dim, piece)
    for turn in range(ROUNDS):
        changed = False
        for made in net.operations if turn % 2 == 0 else reversed(net.operations):
            if made.rule is None:
                continue
            ends = [*made.operands, *made.results]
            now = [tuple(tuple(d) for d in found[q.number]) for q in ends]
            for q, dims in zip(ends, dim_pieces(made.rule, now, mesh), strict=True):
                for dim, brought in enumerate(dims):
                    for piece in brought:
                        changed = add(q, dim, piece) or changed
        for number, (source, _) in net.marks.items():
            for a, b in ((source.number, number), (number, source.number)):
                for dim, have in enumerate(found[a]):
                    for piece in list(have):
                        changed = add(net.quantities[b], dim, piece) or changed
        if not changed:
            break
    return [tuple(tuple(d) for d in dims) for dims in found]
