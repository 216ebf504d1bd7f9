"""One rank's part in a step that sends: its pieces, where they lie in its old block and go in its new one."""

from __future__ import annotations

import math

import torch
from attrs import frozen

from shardlang.layout import ReduceOp
from shardlang.plan.steps import Step
from shardlang.runtime.blocks import Selection, read_into, select, window, write
from shardlang.runtime.collectives import Label
from shardlang.runtime.groups import Group, Team, group_of
from shardlang.runtime.moves import Piece, moves
from shardlang.runtime.reduce import combine


@frozen(eq=False)
class Crossing:
    """The facts of a step for one rank. Lists are by member, in the group's order; ``None`` where there is no piece.

    ``reduced``: pending axes end in the step. Then ``op`` reduces the parts and the sum is divided by ``divide``;
    ``parts`` are the members' coordinates on those axes. ``whole``: each member's piece is this rank's whole new block.
    ``even``: the pieces of all ranks are equal, as far as the layouts can tell. ``held``: elements of the old block.
    ``over``: the leaf axes along which ranks hear from each other, ``None`` where it may be anybody.
    """

    step: Step
    group: Group
    label: Label
    index: int
    held: int
    shape: tuple[int, ...]
    sources: tuple[Selection | None, ...]
    places: tuple[Selection | None, ...]
    parts: tuple[tuple[int, ...] | None, ...]
    reduced: bool
    op: ReduceOp
    divide: int
    whole: bool
    over: tuple[str, ...] | None
    even: bool


def crossing(step: Step, team: Team, rank: int) -> Crossing:
    """Works a step out for the mesh's ``rank``; makes the process group that it needs, if there is none yet."""
    todo = moves(step, rank)
    group = group_of(tuple(team.physical(m) for m in todo.members), team.device)
    order = [m for _, m in sorted((team.physical(m), m) for m in todo.members)]
    shape = step.target.local_shape(rank) if rank in step.target.mesh.ranks else (0,)
    parts = {p.peer: p.part for p in todo.receives}
    places = _selections(step.target.runs(rank), shape, order, todo.receives) if todo.receives else (None,) * len(order)
    sources: tuple[Selection | None, ...] = (None,) * len(order)
    held = step.source.local_shape(rank) if rank in step.source.mesh.ranks else (0,)
    if todo.sends:
        sources = _selections(step.source.runs(rank), held, order, todo.sends)
    op, divide = _operation(step)
    return Crossing(
        step,
        group,
        Label(step.kind, step.axes),
        order.index(rank),
        math.prod(held),
        shape,
        sources,
        places,
        tuple(parts.get(m) for m in order),
        bool(todo.reduced),
        op,
        divide,
        bool(todo.reduced) and all(p is not None and p.everything for p in places),
        todo.over,
        todo.even,
    )


def _selections(
    block: tuple[tuple[tuple[int, int], ...], ...], shape: tuple[int, ...], order: list[int], pieces: tuple[Piece, ...]
) -> tuple[Selection | None, ...]:
    found = {p.peer: select(shape, window(block, p.runs)) for p in pieces}
    return tuple(found.get(m) for m in order)


def _operation(step: Step) -> tuple[ReduceOp, int]:
    """How to reduce the pending axes that end in a step: an operator and what to divide the result by."""
    ended = [p for p in step.source.owed() if p not in step.target.owed()]
    ops = {p.op for p in ended}
    divide = math.prod(step.source.mesh.axis(p.axis).size for p in ended if p.op == "avg")
    return ("sum" if ops <= {"sum", "avg"} else next(iter(ops))), divide


def in_line(selections: tuple[Selection | None, ...], numel: int) -> bool:
    """Are the pieces, in order, one after another, all of a contiguous tensor of ``numel`` elements?"""
    at = 0
    for selection in selections:
        if selection is None:
            continue
        if selection.leading is None or selection.leading[0] != at:
            return False
        at = selection.leading[1]
    return at == numel


def even_cut(selections: tuple[Selection | None, ...]) -> tuple[int, int, int] | None:
    """Where the pieces, in order, are the equal parts of one dim: the elements before the dim, the number of parts, the
    elements of a part behind one index before it. ``None`` where they are not."""
    first = selections[0] if selections else None
    if first is None or first.regular is None or len(selections) < 2:
        return None
    cut = [d for d, (size, part) in enumerate(zip(first.local, first.shape, strict=True)) if size != part]
    if len(cut) != 1 or first.shape[cut[0]] * len(selections) != first.local[cut[0]]:
        return None
    dim, length = cut[0], first.shape[cut[0]]
    for i, piece in enumerate(selections):
        if piece is None or piece.regular is None or piece.shape != first.shape:
            return None
        if piece.regular[dim] != (i * length, 1, 0, length):
            return None
    return math.prod(first.local[:dim]), len(selections), math.prod(first.shape[dim:])


def packed(block: torch.Tensor, sources: tuple[Selection | None, ...]) -> torch.Tensor:
    """The pieces of a block one after another in a flat buffer."""
    pieces = [s for s in sources if s is not None]
    buffer = block.new_empty(sum(s.numel for s in pieces))
    at = 0
    for piece in pieces:
        read_into(buffer[at : at + piece.numel], block, piece)
        at += piece.numel
    return buffer


def assembled(cross: Crossing, pieces: list[torch.Tensor | None], result: torch.Tensor) -> torch.Tensor:
    """The new block of pieces by member: put in their places in ``result``, or reduced into a new tensor like it."""
    if not cross.reduced:
        for place, piece in zip(cross.places, pieces, strict=True):
            if place is not None and piece is not None:
                write(result, place, piece)
        return result
    parts: dict[tuple[int, ...], torch.Tensor] = {}
    for part, place, piece in zip(cross.parts, cross.places, pieces, strict=True):
        if part is None or place is None or piece is None:
            continue
        if place.everything:
            parts[part] = piece.reshape(cross.shape)
        else:
            write(parts.setdefault(part, result.new_empty(cross.shape)), place, piece)
    if not parts:
        return result.new_empty(cross.shape)
    return combine([parts[key] for key in sorted(parts)], cross.op, divide=cross.divide)


def room(block: torch.Tensor, shape: tuple[int, ...], out: torch.Tensor | None) -> torch.Tensor:
    """A tensor for a result: ``out`` where it fits."""
    if out is not None and out.is_contiguous() and tuple(out.shape) == shape and out.dtype == block.dtype:
        return out
    return block.new_empty(shape)
