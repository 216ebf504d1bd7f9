"""Planners for ``torch.distributed.checkpoint``: what a rank writes and reads of each block, from our own layouts.

Torch's planners take a DTensor's local block for one contiguous box, which it is not where a dim is split by factors
or by several uneven cuts. These give one entry for each chunk of the block.
"""

from __future__ import annotations

import io
import math
from typing import Any

import torch
from attrs import define, field
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    BytesIOWriteData,
    LoadItemType,
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)

from shardlang.diagnostics import ShardlangError, sl07_state
from shardlang.runtime.chunks import Box, BoxIndex, Chunk, chunks_of, owned, writers
from shardlang.runtime.state import Block

VERSION = 1
MARK = "__shardlang__"
"""The key of ``Metadata.planner_data`` under which our checkpoints say their version."""


@define(slots=False)
class BlockSavePlanner(SavePlanner):
    """Saves a flat dict of blocks and objects. ``paths`` says where each name belongs in nested dicts."""

    paths: dict[str, tuple[Any, ...]] = field(factory=dict)
    _entries: dict[str, Any] = field(factory=dict)
    _coordinator: bool = False
    _places: dict[MetadataIndex, tuple[slice, ...]] = field(factory=dict)

    def set_up_planner(
        self, state_dict: dict[str, Any], storage_meta: StorageMeta | None = None, is_coordinator: bool = False
    ) -> None:
        self._entries = state_dict
        self._coordinator = is_coordinator

    def create_local_plan(self) -> SavePlan:
        """The chunks that this rank writes; the coordinator also writes the objects."""
        items: list[WriteItem] = []
        blocks = {k: v for k, v in self._entries.items() if isinstance(v, Block)}
        writer = writers({k: (b.layout, b.local.itemsize) for k, b in blocks.items()})
        for key, block in blocks.items():
            properties = _properties(block)
            for chunk in owned(block.layout, block.rank, writer[key]):
                data = TensorWriteData(
                    ChunkStorageMetadata(torch.Size(chunk.offsets), torch.Size(chunk.sizes)),
                    properties,
                    torch.Size(block.layout.shape),
                )
                index = MetadataIndex(key, chunk.offsets)
                self._places[index] = chunk.place
                items.append(WriteItem(index, WriteItemType.SHARD, tensor_data=data))
        if self._coordinator:
            for key, value in self._entries.items():
                if not isinstance(value, Block):
                    size = len(_pickled(key, value))
                    items.append(WriteItem(MetadataIndex(key), WriteItemType.BYTE_IO, BytesIOWriteData(size)))
        return SavePlan(items)

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        """The metadata of all ranks' chunks. Raises SL0760 where they do not tile every tensor."""
        found: dict[str, Any] = {}
        for key, value in self._entries.items():
            if isinstance(value, Block):
                found[key] = TensorStorageMetadata(_properties(value), torch.Size(value.layout.shape), [])
            else:
                found[key] = BytesStorageMetadata()
        seen: set[MetadataIndex] = set()
        for rank, plan in enumerate(all_plans):
            for item in plan.items:
                data, entry = item.tensor_data, found.get(item.index.fqn)
                if data is None or item.index in seen:
                    continue
                seen.add(item.index)
                if not isinstance(entry, TensorStorageMetadata):
                    raise ShardlangError(sl07_state.states_disagree(item.index.fqn, f"only rank {rank} has it"))
                if entry.size != data.size or entry.properties.dtype != data.properties.dtype:
                    raise ShardlangError(
                        sl07_state.states_disagree(item.index.fqn, f"rank {rank} has another shape or dtype")
                    )
                entry.chunks.append(data.chunk)
        for key, entry in found.items():
            if isinstance(entry, TensorStorageMetadata):
                held, due = sum(math.prod(c.sizes) for c in entry.chunks), math.prod(entry.size)
                if held != due:
                    raise ShardlangError(sl07_state.states_disagree(key, f"they write {held} of its {due} elements"))
        paths: dict[str, Any] = {key: self.paths.get(key, (key,)) for key in found}
        return all_plans, Metadata(found, paths | {MARK: {"version": VERSION}})

    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        return new_plan

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor | io.BytesIO:
        """A chunk as a contiguous tensor of its own on the CPU, or the bytes of an object."""
        key = write_item.index.fqn
        value = self._entries[key]
        if not isinstance(value, Block):
            return io.BytesIO(_pickled(key, value))
        part = value.local[self._places[write_item.index]].cpu().contiguous()
        return part if part.untyped_storage().nbytes() == part.nbytes else part.clone()


