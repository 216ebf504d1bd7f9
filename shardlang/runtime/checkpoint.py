"""Checkpoints: a state saved without moving a tensor between ranks, and loaded on any mesh.

Every rank writes the chunks that it owns; every rank reads the parts of chunks that its blocks need. What ranks tell
each other is where things lie and whether all went well.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from shardlang.diagnostics import Diagnostic, ShardlangError, sl07_state
from shardlang.dtypes import DTYPES
from shardlang.layout import Layout
from shardlang.mesh import Mesh
from shardlang.runtime.checkpoint_files import CheckpointReader, CheckpointWriter, read_metadata
from shardlang.runtime.checkpoint_plan import BlockLoadPlanner, BlockSavePlanner
from shardlang.runtime.control import Council, Failure
from shardlang.runtime.optimizer_state import missing_state, options_for, put_options, put_state
from shardlang.runtime.state import EXTRA, GROUPS, Block, State, state_of

SHOWN = 5
"""How many tensors of another shape are reported."""


def save(state: State | Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Saves a state in the folder ``path``, on all of its ranks together. The folder must be one that all can see.

    ``state`` is what ``state_dict`` gives, or a flat dict of tensors and objects.

    A checkpoint that is there already is replaced at once, when all of the new one is on the disk: until then, and
    after any failure, it is as it was.

    Raises ShardlangError, the same on every rank: SL0756 where a rank cannot write, SL0759 for an object that is not
    plain data, SL0760 where ranks do not hold one state, SL0763 for a rank that is lost.
    """
    folder = Path(path)
    state = state if isinstance(state, State) else state_of(state)
    council = Council(state.ranks, f"saving `{folder}`")
    planner = BlockSavePlanner(state.paths)
    writer = CheckpointWriter(folder, council.index)
    report: Any
    try:
        planner.set_up_planner({**state.blocks, **state.objects}, is_coordinator=council.index == 0)
        plan = planner.create_local_plan()
        report = (plan, writer.write_data(plan, planner).value())
    except ShardlangError as error:
        report = Failure(error.diagnostics)
    except OSError as error:
        report = Failure((_unwritten(folder, council, error),))

    def finish(reports: list[Any]) -> None:
        _, metadata = planner.create_global_plan([plan for plan, _ in reports])
        try:
            writer.finish(metadata, [results for _, results in reports])
        except OSError as error:
            raise ShardlangError(_unwritten(folder, council, error)) from error

    try:
        council.decide(report, finish)
    except ShardlangError:
        writer.discard()
        raise


def _unwritten(folder: Path, council: Council, error: OSError) -> Diagnostic:
    return sl07_state.cannot_write(str(folder), council.ranks[council.index], error.strerror or str(error))


def load_state(state: State | dict[str, Any], path: str | os.PathLike[str], *, strict: bool = True) -> dict[str, Any]:
    """Loads a checkpoint into the tensors of a state, in place, whatever mesh it was saved on; returns ``extra``.

    Objects of a flat dict are replaced in it (and returned).

    An optimizer without state gets the state that the checkpoint has, and its options (learning rate and so on).
    Each rank reads only what its blocks need. Everything is checked on all ranks before the first tensor changes.
    ``strict`` refuses entries of the model (and of the optimizer, if there is one) that only the checkpoint has.

    Raises ShardlangError, the same on every rank: SL0750 and SL0751 for what is no checkpoint, SL0752 to SL0754 for
    keys and shapes that differ, SL0755 for files cut short, SL0762 for parameter groups.
    """
    folder = Path(path)
    given, state = state, state if isinstance(state, State) else state_of(state)
    council = Council(state.ranks, f"loading `{folder}`")
    planner, reader = BlockLoadPlanner(), CheckpointReader(folder)
    report: Any = None
    try:
        metadata = read_metadata(folder)
        reader.set_up_storage_reader(metadata, council.index == 0)
        made = missing_state(state, metadata)
        blocks = {**_loaded(state), **{key: m.block for key, m in made.items() if m.block is not None}}
        keys = _checked(folder, state, blocks, made, metadata, strict)
        planner.set_up_planner({k: blocks[k] for k in blocks if k in keys}, metadata)
        plan = reader.prepare_local_plan(planner.create_local_plan())
        values = {key: _value(reader, metadata, key) for key in _value_keys(state, made, metadata)}
        options = options_for(state, {k: v for k, v in values.items() if k.startswith(GROUPS)})
    except ShardlangError as error:
        report = Failure(error.diagnostics)
    council.decide(report, lambda _: None)
    try:
        with torch.no_grad():
            reader.read_data(plan, planner).wait()
    except ShardlangError as error:
        report = Failure(error.diagnostics)
    council.decide(report, lambda _: None)
    put_state(state, made, values)
    put_options(state, options)
    _put_extra_state(state, values)
    if isinstance(given, dict):
        given.update(values)
        return values
    return {key.removeprefix(EXTRA): value for key, value in values.items() if key.startswith(EXTRA)}


