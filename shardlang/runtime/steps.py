"""Steps made ready for one rank of one team: what to pack, which collective to issue, where the pieces go.

A prepared step is started and finished; between the two its transfer is under way. Preparing looks at layouts and
runs; starting and finishing look at tensors only. A step's input is never written to, and what it returns may share
storage with its input only where the step is a ``slice``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any, Protocol

import torch

from shardlang.layout import ReduceOp
from shardlang.plan.steps import FREE, Step
from shardlang.runtime import collectives
from shardlang.runtime.blocks import Selection, overlap, read, read_into, select, window, write
from shardlang.runtime.collectives import Label
from shardlang.runtime.groups import Group, Team, group_of
from shardlang.runtime.moves import Moves, Piece, moves
from shardlang.runtime.reduce import combine, identity, scaled

_LARGE = 1 << 17
"""Bytes of a piece from which on gloo had better send each by itself than in one buffer (measured on loopback)."""
State = Any
"""What a started step keeps until it is finished."""


class Prepared(Protocol):
    """A step ready to run on this rank."""

    step: Step

    def start(self, block: torch.Tensor, out: torch.Tensor | None) -> State: ...

    def finish(self, state: State) -> torch.Tensor: ...


def prepare(step: Step, team: Team, rank: int, itemsize: int) -> Prepared:
    """Makes a step ready for the mesh's ``rank``. Makes the process group that it needs, if there is none yet.

    ``itemsize`` (bytes of an element) decides how pieces are sent, so all ranks must give the same.
    """
    if step.kind in FREE:
        return _Local(step, _local(step, rank))
    todo = moves(step, rank)
    group = group_of(tuple(team.physical(m) for m in todo.members), team.device)
    order = [m for _, m in sorted((team.physical(m), m) for m in todo.members)]
    if step.kind == "all_reduce":
        return _AllReduce(step, group)
    if group.backend == "gloo" and step.source.block_numel() * itemsize >= group.size * _LARGE:
        return _Direct(step, group, rank, order, todo)
    if step.kind == "all_gather" and todo.even and len(todo.receives) == group.size:
        return _AllGather(step, group, rank, order, todo)
    if step.kind == "reduce_scatter" and todo.even and group.backend == "nccl" and _each_whole(step, rank, todo):
        return _ReduceScatter(step, group, rank, order, todo)
    return _Pieces(step, group, rank, order, todo)


class _Local:
    """A free step."""

    def __init__(self, step: Step, apply: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self.step, self._apply = step, apply

    def start(self, block: torch.Tensor, out: torch.Tensor | None) -> State:
        return self._apply(block)

    def finish(self, state: State) -> torch.Tensor:
        result: torch.Tensor = state
        return result


def _local(step: Step, rank: int) -> Callable[[torch.Tensor], torch.Tensor]:
    if step.kind == "scale":
        factor = step.scale or Fraction(1)
        return lambda block: scaled(block, factor)
    have, wanted = step.source.runs(rank), step.target.runs(rank)
    if step.kind == "slice":
        picked = select(step.source.local_shape(rank), window(have, wanted))
        return lambda block: read(block, picked)
    return _mask(step, rank)


def _mask(step: Step, rank: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """Keeps this rank's part of a pending value; see ``plan.steps`` for who keeps what."""
    source, target, op = step.source, step.target, step.op
    assert op is not None
    mesh = source.mesh
    leaves = {leaf for name in step.axes for leaf in mesh.expand(name)}
    split = {leaf for name in source.cut_axes() for leaf in mesh.expand(name)} & leaves
    shape = target.local_shape(rank)
    if op == "sum" and any(mesh.coordinate(rank, leaf) for leaf in leaves - split):
        return lambda block: block.new_zeros(shape)
    factor = step.scale or Fraction(math.prod(mesh.axis(a).size for a in split) if op == "avg" else 1)
    have, wanted = source.runs(rank), target.runs(rank)
    common = overlap(have, wanted)
    if have == wanted:
        return (lambda block: block) if factor == 1 else (lambda block: scaled(block, factor))

    def masked(block: torch.Tensor) -> torch.Tensor:
        result = torch.full(shape, identity(block.dtype, op), dtype=block.dtype, device=block.device)
        if theirs is not None and ours is not None:
            write(result, ours, read(block if factor == 1 else scaled(block, factor), theirs))
        return result

    theirs = None if common is None else select(source.local_shape(rank), window(have, common))
    ours = None if common is None else select(shape, window(wanted, common))
    return masked