def _properties(block: Block) -> TensorProperties:
    return TensorProperties(dtype=block.local.dtype)


def _pickled(key: str, value: Any) -> bytes:
    """An object as ``torch.save`` stores it. Raises SL0759 for one that ``weights_only`` would not load."""
    stream = io.BytesIO()
    try:
        torch.save(value, stream)
        torch.load(io.BytesIO(stream.getvalue()), weights_only=True)
    except Exception as error:
        raise ShardlangError(sl07_state.unsafe_object(key, type(value).__name__)) from error
    return stream.getvalue()


@define(slots=False)
class BlockLoadPlanner(LoadPlanner):
    """Loads into a flat dict of blocks, in place; objects are put into the dict."""

    _entries: dict[str, Any] = field(factory=dict)
    _metadata: Metadata | None = None

    def set_up_planner(
        self, state_dict: dict[str, Any], metadata: Metadata | None = None, is_coordinator: bool = False
    ) -> None:
        self._entries = state_dict
        self._metadata = metadata

    def create_local_plan(self) -> LoadPlan:
        """An entry for each stored chunk that one of this rank meets. Raises SL0764 for elements not stored."""
        assert self._metadata is not None
        items: list[ReadItem] = []
        for key, value in self._entries.items():
            stored = self._metadata.state_dict_metadata[key]
            if isinstance(value, Block):
                assert isinstance(stored, TensorStorageMetadata)
                items += _reads(key, value, stored)
            else:
                none = torch.Size((0,))
                index = MetadataIndex(key)
                items.append(ReadItem(LoadItemType.BYTE_IO, index, none, index, none, none))
        return LoadPlan(items)

    def create_global_plan(self, global_plan: list[LoadPlan]) -> list[LoadPlan]:
        return global_plan

    def finish_plan(self, central_plan: LoadPlan) -> LoadPlan:
        return central_plan

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        self._entries[read_item.dest_index.fqn] = torch.load(value, map_location="cpu", weights_only=True)

    def resolve_tensor(self, read_item: ReadItem) -> torch.Tensor:
        """Where in the local block the elements go."""
        local: torch.Tensor = self._entries[read_item.dest_index.fqn].local
        sizes = zip(read_item.dest_offsets, read_item.lengths, strict=True)
        return local[tuple(slice(at, at + n) for at, n in sizes)]

    def commit_tensor(self, read_item: ReadItem, tensor: torch.Tensor) -> None:
        pass


def _reads(key: str, block: Block, stored: TensorStorageMetadata) -> list[ReadItem]:
    index = BoxIndex([box_of(c) for c in stored.chunks])
    items: list[ReadItem] = []
    for chunk in chunks_of(block.layout, block.rank):
        items += (_read(key, chunk, stored.chunks[i], shared) for i, shared in index.meeting(chunk.box))
    held = sum(math.prod(i.lengths) for i in items)
    if held != block.local.numel():
        raise ShardlangError(sl07_state.stored_in_part(key, held, block.local.numel()))
    return items


def _read(key: str, chunk: Chunk, stored: ChunkStorageMetadata, shared: Box) -> ReadItem:
    starts = [a for a, _ in shared]
    return ReadItem(
        LoadItemType.TENSOR,
        MetadataIndex(key, chunk.offsets),
        torch.Size(at + s - a for at, s, a in zip(chunk.local, starts, chunk.offsets, strict=True)),
        MetadataIndex(key, stored.offsets),
        torch.Size(s - a for s, a in zip(starts, stored.offsets, strict=True)),
        torch.Size(b - a for a, b in shared),
    )


def box_of(chunk: ChunkStorageMetadata) -> Box:
    return tuple((a, a + n) for a, n in zip(chunk.offsets, chunk.sizes, strict=True))


__all__ = ["MARK", "VERSION", "BlockLoadPlanner", "BlockSavePlanner", "box_of"]
