"""A rank's block as chunks: what is stored of a tensor, and by whom; pure algebra over runs, no torch.

A *chunk* is a box of a tensor, one interval a dim: what a checkpoint's metadata can name. A block of several runs in a
dim is several chunks. Ranks that hold the same block share the writing of it, so that the owners' chunks of all ranks
tile the tensor exactly once.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product

from attrs import field, frozen

from shardlang.layout import Layout
from shardlang.mesh import Mesh

Box = tuple[tuple[int, int], ...]
"""Half-open intervals, one a dim, in global indices."""


@frozen
class Chunk:
    """A box of a tensor, and where it starts in the local block of the rank that holds it."""

    box: Box
    local: tuple[int, ...]

    @property
    def offsets(self) -> tuple[int, ...]:
        return tuple(a for a, _ in self.box)

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(b - a for a, b in self.box)

    @property
    def numel(self) -> int:
        return math.prod(self.sizes)

    @property
    def place(self) -> tuple[slice, ...]:
        """The chunk in the local block."""
        return tuple(slice(at, at + n) for at, n in zip(self.local, self.sizes, strict=True))


def chunks_of(layout: Layout, rank: int) -> tuple[Chunk, ...]:
    """The block of a rank of the layout's mesh, row-major by runs; none for an empty block, one for a scalar."""
    dims = []
    for runs in layout.runs(rank):
        at, placed = 0, []
        for a, b in runs:
            placed.append(((a, b), at))
            at += b - a
        dims.append(placed)
    return tuple(Chunk(tuple(run for run, _ in one), tuple(at for _, at in one)) for one in product(*dims))


def copies(layout: Layout) -> int:
    """How many ranks hold the same block."""
    return math.prod(layout.mesh.axis(a).size for a in layout.whole_axes())


def copy_index(layout: Layout, rank: int) -> int:
    """Which of the ranks with the same block this one is."""
    index = 0
    for axis in layout.whole_axes():
        index = index * layout.mesh.axis(axis).size + layout.mesh.coordinate(rank, axis)
    return index


def writers(layouts: Mapping[str, tuple[Layout, int]]) -> dict[str, int]:
    """For each tensor (layout, bytes an element): the index of the copy that is written.

    The largest tensors come first, each to the copy that has least so far; every rank comes to the same answer.
    """
    loads: dict[tuple[Mesh, tuple[str, ...]], list[int]] = {}
    chosen: dict[str, int] = {}
    weight = {key: layout.block_numel() * itemsize for key, (layout, itemsize) in layouts.items()}
    for key in sorted(layouts, key=lambda k: (-weight[k], k)):
        layout = layouts[key][0]
        load = loads.setdefault((layout.mesh, layout.whole_axes()), [0] * copies(layout))
        chosen[key] = min(range(len(load)), key=load.__getitem__)
        load[chosen[key]] += weight[key]
    return chosen


def owned(layout: Layout, rank: int, writer: int) -> tuple[Chunk, ...]:
    """The chunks that a rank writes, when copy ``writer`` of each block is the one that is written."""
    return chunks_of(layout, rank) if copy_index(layout, rank) == writer else ()


def split_chunk(chunk: Chunk, limit: int) -> Iterator[Chunk]:
    """The chunk in pieces of at most ``limit`` elements (at least one), cut along the first dims that must be."""
    dim = next((d for d, n in enumerate(chunk.sizes) if n > 1), None)
    if chunk.numel <= limit or dim is None:
        yield chunk
        return
    inner = chunk.numel // chunk.sizes[dim]
    step = max(1, limit // inner)
    start, stop = chunk.box[dim]
    for a in range(start, stop, step):
        b = min(a + step, stop)
        box = (*chunk.box[:dim], (a, b), *chunk.box[dim + 1 :])
        local = (*chunk.local[:dim], chunk.local[dim] + a - start, *chunk.local[dim + 1 :])
        yield from split_chunk(Chunk(box, local), limit)


def common(left: Box, right: Box) -> Box | None:
    """What two boxes share; ``None`` where that is nothing."""
    shared = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(left, right, strict=True))
    return shared if all(a < b for a, b in shared) else None


@frozen
class BoxIndex:
    """Boxes of one tensor, to be asked which of them meet another box."""

    boxes: Sequence[Box]
    _dim: int = field(init=False)
    _order: Sequence[int] = field(init=False)
    _starts: Sequence[int] = field(init=False)
    _longest: int = field(init=False)

    @_dim.default
    def _most_cut(self) -> int:
        dims = range(len(self.boxes[0]) if self.boxes else 0)
        return max(dims, key=lambda d: len({box[d][0] for box in self.boxes}), default=-1)

    @_order.default
    def _sorted(self) -> Sequence[int]:
        return sorted(range(len(self.boxes)), key=lambda i: self.boxes[i][self._dim][0] if self._dim >= 0 else 0)

    @_starts.default
    def _sorted_starts(self) -> Sequence[int]:
        return [self.boxes[i][self._dim][0] for i in self._order] if self._dim >= 0 else []

    @_longest.default
    def _longest_box(self) -> int:
        return max((box[self._dim][1] - box[self._dim][0] for box in self.boxes), default=0) if self._dim >= 0 else 0

    def meeting(self, box: Box) -> Iterator[tuple[int, Box]]:
        """(position, shared box) of every box that shares something with ``box``."""
        if self._dim < 0:
            found: Iterable[int] = self._order
        else:
            start, stop = box[self._dim]
            low = bisect_left(self._starts, start - self._longest + 1)
            found = self._order[low : bisect_left(self._starts, stop)]
        for i in found:
            shared = common(self.boxes[i], box)
            if shared is not None:
                yield i, shared


__all__ = ["Box", "BoxIndex", "Chunk", "chunks_of", "common", "copies", "copy_index", "owned", "split_chunk", "writers"]