class _AllReduce:
    """Where the backend does not add the dtype itself, pieces go to their owners, are added there and gathered."""

    def __init__(self, step: Step, group: Group) -> None:
        self.step, self._group = step, group
        self._label = Label(step.kind, step.axes)
        self._op, self._divide = _operation(step)

    def start(self, block: torch.Tensor, out: torch.Tensor | None) -> State:
        group, n = self._group, self._group.size
        if collectives.reduces(group, block.dtype) and (group.backend != "gloo" or not _worth_pieces(block, n)):
            total = _copy(block, out)
            return collectives.all_reduce(group, self._label, total, self._op), total, None
        size = -(-block.numel() // n)
        given = block.reshape(-1)
        if size * n != given.numel():
            given = given.new_zeros(size * n)
            given[: block.numel()] = block.reshape(-1)
        pieces = torch.empty_like(given)
        return collectives.all_to_all(group, self._label, pieces, given, None, None), block, (given, pieces, out)

    def finish(self, state: State) -> torch.Tensor:
        work, block, buffers = state
        work.wait()
        if buffers is None:
            return block if self._divide == 1 else _divided(block, self._divide)
        _, pieces, out = buffers
        mine = combine(pieces.view(self._group.size, -1).unbind(0), self._op, divide=self._divide)
        fits = out is not None and out.is_contiguous() and out.numel() == pieces.numel() and out.dtype == block.dtype
        whole = out.view(-1) if fits else torch.empty_like(pieces)
        collectives.all_gather(self._group, Label(self._label.kind, self._label.axes, 0), whole, mine).wait()
        return whole[: block.numel()].view(block.shape)


class _AllGather:
    def __init__(self, step: Step, group: Group, rank: int, order: list[int], todo: Moves) -> None:
        self.step, self._group = step, group
        self._label = Label(step.kind, step.axes)
        self._shape = step.target.local_shape(rank)
        self._places = _places(step, rank, order, todo.receives)
        self._direct = _in_line(self._places, math.prod(self._shape))

    def start(self, block: torch.Tensor, out: torch.Tensor | None) -> State:
        result = _result(block, self._shape, out)
        given = block.contiguous().view(-1)
        gathered = result.view(-1) if self._direct else given.new_empty(given.numel() * self._group.size)
        return collectives.all_gather(self._group, self._label, gathered, given), gathered, result, given

    def finish(self, state: State) -> torch.Tensor:
        work, gathered, result, _ = state
        work.wait()
        if not self._direct:
            for piece, place in zip(gathered.view(self._group.size, -1), self._places, strict=True):
                assert place is not None
                write(result, place, piece)
        answer: torch.Tensor = result
        return answer


class _ReduceScatter:
    """By a backend whose reduce-scatter sends no more than it must."""

    def __init__(self, step: Step, group: Group, rank: int, order: list[int], todo: Moves) -> None:
        self.step, self._group = step, group
        self._label = Label(step.kind, step.axes)
        self._shape = step.target.local_shape(rank)
        self._sources = _sources(step, rank, order, todo.sends)
        self._direct = _in_line(self._sources, math.prod(step.source.local_shape(rank)))
        self._op, self._divide = _operation(step)

    def start(self, block: torch.Tensor, out: torch.Tensor | None) -> State:
        result = _result(block, self._shape, out)
        given = block.contiguous().view(-1) if self._direct else _packed(block, self._sources)
        if not collectives.reduces(self._group, block.dtype):
            pieces = torch.empty_like(given)
            return collectives.all_to_all(self._group, self._label, pieces, given, None, None), pieces, given, result
        work = collectives.reduce_scatter(self._group, self._label, result.view(-1), given, self._op)
        return work, None, given, result

    def finish(self, state: State) -> torch.Tensor:
        work, pieces, _, result = state
        work.wait()
        if pieces is not None:
            parts = pieces.view(self._group.size, *self._shape).unbind(0)
            return combine(parts, self._op, divide=self._divide)
        answer: torch.Tensor = result if self._divide == 1 else _divided(result, self._divide)
        return answer


class _Pieces:
    """Any step, as an all-to-all of its pieces; reduced on arrival where pending axes end."""

    def __init__(self, step: Step, group: Group, rank: int, order: list[int], todo: Moves) -> None:
        self.step, self._group = step, group
        self._label = Label(step.kind, step.axes)
        self._member = rank in step.target.mesh.ranks
        self._shape = step.target.local_shape(rank) if self._member else (0,)
        self._sources = _sources(step, rank, order, todo.sends)
        self._places = _places(step, rank, order, todo.receives)
        self._parts: list[tuple[int, ...] | None] = [None] * len(order)
        for piece in todo.receives:
            self._parts[order.index(piece.peer)] = piece.part
        self._sizes = [0 if s is None else s.numel for s in self._sources]
        self._out_sizes = [0 if p is None else p.numel for p in self._places]
        self._even = todo.even and len({*self._sizes, *self._out_sizes}) == 1
        count = math.prod(self._shape)
        self._reduced = bool(todo.reduced)
        self._op, self._divide = _operation(step) if self._reduced else ("sum", 1)
        self._whole = self._reduced and all(p is None or p.shape == self._shape for p in self._places)
        self._in_line = not self._reduced and _in_line(self._places, count)
        given = math.prod(step.source.local_shape(rank)) if rank in step.source.mesh.ranks else 0
        self._straight = _in_line(self._sources, given)
        own = order.index(rank)
        # What a rank keeps goes past the buffers, unless both are the tensors themselves.
        self._own = None if self._in_line or self._straight or self._reduced or self._even else own
        if self._own is not None:
            self._sizes[own] = self._out_sizes[own] = 0
        self._index = own

    def start(self, block: torch.Tensor, out: torch.Tensor | None) -> State:
        result = _result(block, self._shape, out) if not self._reduced else None
        if self._straight:
            given = block.contiguous().view(-1)
        else:
            given = _packed(block, [None if i == self._own else s for i, s in enumerate(self._sources)])
        if self._in_line and result is not None:
            got = result.view(-1)
        else:
            got = block.new_empty(sum(self._out_sizes))
        sizes = (None, None) if self._even else (self._out_sizes, self._sizes)
        work = collectives.all_to_all(self._group, self._label, got, given, *sizes)
        if self._own is not None and result is not None:
            source, place = self._sources[self._own], self._places[self._own]
            if source is not None and place is not None:
                write(result, place, read(block, source))
        return work, got, given, result

    def finish(self, state: State) -> torch.Tensor:
        work, got, _, result = state
        work.wait()
        if self._reduced:
            return self._combined(got)
        if not self._in_line:
            for index, piece in enumerate(got.split(self._out_sizes)):
                place = self._places[index]
                if place is not None and index != self._own:
                    write(result, place, piece)
        answer: torch.Tensor = result
        return answer

    def _combined(self, got: torch.Tensor) -> torch.Tensor:
        pieces = got.split(self._out_sizes)
        parts: dict[tuple[int, ...], torch.Tensor] = {}
        for index, (part, place) in enumerate(zip(self._parts, self._places, strict=True)):
            if part is None or place is None:
                continue
            if self._whole:
                parts[part] = pieces[index].view(self._shape)
            else:
                write(parts.setdefault(part, got.new_empty(self._shape)), place, pieces[index])
        if not parts:
            return got.new_empty(self._shape)
        return combine([parts[key] for key in sorted(parts)], self._op, divide=self._divide)


class _Direct:
    """Any step, each piece by itself: straight from the old block and into the new one where both are contiguous."""

    def __init__(self, step: Step, group: Group, rank: int, order: list[int], todo: Moves) -> None:
        self.step, self._group, self._index = step, group, order.index(rank)
        self._label = Label(step.kind, step.axes)
        self._shape = step.target.local_shape(rank) if rank in step.target.mesh.ranks else (0,)
        self._sources = _sources(step, rank, order, todo.sends)
        self._places = _places(step, rank, order, todo.receives)
        self._parts = {order.index(p.peer): p.part for p in todo.receives}
        self._reduced = bool(todo.reduced)
        self._op, self._divide = _operation(step) if self._reduced else ("sum", 1)
        # In ring order, so that not all ranks send to the same one at once.
        self._ring = [(self._index + k) % group.size for k in range(1, group.size)]

    def start(self, block: torch.Tensor, out: torch.Tensor | None) -> State:
        block = block.contiguous()
        result = _result(block, self._shape, None if self._reduced else out)
        receives, sends = [], []
        for i in self._ring[::-1]:
            place = self._places[i]
            if place is not None and place.numel:
                straight = place.leading is not None and not self._reduced
                receives.append((i, _stretch(result, place) if straight else block.new_empty(place.numel)))
        for i in self._ring:
            source = self._sources[i]
            if source is not None and source.numel:
                sends.append((i, _stretch(block, source) if source.leading is not None else _packed(block, [source])))
        works = collectives.exchange(self._group, self._label, sends, receives)
        own, kept = self._sources[self._index], self._places[self._index]
        mine = None if own is None else read(block, own)
        if mine is not None and kept is not None and not self._reduced:
            write(result, kept, mine)
        return works, receives, sends, result, mine

    def finish(self, state: State) -> torch.Tensor:
        works, receives, _, result, mine = state
        arrived: dict[int, torch.Tensor] = {} if mine is None else {self._index: mine}
        for work, (i, piece) in zip(works, receives, strict=False):
            work.wait()
            place = self._places[i]
            assert place is not None
            if self._reduced:
                arrived[i] = piece
            elif place.leading is None:
                write(result, place, piece)
        for work in works[len(receives) :]:
            work.wait()
        if not self._reduced or not self._places:
            answer: torch.Tensor = result
            return answer
        parts: dict[tuple[int, ...], torch.Tensor] = {}
        for i, part in self._parts.items():
            place = self._places[i]
            assert place is not None
            if place.everything:
                parts[part] = arrived[i].view(self._shape)
            else:
                write(parts.setdefault(part, torch.empty_like(result)), place, arrived[i])
        return combine([parts[key] for key in sorted(parts)], self._op, divide=self._divide) if parts else result


def _stretch(tensor: torch.Tensor, selection: Selection) -> torch.Tensor:
    assert selection.leading is not None
    return tensor.view(-1)[slice(*selection.leading)]


def _operation(step: Step) -> tuple[ReduceOp, int]:
    """How to reduce the pending axes that end in a step: an operator and what to divide the result by."""
    ended = [p for p in step.source.owed() if p not in step.target.owed()]
    ops = {p.op for p in ended}
    divide = math.prod(step.source.mesh.axis(p.axis).size for p in ended if p.op == "avg")
    return ("sum" if ops <= {"sum", "avg"} else next(iter(ops))), divide


def _each_whole(step: Step, rank: int, todo: Moves) -> bool:
    """Does every member send this rank its part of the rank's whole new block?"""
    return len(todo.receives) == len(todo.members) and all(p.runs == step.target.runs(rank) for p in todo.receives)


def _sources(step: Step, rank: int, order: list[int], pieces: tuple[Piece, ...]) -> list[Selection | None]:
    """Where each member's piece lies in this rank's old block, in the group's order."""
    if not pieces:
        return [None] * len(order)
    have, shape = step.source.runs(rank), step.source.local_shape(rank)
    found = {p.peer: select(shape, window(have, p.runs)) for p in pieces}
    return [found.get(m) for m in order]


def _places(step: Step, rank: int, order: list[int], pieces: tuple[Piece, ...]) -> list[Selection | None]:
    """Where the piece of each member goes in this rank's new block, in the group's order."""
    if not pieces:
        return [None] * len(order)
    wanted, shape = step.target.runs(rank), step.target.local_shape(rank)
    found = {p.peer: select(shape, window(wanted, p.runs)) for p in pieces}
    return [found.get(m) for m in order]


def _in_line(selections: list[Selection | None], numel: int) -> bool:
    """Are the pieces, in order, one after another, all of a contiguous tensor?"""
    at = 0
    for selection in selections:
        if selection is None:
            continue
        if selection.leading is None or selection.leading[0] != at:
            return False
        at = selection.leading[1]
    return at == numel


def _packed(block: torch.Tensor, sources: list[Selection | None]) -> torch.Tensor:
    """The pieces one after another in a flat buffer."""
    pieces = [s for s in sources if s is not None]
    buffer = block.new_empty(sum(s.numel for s in pieces))
    at = 0
    for piece in pieces:
        read_into(buffer[at : at + piece.numel], block, piece)
        at += piece.numel
    return buffer


def _result(block: torch.Tensor, shape: tuple[int, ...], out: torch.Tensor | None) -> torch.Tensor:
    if out is not None and out.is_contiguous() and tuple(out.shape) == shape and out.dtype == block.dtype:
        return out
    return block.new_empty(shape)


def _copy(block: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
    total = _result(block, tuple(block.shape), out)
    total.copy_(block)
    return total


def _divided(total: torch.Tensor, by: int) -> torch.Tensor:
    if total.dtype.is_floating_point:
        return total.div_(by)
    return total.copy_(scaled(total, Fraction(1, by)))


def _worth_pieces(block: torch.Tensor, ways: int) -> bool:
    """On gloo, two rounds of direct pieces beat its ring from some 256 KiB on (measured on loopback)."""
    return block.nbytes >= 1 << 18 and block.numel() % ways == 0
