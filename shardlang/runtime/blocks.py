"""Parts of local blocks: where a part's runs lie in a block, read out and written in.

A *window* is a list of intervals in each dim of a local tensor; a part is the product of its dims' intervals, taken in
row-major order. One interval a dim, or equal ones at equal distances, is a view; anything else goes by index.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

import torch
from attrs import frozen

from shardlang.layout import Runs, intersect_runs

Window = tuple[Runs, ...]
"""For each dim, the intervals of a local tensor's indices."""


def window(have: tuple[Runs, ...], part: tuple[Runs, ...]) -> Window:
    """Where ``part`` lies in the block ``have`` (both in global indices, ``part`` within ``have``)."""
    return tuple(_offsets(h, p) for h, p in zip(have, part, strict=True))


def overlap(left: tuple[Runs, ...], right: tuple[Runs, ...]) -> tuple[Runs, ...] | None:
    """What two blocks have in common; ``None`` where that is nothing. Blocks of a zero-dim tensor are equal."""
    common = tuple(intersect_runs(a, b) for a, b in zip(left, right, strict=True))
    return common if all(common) else None


def shape_of(part: tuple[Runs, ...]) -> tuple[int, ...]:
    return tuple(sum(b - a for a, b in runs) for runs in part)


def _offsets(have: Runs, part: Runs) -> Runs:
    offsets: list[tuple[int, int]] = []
    at = 0
    runs = iter(part)
    run = next(runs, None)
    for a, b in have:
        while run is not None and run[0] < b:
            lo, hi = run[0] - a + at, min(run[1], b) - a + at
            if offsets and offsets[-1][1] == lo:
                offsets[-1] = (offsets[-1][0], hi)
            else:
                offsets.append((lo, hi))
            if run[1] > b:
                run = (b, run[1])
                break
            run = next(runs, None)
        at += b - a
    return tuple(offsets)


@frozen(eq=False)
class Selection:
    """A window made ready for tensors of one local shape.

    ``leading`` says that the part is one contiguous stretch ``[start, stop)`` of the flattened contiguous tensor.
    """

    local: tuple[int, ...]
    shape: tuple[int, ...]
    regular: tuple[tuple[int, int, int, int], ...] | None
    """For each dim: start, number of intervals, their distance, their length; ``None`` where some dim is irregular."""
    index: tuple[torch.Tensor, ...] | None
    leading: tuple[int, int] | None

    @cached_property
    def numel(self) -> int:
        return math.prod(self.shape)

    @cached_property
    def everything(self) -> bool:
        return self.shape == self.local

    @cached_property
    def lens(self) -> tuple[tuple[int, ...], tuple[int, ...], int] | None:
        """Sizes, strides and offset of the part as a view of a contiguous tensor, where there is such a view."""
        strides = [math.prod(self.local[d + 1 :]) for d in range(len(self.local))]
        return None if self.regular is None else _seen(self.regular, strides)


def select(local: tuple[int, ...], where: Window) -> Selection:
    """Prepares a window of a local tensor of shape ``local``."""
    shape = shape_of(where)
    regular = [_regular(intervals) for intervals in where]
    if all(r is not None for r in regular):
        kept = tuple(r for r in regular if r is not None)
        return Selection(local, shape, kept, None, _stretch(local, kept))
    last = len(where) - 1
    index = tuple(
        torch.cat([torch.arange(a, b) for a, b in intervals]).reshape(-1, *[1] * (last - d))
        for d, intervals in enumerate(where)
    )
    return Selection(local, shape, None, index, None)


def _regular(intervals: Runs) -> tuple[int, int, int, int] | None:
    if not intervals:
        return 0, 1, 0, 0
    start, stop = intervals[0]
    if len(intervals) == 1:
        return start, 1, 0, stop - start
    step = intervals[1][0] - start
    expected = tuple((start + i * step, stop + i * step) for i in range(len(intervals)))
    return (start, len(intervals), step, stop - start) if intervals == expected else None


def _stretch(local: tuple[int, ...], dims: tuple[tuple[int, int, int, int], ...]) -> tuple[int, int] | None:
    """The stretch of flattened elements that a part is, if it is one: full dims behind the first that is cut."""
    start, length, inner = 0, 1, 1
    cut = False
    for size, (begin, count, _, extent) in zip(reversed(local), reversed(dims), strict=True):
        if count != 1 or (cut and extent != 1):
            return None
        start += begin * inner
        length *= extent
        cut = cut or extent != size
        inner *= size
    return start, start + length


def view(tensor: torch.Tensor, selection: Selection) -> torch.Tensor | None:
    """The part as a view, with one more dim for each dim of several intervals; ``None`` where there is no such view."""
    if selection.regular is None:
        return None
    lens = selection.lens if tensor.is_contiguous() else _seen(selection.regular, tensor.stride())
    assert lens is not None
    return tensor.as_strided(lens[0], lens[1], tensor.storage_offset() + lens[2])


def _seen(
    dims: Sequence[tuple[int, int, int, int]], strides: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Sizes, strides and offset of a part of a tensor of these strides."""
    sizes: list[int] = []
    steps: list[int] = []
    offset = 0
    for stride, (start, count, step, length) in zip(strides, dims, strict=True):
        offset += start * stride
        if count > 1:
            sizes.append(count)
            steps.append(step * stride)
        sizes.append(length)
        steps.append(stride)
    return tuple(sizes), tuple(steps), offset


def read(tensor: torch.Tensor, selection: Selection) -> torch.Tensor:
    """The part, in its own shape: a view where it can be one."""
    if selection.everything:
        return tensor
    seen = view(tensor, selection)
    if seen is not None:
        return seen if tuple(seen.shape) == selection.shape else seen.reshape(selection.shape)
    assert selection.index is not None
    picked = bits(tensor)[_on(selection.index, tensor)]
    return picked.view(tensor.dtype) if picked.dtype != tensor.dtype else picked


def read_into(flat: torch.Tensor, tensor: torch.Tensor, selection: Selection) -> None:
    """Copies the part, row-major, into a flat buffer of its size."""
    seen = view(tensor, selection)
    if seen is None:
        flat.copy_(read(tensor, selection).reshape(-1))
    else:
        flat.view_as(seen).copy_(seen)


def write(tensor: torch.Tensor, selection: Selection, value: torch.Tensor) -> None:
    """Puts a part (of its shape, or flat and row-major) in its place."""
    seen = view(tensor, selection)
    if seen is not None:
        seen.copy_(value if value.shape == seen.shape else value.reshape(seen.shape))
        return
    assert selection.index is not None
    bits(tensor)[_on(selection.index, tensor)] = bits(value.reshape(selection.shape))


def bits(x: torch.Tensor) -> torch.Tensor:
    """A view that indexing supports: 8-bit floats have no kernels for it."""
    return x.view(torch.uint8) if x.dtype.is_floating_point and x.dtype.itemsize == 1 else x


def _on(index: tuple[torch.Tensor, ...], tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tuple(i.to(tensor.device) for i in index) if tensor.device.type != "cpu" else index
