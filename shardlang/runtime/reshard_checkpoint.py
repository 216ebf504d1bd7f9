"""A checkpoint written anew for other ranks, by one process, without a model: each byte is read once.

A checkpoint loads on any mesh as it is; this makes one whose files are those of the ranks that will load it, or that
is in another format. Tensors go in pieces of bounded size.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import torch
from attrs import asdict, define, field, frozen
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from shardlang.check.checkpoint import stored_tensors
from shardlang.diagnostics import ShardlangError, sl07_state
from shardlang.dtypes import DTYPES
from shardlang.layout import Layout
from shardlang.lower import torch_private
from shardlang.runtime.checkpoint import spec_name
from shardlang.runtime.checkpoint_files import (
    ALIGNMENT,
    SUFFIX,
    CheckpointReader,
    place_metadata,
    read_metadata,
    sync,
)
from shardlang.runtime.checkpoint_plan import MARK, VERSION, box_of
from shardlang.runtime.chunks import Box, BoxIndex, Chunk, owned, split_chunk, writers
from shardlang.runtime.safetensors_files import FILE_LIMIT, Export, export_of, make_drafts, publish
from shardlang.runtime.stored_arrays import Reader, StoredArray, write_box

OPEN_FILES = 256
"""How many files are kept open at once."""


@frozen
class Entry:
    """A tensor of a checkpoint: dtype, shape, and the arrays that hold its boxes."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    boxes: BoxIndex
    arrays: tuple[Callable[[], StoredArray], ...]


@define
class Opened:
    """A checkpoint to be read: tensors, the bytes of objects, and where entries belong in nested dicts."""

    path: Path
    tensors: dict[str, Entry]
    objects: dict[str, bytes]
    paths: dict[str, Any]
    reader: Reader
    files: int

    def read(self, key: str, box: Box) -> torch.Tensor:
        """The elements of a box of a tensor, in storage of their own."""
        entry = self.tensors[key]
        values = torch.empty([b - a for a, b in box], dtype=entry.dtype)
        held = 0
        for i, shared in entry.boxes.meeting(box):
            array, home = entry.arrays[i](), entry.boxes.boxes[i]
            inner = tuple((a - h, b - h) for (a, b), (h, _) in zip(shared, home, strict=True))
            place = tuple(slice(a - o, b - o) for (a, b), (o, _) in zip(shared, box, strict=True))
            values[place] = self.reader.box(array, inner)
            held += values[place].numel()
        if held != values.numel():
            raise ShardlangError(sl07_state.stored_in_part(key, held, values.numel()))
        return values


def open_checkpoint(path: Path) -> Opened:
    """A checkpoint folder, a safetensors file, its index, or a folder with either.

    Raises SL0750 and SL0751 for what is no checkpoint, SL0755 for files that are cut short, SL0614 for malformed
    safetensors files.
    """
    if path.suffix in (".safetensors", ".json") or (path.is_dir() and any(path.glob("*.safetensors"))):
        return _open_safetensors(path)
    reader = CheckpointReader(path)
    metadata = read_metadata(path)
    reader.set_up_storage_reader(metadata, True)
    reader.check_files(metadata.storage_data)
    tensors: dict[str, Entry] = {}
    objects: dict[str, bytes] = {}
    for key, entry in metadata.state_dict_metadata.items():
        if isinstance(entry, TensorStorageMetadata):
            arrays = tuple(_later(reader, MetadataIndex(key, c.offsets)) for c in entry.chunks)
            boxes = BoxIndex([box_of(c) for c in entry.chunks])
            tensors[key] = Entry(entry.properties.dtype, tuple(entry.size), boxes, arrays)
        else:
            objects[key] = reader.object_bytes(MetadataIndex(key))
    data = metadata.planner_data if isinstance(metadata.planner_data, dict) else {}
    files = {info.relative_path for info in metadata.storage_data.values()}
    return Opened(path, tensors, objects, data, reader.reader, len(files))


def _later(reader: CheckpointReader, index: MetadataIndex) -> Callable[[], StoredArray]:
    return lambda: reader.array(index)


def _open_safetensors(path: Path) -> Opened:
    tensors: dict[str, Entry] = {}
    stored = stored_tensors(str(path))
    for name, one in stored.items():
        held = one.tensor
        if held.dtype not in DTYPES:
            raise ShardlangError(sl07_state.no_such_dtype(name, held.dtype))
        dtype = getattr(torch, DTYPES[held.dtype].torch_name)
        array = StoredArray(one.file, one.offset, one.length, dtype, held.shape)
        boxes = BoxIndex([tuple((0, n) for n in held.shape)])
        tensors[f"model.{name}"] = Entry(dtype, held.shape, boxes, (_known(array),))
    paths = {key: ("model", key.removeprefix("model.")) for key in tensors}
    return Opened(path, tensors, {}, paths, Reader(), len({one.file for one in stored.values()}))


def _known(array: StoredArray) -> Callable[[], StoredArray]:
    return lambda: array


@frozen
class Report:
    """What was read and written; bytes are those of tensors. ``left_out``: entries that the format has no place for."""

    tensors: int
    bytes_read: int
    files_read: int
    bytes_written: int
    files_written: int
    pieces: int
    largest_piece: int
    left_out: int = 0

    def to_json(self) -> dict[str, int]:
        return asdict(self)


