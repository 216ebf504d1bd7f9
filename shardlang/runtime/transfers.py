"""Ways to carry out a crossing: by the backend's own collective, by one all-to-all of all pieces, piece by piece.

Each is started and finished; between the two its transfer is under way. A block that is given is never written to.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import torch

from shardlang.lower import torch_private
from shardlang.runtime import collectives, record
from shardlang.runtime.blocks import Selection, read, read_into, write
from shardlang.runtime.collectives import Label
from shardlang.runtime.crossing import Crossing, assembled, even_cut, in_line, packed, room
from shardlang.runtime.reduce import combine, scaled

State = Any
"""What a started step keeps until it is finished."""


class Way:
    """A way to carry out a crossing; ``run`` does it from start to end."""

    def __init__(self, cross: Crossing) -> None:
        self.cross, self.step = cross, cross.step

    def start(self, block: torch.Tensor, out: torch.Tensor | None) -> State:
        raise NotImplementedError

    staged = 0
    """Elements of a buffer that ``begin`` fills and that is free again after ``finish``."""

    def begin(self, block: torch.Tensor, stage: torch.Tensor | None) -> State:
        """As ``start``, where ``turn`` comes soon, for which some of it may be left. ``stage``: room for ``staged``."""
        return self.start(block, None)

    def finish(self, state: State) -> torch.Tensor:
        raise NotImplementedError

    def turn(self, state: State) -> State:
        """What can be done halfway, where there is something; waits for the first half."""
        return state

    def run(self, block: torch.Tensor) -> torch.Tensor:
        return self.finish(self.start(block, None))


class AllReduce(Way):
    """Where the backend does not add the dtype itself, pieces go to their owners, are added there and gathered."""

    def by_backend(self, block: torch.Tensor) -> bool:
        """Does the backend's own all-reduce of the block do it, and nothing else?"""
        cross = self.cross
        return collectives.reduces(cross.group, block.dtype) and cross.op == "sum" and cross.divide == 1

    def start(self, block: torch.Tensor, out: torch.Tensor | None) -> State:
        cross = self.cross
        group, n = cross.group, cross.group.size
        if collectives.reduces(group, block.dtype):
            total = room(block, tuple(block.shape), out).copy_(block)
            return collectives.all_reduce(group, cross.label, total, cross.op), total, None
        given = block.reshape(-1)
        if block.numel() % n:
            given = given.new_zeros(-(-block.numel() // n) * n)
            given[: block.numel()] = block.reshape(-1)
        pieces = torch.empty_like(given)
        return collectives.all_to_all(group, cross.label, pieces, given, None, None), block, (given, pieces, out)

    def turn(self, state: State) -> State:
        """Halfway: adds up the pieces that arrived and starts to gather the sums."""
        work, block, buffers = state
        if buffers is None or isinstance(buffers, torch.Tensor):
            return state
        work.wait()
        cross = self.cross
        _, pieces, out = buffers
        mine = combine(pieces.view(cross.group.size, -1).unbind(0), cross.op, divide=cross.divide)
        fits = out is not None and out.is_contiguous() and out.numel() == pieces.numel() and out.dtype == block.dtype
        # The parts are added up, and their room is that of the result.
        whole = out.view(-1) if fits else pieces
        label = Label(cross.label.kind, cross.label.axes, 0)
        return collectives.all_gather(cross.group, label, whole, mine), block, whole

    def finish(self, state: State) -> torch.Tensor:
        work, block, whole = self.turn(state)
        work.wait()
        if whole is not None:
            answer: torch.Tensor = whole[: block.numel()].view(block.shape)
            return answer
        return block if self.cross.divide == 1 else _divided(block, self.cross.divide)


class AllGather(Way):
    """Equal blocks, by the backend's own."""

    def __init__(self, cross: Crossing) -> None:
        super().__init__(cross)
        self._direct = in_line(cross.places, math.prod(cross.shape))
        self._shape, self._group = cross.shape, cross.group
        first = cross.places[0]
        # One block under the other along the first dim: backends take both as they are.
        self._stacked = self._direct and first is not None and first.shape[1:] == cross.shape[1:] and first.shape != ()
        self._cut = None if self._stacked else even_cut(cross.places)

    def run(self, block: torch.Tensor) -> torch.Tensor:
        if not (self._stacked or self._cut) or record.recording() or not collectives.plain(block):
            return super().run(block)
        if self._cut is None:
            result = block.new_empty(*self._shape)
            torch_private.gather_stacked(self._group.handle, result, block)
            return result
        # One block under the other, and then all of them side by side in the dim that was cut.
        before, parts, after = self._cut
        under = block.new_empty(parts * before, after)
        torch_private.gather_stacked(self._group.handle, under, block.view(before, after))
        return under.view(parts, before, after).transpose(0, 1).reshape(self._shape)

    def start(self, block: torch.Tensor, out: torch.Tensor | None) -> State:
        result = room(block, self.cross.shape, out)
        given = block.contiguous().view(-1)
        gathered = result.view(-1) if self._direct else given.new_empty(given.numel() * self.cross.group.size)
        return collectives.all_gather(self.cross.group, self.cross.label, gathered, given), gathered, result, given

    def finish(self, state: State) -> torch.Tensor:
        work, gathered, result, _ = state
        work.wait()
        if self._direct:
            answer: torch.Tensor = result
            return answer
        return assembled(self.cross, list(gathered.view(self.cross.group.size, -1)), result)


class ReduceScatter(Way):
    """Equal pieces, by a backend whose own reduce-scatter sends no more than it must."""

    def __init__(self, cross: Crossing) -> None:
        super().__init__(cross)
        self._direct = in_line(cross.sources, cross.held)
        self._cut = None if self._direct else even_cut(cross.sources)

    def run(self, block: torch.Tensor) -> torch.Tensor:
        cross = self.cross
        if record.recording() or not block.is_contiguous() or not collectives.reduces(cross.group, block.dtype):
            return super().run(block)
        if self._cut is not None:
            before, parts, after = self._cut
            block = block.view(before, parts, after).transpose(0, 1).contiguous()
        elif not self._direct:
            return super().run(block)
        result = block.new_empty(cross.shape)
        collectives.reduce_scatter_at_once(cross.group, result.view(-1), block.view(-1), cross.op)
        return result if cross.divide == 1 else _divided(result, cross.divide)

    def start(self, block: torch.Tensor, out: torch.Tensor | None) -> State:
        cross = self.cross
        result = room(block, cross.shape, out)
        given = block.contiguous().view(-1) if self._direct else packed(block, cross.sources)
        if not collectives.reduces(cross.group, block.dtype):
            pieces = torch.empty_like(given)
            return collectives.all_to_all(cross.group, cross.label, pieces, given, None, None), pieces, given, result
        work = collectives.reduce_scatter(cross.group, cross.label, result.view(-1), given, cross.op)
        return work, None, given, result

    def finish(self, state: State) -> torch.Tensor:
        work, pieces, _, result = state
        work.wait()
        cross = self.cross
        if pieces is not None:
            parts = pieces.view(cross.group.size, *cross.shape).unbind(0)
            return combine(parts, cross.op, divide=cross.divide)
        answer: torch.Tensor = result if cross.divide == 1 else _divided(result, cross.divide)
        return answer


class Pieces(Way):
    """Any crossing, as one all-to-all of its pieces."""

    def __init__(self, cross: Crossing) -> None:
        super().__init__(cross)
        self._sizes = [0 if s is None else s.numel for s in cross.sources]
        self._out_sizes = [0 if p is None else p.numel for p in cross.places]
        self._even = cross.even and len({*self._sizes, *self._out_sizes}) == 1
        self._in_line = not cross.reduced and in_line(cross.places, math.prod(cross.shape))
        self._straight = in_line(cross.sources, cross.held)
        self._sources = list(cross.sources)
        # What a rank keeps goes past the buffers, unless both are the tensors themselves.
        self._past = not (self._in_line or self._straight or cross.reduced or self._even)
        if self._past:
            self._sizes[cross.index] = self._out_sizes[cross.index] = 0
            self._sources[cross.index] = None

    def start(self, block: torch.Tensor, out: torch.Tensor | None) -> State:
        cross = self.cross
        result = block if cross.reduced else room(block, cross.shape, out)
        given = block.contiguous().view(-1) if self._straight else packed(block, tuple(self._sources))
        got = result.view(-1) if self._in_line else block.new_empty(sum(self._out_sizes))
        sizes = (None, None) if self._even else (self._out_sizes, self._sizes)
        work = collectives.all_to_all(cross.group, cross.label, got, given, *sizes)
        if self._past:
            keep(cross, block, result)
        return work, got, given, result

    def finish(self, state: State) -> torch.Tensor:
        work, got, _, result = state
        work.wait()
        if self._in_line:
            answer: torch.Tensor = result
            return answer
        pieces: list[torch.Tensor | None] = list(got.split(self._out_sizes))
        if self._past:
            pieces[self.cross.index] = None
        return assembled(self.cross, pieces, result)


class Direct(Way):
    """Any crossing, each piece by itself: straight out of the old block and into the new one where it is contiguous."""

    def __init__(self, cross: Crossing) -> None:
        super().__init__(cross)
        # In ring order, so that not all ranks send to the same one at once.
        ring = [(cross.index + k) % cross.group.size for k in range(1, cross.group.size)]
        self._receives: list[tuple[int, Selection, tuple[int, int] | None]] = []
        """Of whom, which part of the new block, and which stretch of it (start, length) where that is received into."""
        for i in ring[::-1]:
            place = cross.places[i]
            if place is not None and place.numel:
                self._receives.append((i, place, None if cross.reduced else _narrow(place)))
        self._sends: list[tuple[int, Selection, tuple[int, int] | None]] = []
        """To whom, which part of the old block, and which stretch of it if it is one: then that is sent."""
        for i in ring:
            source = cross.sources[i]
            if source is not None and source.numel:
                self._sends.append((i, source, _narrow(source)))
        self._pieces = [source.numel for _, source, straight in self._sends if straight is None]
        self.staged = sum(self._pieces)
        self._tag = zlib.crc32(f"{self.step.kind} {self.step.source} {self.step.target}".encode()) >> 2

    def start(self, block: torch.Tensor, out: torch.Tensor | None) -> State:
        return self._receive(self.begin(block, None), out)

    def begin(self, block: torch.Tensor, stage: torch.Tensor | None) -> State:
        block = block.contiguous()
        given = block.view(-1)
        pieces: Iterator[torch.Tensor] = iter(())
        if self.staged:
            pieces = iter(
                torch.split_with_sizes(block.new_empty(self.staged) if stage is None else stage, self._pieces)
            )
        sends = []
        for i, source, straight in self._sends:
            if straight is None:
                piece = next(pieces)
                read_into(piece, block, source)
            else:
                piece = given.narrow(0, *straight)
            sends.append((i, piece))
        sent = collectives.send(self.cross.group, self.cross.label, sends, self._tag)
        return sent, None, sends, None, block

    def turn(self, state: State) -> State:
        """Halfway: makes room for the result and starts to receive into it."""
        return self._receive(state, None) if state[1] is None else state

    def _receive(self, state: State, out: torch.Tensor | None) -> State:
        sent, _, sends, _, block = state
        cross = self.cross
        result = block if cross.reduced else room(block, cross.shape, out)
        made = result.view(-1)
        receives = [
            (i, block.new_empty(place.numel) if straight is None else made.narrow(0, *straight))
            for i, place, straight in self._receives
        ]
        works = collectives.receive(cross.group, cross.label, receives, self._tag) + sent
        if not cross.reduced:
            keep(cross, block, result)
        return works, receives, sends, result, block

    def finish(self, state: State) -> torch.Tensor:
        works, receives, _, result, block = self.turn(state)
        cross = self.cross
        pieces: list[torch.Tensor | None] = [None] * cross.group.size
        for work, (i, piece) in zip(works, receives, strict=False):
            work.wait()
            place = cross.places[i]
            if cross.reduced:
                pieces[i] = piece
            elif place is not None and place.leading is None:
                write(result, place, piece)
        for work in works[len(receives) :]:
            work.wait()
        if not cross.reduced:
            answer: torch.Tensor = result
            return answer
        own = cross.sources[cross.index]
        if own is not None:
            pieces[cross.index] = read(block, own)
        return assembled(cross, pieces, result)


def _narrow(part: Selection) -> tuple[int, int] | None:
    """Where a part starts in the flattened block and how long it is, if it is one stretch of it."""
    return None if part.leading is None else (part.leading[0], part.leading[1] - part.leading[0])


def keep(cross: Crossing, block: torch.Tensor, result: torch.Tensor) -> None:
    """Puts what a rank keeps in its place."""
    source, place = cross.sources[cross.index], cross.places[cross.index]
    if source is not None and place is not None:
        write(result, place, read(block, source))


def _divided(total: torch.Tensor, by: int) -> torch.Tensor:
    if total.dtype.is_floating_point:
        return total.div_(by)
    return total.copy_(scaled(total, Fraction(1, by)))
