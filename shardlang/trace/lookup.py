"""Look-ups by global index in a dim that is split: each rank finds its own, zeros stand for the others."""

from __future__ import annotations

from typing import Any

import torch
from attrs import evolve
from torch import fx

from shardlang.layout import Layout
from shardlang.mesh import Mesh
from shardlang.trace.builder import Builder
from shardlang.trace.call import axis_of
from shardlang.trace.pieces import Piece, State, axes_of, is_whole, layout_of
from shardlang.trace.rewrites import given, rewrite
from shardlang.trace.values import Value

aten = torch.ops.aten


def contiguous(piece: Piece) -> bool:
    """Does every rank hold one run of the dim?"""
    seen_local = False
    for digit in piece.digits:
        if digit.axis is None:
            seen_local = True
        elif seen_local:
            return False
    return True


def local_index(builder: Builder, index: Value, layout: Layout, dim: int) -> tuple[fx.Node, fx.Node, bool]:
    """A global index as one into the rank's run of a dim, whether it is the rank's, and if a rank has no run at all."""
    graph = builder.graph

    def start(rank: int) -> int:
        runs = layout.dim_runs(dim, layout.mesh.coordinates(rank))
        return runs[0][0] if runs else 0

    def last(rank: int) -> int:
        return max(layout.local_shape(rank)[dim] - 1, 0)

    def length(rank: int) -> int:
        return layout.local_shape(rank)[dim]

    shifted = graph.call_function(aten.sub.Tensor, (index.node, builder.literal(start)))
    low = graph.call_function(aten.ge.Scalar, (shifted, 0))
    high = graph.call_function(aten.lt.Scalar, (shifted, builder.literal(length)))
    mine = graph.call_function(aten.logical_and.default, (low, high))
    local = graph.call_function(aten.clamp.default, (shifted, 0, builder.literal(last)))
    uneven = bool(layout.canonical()[dim].flat)
    empty = uneven and any(length(rank) == 0 for rank in layout.mesh.ranks)
    return local, mine, empty


def owing(mesh: Mesh, state: State, piece: Piece) -> State:
    """The state with a sum owed over the axes of a piece."""
    return evolve(state, pending={**state.pending, **dict.fromkeys(axes_of(piece, mesh), "sum")})


def _free(mesh: Mesh, state: State, piece: Piece) -> bool:
    return not (state.axes(mesh) & set(axes_of(piece, mesh)))


@rewrite("aten.embedding")
def embedding(builder: Builder, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Over a split table: each rank looks up its own rows and gives zeros for the others; the sum is owed."""
    table, index = args[0], args[1]
    rows, width = table.state.pieces
    if is_whole(rows) or not contiguous(rows) or table.state.pending or index.state.pending:
        return None
    state = State((*index.state.pieces, width))
    if not (_free(builder.mesh, index.state, rows) and _free(builder.mesh, index.state, width)):
        return None
    padding = given(op, args, kwargs, "padding_idx")
    graph = builder.graph
    layout = layout_of(builder.mesh, owing(builder.mesh, state, rows))
    fake = table.fake.new_empty((*index.shape, table.shape[1]))

    def value(node: fx.Node) -> Value:
        made: Value = builder.wrap(
            node, fake, [layout], constant=False, flows=builder.gradients and table.differentiable
        )
        return made

    local, mine, empty = local_index(builder, index, table.layout, 0)
    node = table.node
    if empty:
        node = graph.call_function(aten.constant_pad_nd.default, (node, [0, 0, 0, 1]))
        node.meta["value"] = table
    found = value(graph.call_function(aten.embedding.default, (node, local)))
    if padding is not None and padding >= 0:
        pad = graph.call_function(aten.eq.Scalar, (index.node, padding))
        pad = graph.call_function(aten.unsqueeze.default, (pad, -1))
        fixed = graph.call_function(aten.detach.default, (found.node,))
        found = value(graph.call_function(aten.where.self, (pad, fixed, found.node)))
    other = graph.call_function(aten.logical_not.default, (mine,))
    other = graph.call_function(aten.unsqueeze.default, (other, -1))
    return value(graph.call_function(aten.masked_fill.Scalar, (found.node, other, 0)))


@rewrite("aten.gather")
def gather(builder: Builder, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Along a split dim: each rank gives the elements that it has, zeros for the others; the sum is owed."""
    x, index = args[0], args[2]
    dim = axis_of(args[1], len(x.shape)) if x.shape else 0
    if not x.shape or is_whole(x.state.pieces[dim]):
        return None
    piece = x.state.pieces[dim]
    others = [i for i in range(len(x.shape)) if i != dim]
    alike = all(x.shape[i] == index.shape[i] and x.state.pieces[i] == index.state.pieces[i] for i in others)
    if not alike or not contiguous(piece) or x.state.pending or not _free(builder.mesh, index.state, piece):
        return None
    graph = builder.graph
    layout = layout_of(builder.mesh, owing(builder.mesh, State(index.state.pieces), piece))
    fake = x.fake.new_empty(index.shape)

    def value(node: fx.Node) -> Value:
        made: Value = builder.wrap(node, fake, [layout], constant=False, flows=builder.gradients and x.differentiable)
        return made

    local, mine, empty = local_index(builder, index, x.layout, dim)
    node = x.node
    if empty:
        node = graph.call_function(aten.constant_pad_nd.default, (node, [0, 0] * (len(x.shape) - 1 - dim) + [0, 1]))
        node.meta["value"] = x
    found = value(graph.call_function(aten.gather.default, (node, dim, local)))
    other = graph.call_function(aten.logical_not.default, (mine,))
    return value(graph.call_function(aten.masked_fill.Scalar, (found.node, other, 0)))
