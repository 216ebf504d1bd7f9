"""Arrays in files, read by parts: only the pages that a box lies on are touched.

Two kinds: raw row-major bytes at an offset (safetensors, and what shardlang's own checkpoints hold inside torch's
container), and an item that ``torch.save`` made, which is read whole.
"""

from __future__ import annotations

import ctypes
import io
import math
import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import torch
from attrs import define, field, frozen

from shardlang.diagnostics import ShardlangError, sl07_state
from shardlang.runtime.chunks import Box


@frozen
class StoredArray:
    """Row-major elements at a byte offset of a file; ``length`` bytes, or an item of ``torch.save`` of that length."""

    path: Path
    offset: int
    length: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    pickled: bool = False


@define
class Reader:
    """Open files, and how many bytes of arrays were read from them."""

    read: int = 0
    _maps: dict[Path, torch.Tensor] = field(factory=dict)
    _last: tuple[StoredArray, torch.Tensor] | None = None

    def box(self, array: StoredArray, box: Box) -> torch.Tensor:
        """The elements of a box of the array, in its shape: a view of the file where it can be one."""
        count = math.prod(b - a for a, b in box)
        self.read += count * array.dtype.itemsize
        place = tuple(slice(a, b) for a, b in box)
        if array.pickled:
            return self._item(array)[place]
        if not count:
            return torch.empty([b - a for a, b in box], dtype=array.dtype)
        first, rows = (box[0][0], box[0][1] - box[0][0]) if box else (0, 1)
        width = math.prod(array.shape[1:]) * array.dtype.itemsize
        start = array.offset + first * width
        held = self.map(array.path)[start : start + rows * width]
        if start % array.dtype.itemsize:
            held = held.clone()
        values = held.view(array.dtype).view(rows, *array.shape[1:]) if box else held.view(array.dtype).view(())
        return values[(slice(None), *place[1:])] if box else values

    def map(self, path: Path) -> torch.Tensor:
        """The bytes of a file; changes to them stay in this process."""
        found = self._maps.get(path)
        if found is None:
            found = torch.from_file(str(path), shared=False, size=path.stat().st_size, dtype=torch.uint8)
            self._maps[path] = found
        return found

    def _item(self, array: StoredArray) -> torch.Tensor:
        if self._last is None or self._last[0] != array:
            with path_errors(array.path), array.path.open("rb") as file:
                file.seek(array.offset)
                item = torch.load(io.BytesIO(file.read(array.length)), map_location="cpu", weights_only=True)
            self._last = (array, item.reshape(array.shape))
        return self._last[1]


@contextmanager
def path_errors(path: Path) -> Iterator[None]:
    """SL0750 for what cannot be read or understood of a file."""
    try:
        yield
    except ShardlangError:
        raise
    except Exception as error:
        why = str(error).strip().partition("\n")[0][:160] or type(error).__name__
        raise ShardlangError(sl07_state.no_checkpoint(str(path), why)) from error


def write_box(handle: int, offset: int, shape: tuple[int, ...], box: Box, values: torch.Tensor) -> int:
    """Writes the elements of a box of a row-major array at a byte offset of an open file; returns their bytes.

    ``values`` are on the CPU and contiguous, in the box's shape. Others may write other boxes at the same time.
    """
    if not values.numel():
        return 0
    size = values.element_size()
    last = len(shape)
    stretch = 1
    while last:
        last -= 1
        extent = box[last][1] - box[last][0]
        stretch *= extent
        if extent != shape[last]:
            break
    strides = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
    tail = sum(box[d][0] * strides[d] for d in range(last, len(shape)))
    held = memoryview((ctypes.c_char * values.nbytes).from_address(values.data_ptr())).cast("B")
    at = 0
    for outer in product(*(range(*box[d]) for d in range(last))):
        place = offset + (tail + sum(i * s for i, s in zip(outer, strides, strict=False))) * size
        pending = held[at : at + stretch * size]
        while pending:
            written = os.pwrite(handle, pending, place)
            place, pending = place + written, pending[written:]
        at += stretch * size
    return values.nbytes


def check_length(path: Path, due: int) -> None:
    """Raises SL0755 where a file is missing or shorter than what was written to it."""
    size = path.stat().st_size if path.is_file() else None
    if size is None or size < due:
        raise ShardlangError(sl07_state.file_short(str(path), size, due))


def raw_part(item: StoredArray, *, ours: bool) -> StoredArray:
    """The elements inside an item of ``torch.save``, which stores them uncompressed in a zip archive.

    The item itself where they are not row-major from the first element on, as our own (``ours``) always are.
    """
    with item.path.open("rb") as file:
        with zipfile.ZipFile(_Window(file, item.offset, item.length)) as archive:
            data = next((i for i in archive.infolist() if i.filename.endswith("/data/0")), None)
        if data is None or data.compress_type != zipfile.ZIP_STORED or data.file_size != _due(item):
            return item
        if not ours and not _row_major(io.BufferedReader(_Window(file, item.offset, item.length))):
            return item
        file.seek(item.offset + data.header_offset)
        header = file.read(30)
    start = data.header_offset + 30 + int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
    return StoredArray(item.path, item.offset + start, _due(item), item.dtype, item.shape)


def _due(item: StoredArray) -> int:
    return math.prod(item.shape) * item.dtype.itemsize


def _row_major(item: io.BufferedReader) -> bool:
    with torch.serialization.skip_data():
        tensor = torch.load(item, map_location="cpu", weights_only=True)
    return isinstance(tensor, torch.Tensor) and tensor.is_contiguous() and tensor.storage_offset() == 0


class _Window(io.RawIOBase):
    """A stretch of a file as a file of its own."""

    def __init__(self, file: io.BufferedReader, start: int, length: int) -> None:
        self._file, self._start, self._length, self._at = file, start, length, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._length)[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        size = min(len(buffer), max(0, self._length - self._at))
        self._file.seek(self._start + self._at)
        found = self._file.read(size)
        buffer[: len(found)] = found
        self._at += len(found)
        return len(found)


__all__ = ["Reader", "StoredArray", "check_length", "path_errors", "raw_part", "write_box"]