def write_checkpoint(opened: Opened, layouts: Mapping[str, Layout], out: Path, staging: int) -> Report:
    """Writes every tensor as the blocks that ranks own under ``layouts`` (all on one mesh), in pieces of at most
    ``staging`` bytes, into a file a rank. A checkpoint that is there already stays until the new one is complete.

    Raises SL0756 where it cannot be written.
    """
    writer = writers({k: (layout, opened.tensors[k].dtype.itemsize) for k, layout in layouts.items()})
    pieces = largest = written = 0
    with _writing(out), _RankFiles(out) as files:
        metadata = Metadata({}, {k: opened.paths.get(k, (k,)) for k in [*opened.tensors, *opened.objects]})
        metadata.planner_data[MARK] = {"version": VERSION}
        stored: dict[MetadataIndex, Any] = {}
        for key in sorted(opened.tensors):
            entry, layout = opened.tensors[key], layouts[key]
            chunks: list[ChunkStorageMetadata] = []
            for rank, piece in _owned_pieces(layout, writer[key], staging // entry.dtype.itemsize):
                values = opened.read(key, piece.box)
                stored[MetadataIndex(key, piece.offsets)] = files.put(rank - layout.mesh.first_rank, values)
                chunks.append(ChunkStorageMetadata(torch.Size(piece.offsets), torch.Size(piece.sizes)))
                pieces, largest, written = pieces + 1, max(largest, values.nbytes), written + values.nbytes
            metadata.state_dict_metadata[key] = TensorStorageMetadata(
                TensorProperties(dtype=entry.dtype), torch.Size(entry.shape), chunks
            )
        for key, data in opened.objects.items():
            stored[MetadataIndex(key)] = files.put(0, data)
            metadata.state_dict_metadata[key] = BytesStorageMetadata()
        metadata.version, metadata.storage_data = torch_private.checkpoint_version(), stored
        files.finish(metadata)
    count = len(opened.tensors)
    return Report(count, opened.reader.read, opened.files, written, len(files.names), pieces, largest)


def _owned_pieces(layout: Layout, writer: int, limit: int) -> Iterator[tuple[int, Chunk]]:
    for rank in layout.mesh.ranks:
        for chunk in owned(layout, rank, writer):
            for piece in split_chunk(chunk, max(1, limit)):
                yield rank, piece


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """SL0756 for an ``OSError``."""
    try:
        yield
    except OSError as error:
        raise ShardlangError(sl07_state.cannot_write(str(path), 0, error.strerror or str(error))) from error


@define
class _RankFiles:
    """A new file for each rank that owns anything; few of them open at once. Removed again unless it ends well."""

    folder: Path
    token: str = field(factory=lambda: os.urandom(4).hex())
    names: dict[int, str] = field(factory=dict)
    done: bool = False
    _open: OrderedDict[int, BinaryIO] = field(factory=OrderedDict)

    def __enter__(self) -> _RankFiles:
        self.folder.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._open.values():
            with suppress(OSError):
                file.close()
        if not self.done:
            for name in self.names.values():
                with suppress(OSError):
                    (self.folder / name).unlink(missing_ok=True)

    def put(self, index: int, item: torch.Tensor | bytes) -> Any:
        """Appends an item to a rank's file; returns where it lies."""
        file = self._file(index)
        file.write(bytes(-file.tell() % ALIGNMENT))
        start = file.tell()
        if isinstance(item, bytes):
            file.write(item)
        else:
            torch.save(item, file)
        return torch_private.storage_info(self.names[index], start, file.tell() - start)

    def _file(self, index: int) -> BinaryIO:
        name = self.names.setdefault(index, f"__{index}_{self.token}{SUFFIX}")
        if index not in self._open:
            if len(self._open) == OPEN_FILES:
                _, oldest = self._open.popitem(last=False)
                sync(oldest)
                oldest.close()
            self._open[index] = (self.folder / name).open("ab")
        self._open.move_to_end(index)
        return self._open[index]

    def finish(self, metadata: Metadata) -> None:
        for file in self._open.values():
            sync(file)
        place_metadata(self.folder, metadata, self.token)
        self.done = True


def write_safetensors(opened: Opened, out: Path, staging: int, *, file_limit: int = FILE_LIMIT) -> Report:
    """Writes the model's tensors, whole, under their own names; everything else is left out.

    Raises SL0756 where it cannot be written, SL0766 for a dtype without a name.
    """
    keys = [k for k in sorted(opened.tensors) if k.startswith("model.")]
    facts = {k.removeprefix("model."): (spec_name(opened.tensors[k].dtype), opened.tensors[k].shape) for k in keys}
    export, _ = export_of(out, facts, file_limit)
    pieces = largest = written = 0
    with _writing(out), ExitStack() as stack:
        stack.callback(_remove_drafts, export)
        make_drafts(export)
        for file in export.files:
            handle = os.open(export.draft(file), os.O_WRONLY)
            stack.callback(os.close, handle)
            for name, start in file.offsets.items():
                dtype, shape = opened.tensors[f"model.{name}"].dtype, facts[name][1]
                whole = Chunk(tuple((0, n) for n in shape), (0,) * len(shape))
                for piece in split_chunk(whole, max(1, staging // dtype.itemsize)):
                    values = opened.read(f"model.{name}", piece.box)
                    written += write_box(handle, start, shape, piece.box, values)
                    pieces, largest = pieces + 1, max(largest, values.nbytes)
            os.fsync(handle)
        publish(export, facts)
    left = len(opened.tensors) - len(keys) + len(opened.objects)
    return Report(len(keys), opened.reader.read, opened.files, written, len(export.files), pieces, largest, left)


def _remove_drafts(export: Export) -> None:
    for file in export.files:
        with suppress(OSError):
            export.draft(file).unlink(missing_ok=True)


__all__ = ["Entry", "Opened", "Report", "open_checkpoint", "write_checkpoint", "write_safetensors"]
