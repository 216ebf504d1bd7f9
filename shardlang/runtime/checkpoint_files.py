"""The files of a checkpoint: one a rank, and ``.metadata``, which is written last and names the others.

The format is that of ``torch.distributed.checkpoint``. Files have names of their own at each save, so that one that
breaks off leaves the checkpoint before it as it was, in the same folder; what no metadata names is removed by the next
save that comes to its end.
"""

from __future__ import annotations

import io
import os
import pickle
import secrets
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import torch
from attrs import define, field
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from shardlang.diagnostics import ShardlangError, sl07_state
from shardlang.lower import torch_private
from shardlang.runtime.checkpoint_plan import MARK, VERSION
from shardlang.runtime.stored_arrays import Reader, StoredArray, check_length, path_errors, raw_part

METADATA = ".metadata"
SUFFIX = ".distcp"
ALIGNMENT = 64
"""Bytes: where an item starts in its file, as torch aligns what is inside it."""


@define(slots=False)
class CheckpointWriter(StorageWriter):
    """Writes the items of a plan into one new file of this rank, and on the coordinator the metadata."""

    path: Path
    index: int
    """This rank's place among those that save together."""
    token: str = field(factory=lambda: secrets.token_hex(4))

    @property
    def file(self) -> Path:
        return self.path / f"__{self.index}_{self.token}{SUFFIX}"

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        self.path = Path(checkpoint_id) if checkpoint_id else self.path
        self.token = secrets.token_hex(4)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        self.index = kwargs.get("rank", self.index)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Writes every item and brings the file to the disk. Raises ``OSError`` where that fails."""
        self.path.mkdir(parents=True, exist_ok=True)
        results: list[WriteResult] = []
        if plan.items:
            with self.file.open("wb") as file:
                for item in plan.items:
                    results.append(self._write(file, item.index, planner.resolve_data(item)))
                sync(file)
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done

    def _write(self, file: BinaryIO, index: MetadataIndex, item: Any) -> WriteResult:
        file.write(bytes(-file.tell() % ALIGNMENT))
        start = file.tell()
        if isinstance(item, torch.Tensor):
            torch.save(item, file)
        else:
            file.write(item.getbuffer())
        length = file.tell() - start
        return WriteResult(index, length, torch_private.storage_info(self.file.name, start, length))

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Puts the metadata in place, which is the moment at which the checkpoint exists, and tidies up."""
        metadata.version = torch_private.checkpoint_version()
        stored: dict[MetadataIndex, Any] = {}
        for one in (r for by_rank in results for r in by_rank):
            stored.setdefault(one.index, one.storage_data)
        metadata.storage_data = stored
        place_metadata(self.path, metadata, self.token)

    def discard(self) -> None:
        """Removes what this rank wrote, if it can: the next save that comes to its end would."""
        with suppress(OSError):
            self.file.unlink(missing_ok=True)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return True


def place_metadata(folder: Path, metadata: Metadata, token: str) -> None:
    """Writes the metadata beside the old one, brings it to the disk and puts it in its place at once."""
    made = folder / f"{METADATA}.{token}"
    with made.open("wb") as file:
        pickle.dump(metadata, file)
        sync(file)
    made.replace(folder / METADATA)
    sync_folder(folder)
    named = {info.relative_path for info in metadata.storage_data.values()}
    for stale in [*folder.glob(f"__*{SUFFIX}"), *folder.glob(f"{METADATA}.*")]:
        if stale.name not in named:
            stale.unlink(missing_ok=True)


def sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Brings the names in a folder to the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


_NAMES: dict[str, set[str]] = {
    "torch": {"Size"},
    "torch.serialization": {"_get_layout"},
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.distributed.checkpoint.metadata": {
        "BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta",
        "TensorProperties", "TensorStorageMetadata", "_MEM_FORMAT_ENCODING",
    },
    "builtins": {"set"},
    "collections": {"OrderedDict"},
}  # fmt: skip
"""What the metadata of a checkpoint is made of."""


class _Unpickler(pickle.Unpickler):
    """Reads the metadata and nothing that could run code of somebody else's."""

    def find_class(self, module: str, name: str) -> Any:
        dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        path = module.startswith("pathlib") and name in ("Path", "PosixPath", "PurePosixPath")
        if name not in _NAMES.get(module, ()) and not dtype and not path:
            raise pickle.UnpicklingError(f"its metadata names {module}.{name}")
        return super().find_class(module, name)