def _loaded(state: State) -> dict[str, Block]:
    """The blocks that are filled in place."""
    return {k: b for k, b in state.blocks.items() if not k.startswith(state.by_value)}


def _checked(
    folder: Path,
    state: State,
    blocks: Mapping[str, Block],
    made: Iterable[str],
    metadata: Metadata,
    strict: bool,
) -> set[str]:
    """The names to load. Raises SL0752 to SL0754 with all that differs between the state and the checkpoint."""
    stored = metadata.state_dict_metadata
    due = {*blocks, *made, *(k for k in state.objects if not k.startswith(state.by_value))}
    missing = sorted(k for k in due if k not in stored or (k in blocks) != isinstance(stored[k], TensorStorageMetadata))
    if state.optimizer is not None and not any(k.startswith(GROUPS) for k in stored):
        missing.append(f"{GROUPS}0.params")
    mine = sorted(k for k in stored if k.startswith(state.scopes))
    extra = [k for k in mine if k not in due]
    faults: list[Diagnostic] = []
    if missing:
        faults.append(sl07_state.keys_missing(str(folder), missing, mine))
    if extra and strict:
        faults.append(sl07_state.keys_extra(str(folder), extra, sorted(due)))
    for key in sorted(k for k in due if k in blocks and k not in missing):
        entry, block = stored[key], blocks[key]
        assert isinstance(entry, TensorStorageMetadata)
        found, dtype = tuple(entry.size), entry.properties.dtype
        if (found, dtype) != (block.layout.shape, block.local.dtype) and len(faults) < SHOWN:
            names = spec_name(dtype), spec_name(block.local.dtype)
            faults.append(sl07_state.tensor_differs(key, found, names[0], block.layout.shape, names[1]))
    if faults:
        raise ShardlangError(faults)
    return due


def spec_name(dtype: torch.dtype) -> str:
    """A dtype as specs name it; torch's name where they have none."""
    name = str(dtype).removeprefix("torch.")
    return next((d.name for d in DTYPES.values() if d.torch_name == name), name)


def _value_keys(state: State, made: Mapping[str, Any], metadata: Metadata) -> list[str]:
    """The entries that are taken by value: objects, and what belongs to parameter groups and ``extra``."""
    mine = tuple(p for p in state.by_value if p != GROUPS or state.optimizer is not None)
    objects = {*made, *(k for k in state.objects if not k.startswith(state.by_value))}
    return [
        key
        for key, entry in metadata.state_dict_metadata.items()
        if (not isinstance(entry, TensorStorageMetadata) and key in objects) or key.startswith(mine)
    ]


def _value(reader: CheckpointReader, metadata: Metadata, key: str) -> Any:
    """An object, or a whole tensor."""
    entry = metadata.state_dict_metadata[key]
    if not isinstance(entry, TensorStorageMetadata):
        entries: dict[str, Any] = {key: None}
    else:
        shape = tuple(entry.size)
        local = torch.empty(shape, dtype=entry.properties.dtype)
        entries = {key: Block(local, Layout.whole(Mesh("one", ()), shape), 0)}
    planner = BlockLoadPlanner()
    planner.set_up_planner(entries, metadata)
    reader.read_data(reader.prepare_local_plan(planner.create_local_plan()), planner).wait()
    value = entries[key]
    return value.local if isinstance(value, Block) else value


def _put_extra_state(state: State, values: Mapping[str, Any]) -> None:
    """Gives modules back what they keep beside parameters and buffers (``get_extra_state``)."""
    if state.model is None:
        return
    for key in state.objects:
        path = state.paths[key]
        if path[0] == "model" and key in values:
            state.model.get_submodule(path[1].rpartition(".")[0]).set_extra_state(values[key])


__all__ = ["load_state", "save", "spec_name"]