def read_metadata(path: Path) -> Metadata:
    """The metadata of a checkpoint, ours or torch's own.

    Raises SL0750 where there is none that can be understood, SL0751 for a newer version of ours.
    """
    file = path / METADATA
    if not path.exists() or not file.is_file():
        why = "there is no such folder" if not path.exists() else "it has no file `.metadata`"
        raise ShardlangError(sl07_state.no_checkpoint(str(path), why))
    with path_errors(path), file.open("rb") as stream:
        metadata = _Unpickler(stream).load()
        if not isinstance(metadata, Metadata) or not isinstance(metadata.storage_data, dict):
            raise ShardlangError(sl07_state.no_checkpoint(str(path), "its metadata is not that of a checkpoint"))
        version = our_version(metadata)
        if version is not None and version > VERSION:
            raise ShardlangError(sl07_state.newer_checkpoint(str(path), version, VERSION))
    return metadata


def our_version(metadata: Metadata) -> int | None:
    """The version of the shardlang format; ``None`` for a checkpoint that something else wrote."""
    data = metadata.planner_data
    mark = data.get(MARK) if isinstance(data, dict) else None
    return mark.get("version") if isinstance(mark, dict) else None


@define(slots=False)
class CheckpointReader(StorageReader):
    """Reads the parts of stored chunks that a plan asks for, and no others."""

    path: Path
    reader: Reader = field(factory=Reader)
    _metadata: Metadata | None = None
    _arrays: dict[MetadataIndex, StoredArray] = field(factory=dict)
    _shapes: dict[str, dict[tuple[int, ...], tuple[int, ...]]] = field(factory=dict)

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        self.path = Path(checkpoint_id) if checkpoint_id else self.path

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        return read_metadata(self.path)

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        self._metadata = metadata

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """The plan itself. Raises SL0755 where a file that it needs is missing or too short."""
        self.check_files({item.storage_index for item in plan.items})
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def check_files(self, indices: Iterable[MetadataIndex]) -> None:
        due: dict[str, int] = {}
        for index in indices:
            info = self._info(index)
            due[info.relative_path] = max(due.get(info.relative_path, 0), info.offset + info.length)
        for name, length in due.items():
            check_length(self._file(name), length)

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        for item in plan.items:
            info = self._info(item.storage_index)
            if item.type is LoadItemType.BYTE_IO:
                with path_errors(self._file(info.relative_path)):
                    planner.load_bytes(item, io.BytesIO(self.object_bytes(item.storage_index)))
                continue
            target = planner.resolve_tensor(item)
            box = tuple((a, a + n) for a, n in zip(item.storage_offsets, item.lengths, strict=True))
            target.copy_(self.reader.box(self.array(item.storage_index), box))
            planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def object_bytes(self, index: MetadataIndex) -> bytes:
        """The bytes of an object, as they are stored."""
        info = self._info(index)
        with path_errors(self._file(info.relative_path)), self._file(info.relative_path).open("rb") as file:
            file.seek(info.offset)
            return file.read(info.length)

    def array(self, index: MetadataIndex) -> StoredArray:
        """Where a stored chunk lies."""
        found = self._arrays.get(index)
        if found is None:
            found = self._arrays[index] = self._find(index)
        return found

    def _find(self, index: MetadataIndex) -> StoredArray:
        assert self._metadata is not None
        entry, info = self._metadata.state_dict_metadata[index.fqn], self._info(index)
        assert isinstance(entry, TensorStorageMetadata)
        if index.fqn not in self._shapes:
            self._shapes[index.fqn] = {tuple(c.offsets): tuple(c.sizes) for c in entry.chunks}
        shape = self._shapes[index.fqn][tuple(index.offset or ())]
        path = self._file(info.relative_path)
        item = StoredArray(path, info.offset, info.length, entry.properties.dtype, shape, pickled=True)
        with path_errors(path):
            return raw_part(item, ours=our_version(self._metadata) is not None)

    def _info(self, index: MetadataIndex) -> Any:
        assert self._metadata is not None
        return self._metadata.storage_data[index]

    def _file(self, name: str) -> Path:
        """A file of the checkpoint. Metadata may name none outside its folder."""
        if Path(name).name != name:
            raise ShardlangError(sl07_state.no_checkpoint(str(self.path), f"its metadata names the file {name}"))
        return self.path / name

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return True


__all__ = [
    "CheckpointReader",
    "CheckpointWriter",
    "our_version",
    "place_metadata",
    "read_metadata",
    "sync",
    "sync_folder",
]
