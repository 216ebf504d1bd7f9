"""Weights in and out of safetensors files, under the model's own names, each rank reading and writing its own blocks.

The format is a length, a JSON header with shapes and offsets, and the tensors' elements, row-major; a checkpoint is one
file, or several with an index. Nothing is gathered: when the headers are there, every rank writes the elements that it
owns at their place in the files, which all ranks must see.
"""

from __future__ import annotations

import json
import math
import os
import secrets
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import torch
from attrs import frozen
from torch import nn

from shardlang.check.checkpoint import INDEX, SINGLE, StoredTensor, stored_tensors
from shardlang.diagnostics import Diagnostic, ShardlangError, sl07_state
from shardlang.dtypes import DTYPES
from shardlang.runtime.checkpoint import spec_name
from shardlang.runtime.checkpoint_files import sync_folder
from shardlang.runtime.chunks import chunks_of, owned, split_chunk, writers
from shardlang.runtime.control import Council, Failure
from shardlang.runtime.state import Block, State, state_dict
from shardlang.runtime.stored_arrays import Reader, StoredArray, write_box

FILE_LIMIT = 5_000_000_000
"""Bytes of tensors in one file, as others write them."""
STAGING = 64 << 20
"""Bytes of a piece that is copied out of a block to be written."""

_NAMES = {n: n.upper() for n in DTYPES if n != "c128"} | {"f8e4m3": "F8_E4M3", "f8e5m2": "F8_E5M2"}
_EXACT = {
    "bf16": {"f32", "f64"},
    "f16": {"f32", "f64"},
    "f32": {"f64"},
    "f8e4m3": {"f16", "bf16", "f32", "f64"},
    "f8e5m2": {"f16", "bf16", "f32", "f64"},
}
"""From each dtype: those that hold all of its values."""


def load_safetensors(
    model: nn.Module | State,
    path: str | os.PathLike[str],
    *,
    strict: bool = True,
    convert: bool = False,
) -> None:
    """Loads the weights of ``X.safetensors``, of an index, or of a folder with either into a placed model.

    Each rank reads the slices that its blocks need. A tied parameter is found under any of its names. ``convert``
    allows a conversion of dtypes that rounds. Everything is checked on all ranks before the first tensor changes.

    Raises ShardlangError, the same on every rank: SL0614 and SL0755 for files that cannot be read, SL0752 to SL0754
    for names and shapes that differ, SL0765 for a conversion that loses digits.
    """
    state = model if isinstance(model, State) else state_dict(model)
    council = Council(state.ranks, f"loading `{path}`")
    found: dict[str, StoredTensor] = {}
    report: Any = None
    try:
        found = _matched(state, str(path), stored_tensors(str(path)), strict, convert)
    except ShardlangError as error:
        report = Failure(error.diagnostics)
    council.decide(report, lambda _: None)
    reader = Reader()
    for name, stored in found.items():
        block = _blocks(state)[name]
        dtype = _torch_dtype(stored.tensor.dtype)
        array = StoredArray(stored.file, stored.offset, stored.length, dtype, stored.tensor.shape)
        for chunk in chunks_of(block.layout, block.rank):
            with torch.no_grad():
                block.local[chunk.place].copy_(reader.box(array, chunk.box))


def _blocks(state: State) -> dict[str, Block]:
    """The model's tensors by their own names."""
    if state.model is None:
        return state.blocks
    return {k.removeprefix("model."): b for k, b in state.blocks.items() if k.startswith("model.")}


def _torch_dtype(name: str) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, DTYPES[name].torch_name)
    return dtype


def _matched(
    state: State, path: str, stored: Mapping[str, StoredTensor], strict: bool, convert: bool
) -> dict[str, StoredTensor]:
    blocks = _blocks(state)
    names = {name: state.aliases.get(name, (name,)) for name in blocks}
    found = {name: next((stored[n] for n in others if n in stored), None) for name, others in names.items()}
    faults: list[Diagnostic] = []
    missing = sorted(name for name, entry in found.items() if entry is None)
    if missing:
        faults.append(sl07_state.keys_missing(path, missing, sorted(stored)))
    extra = sorted(set(stored) - {n for others in names.values() for n in others})
    if extra and strict:
        faults.append(sl07_state.keys_extra(path, extra, sorted(blocks)))
    matched = {name: entry for name, entry in found.items() if entry is not None}
    for name, entry in matched.items():
        block, held = blocks[name], entry.tensor
        due = spec_name(block.local.dtype)
        if held.shape != block.layout.shape:
            faults.append(sl07_state.tensor_differs(name, held.shape, held.dtype, block.layout.shape, due))
        elif held.dtype not in DTYPES:
            faults.append(sl07_state.no_such_dtype(name, held.dtype))
        elif held.dtype != due and due not in _EXACT.get(held.dtype, ()) and not convert:
            faults.append(sl07_state.narrowing(name, held.dtype, due))
    if faults:
        raise ShardlangError(faults[:8])
    return matched


@frozen
class ExportFile:
    """A file to be written: what its tensors are, and where each begins."""

    name: str
    header: bytes
    offsets: Mapping[str, int]
    size: int


@frozen(eq=False)
class Export:
    """A checkpoint on its way: files under names of their own until all is written."""

    folder: Path
    files: tuple[ExportFile, ...]
    token: str

    def draft(self, file: ExportFile) -> Path:
        return self.folder / f".{file.name}.{self.token}"


def save_safetensors(model: nn.Module | State, folder: str | os.PathLike[str], *, file_limit: int = FILE_LIMIT) -> None:
    """Writes the weights as ``model.safetensors`` in a folder, or as several files of at most ``file_limit`` bytes
    (one tensor at least) with ``model.safetensors.index.json``.

    All ranks of the model call it. Each writes the elements that it owns, a piece at a time. What was there before
    stays until all of the new is on the disk. Raises ShardlangError, the same on every rank: SL0756 where a rank
    cannot write, SL0766 for a dtype without a name, SL0760 where ranks hold other models, SL0763 for a lost rank.
    """
    state = model if isinstance(model, State) else state_dict(model)
    blocks = _blocks(state)
    place = Path(folder)
    council = Council(state.ranks, f"saving `{place}`")
    facts = {name: (spec_name(b.local.dtype), b.layout.shape) for name, b in blocks.items()}

    def begin(reports: list[Any]) -> tuple[str, bool]:
        for rank, other in enumerate(reports):
            if other != facts:
                name = next(iter({*facts.items()} ^ {*other.items()}))[0]
                raise ShardlangError(sl07_state.states_disagree(name, f"rank {rank} has another one, or none"))
        export, tagged = export_of(place, facts, file_limit)
        _guarded(council, place, lambda: make_drafts(export))
        return export.token, tagged

    token, tagged = council.decide(facts, begin)
    export = Export(place, layout_files(facts, file_limit, token if tagged else ""), token)
    report: Any
    try:
        report = _guarded(council, place, lambda: _write(export, blocks))
    except ShardlangError as error:
        report = Failure(error.diagnostics)

    def finish(reports: list[Any]) -> None:
        due = sum(f.size - len(f.header) for f in export.files)
        if sum(reports) != due:
            raise ShardlangError(sl07_state.states_disagree("the model", f"they wrote {sum(reports)} of {due} bytes"))
        _guarded(council, place, lambda: publish(export, facts))

    try:
        council.decide(report, finish)
    except ShardlangError:
        for file in export.files:
            with suppress(OSError):
                export.draft(file).unlink(missing_ok=True)
        raise


def _guarded(council: Council, path: Path, action: Callable[[], Any]) -> Any:
    """What the action gives. Raises SL0756 for an ``OSError``."""
    try:
        return action()
    except OSError as error:
        why = error.strerror or str(error)
        raise ShardlangError(sl07_state.cannot_write(str(path), council.ranks[council.index], why)) from error


Facts = Mapping[str, tuple[str, tuple[int, ...]]]


def layout_files(facts: Facts, limit: int, tag: str) -> tuple[ExportFile, ...]:
    """Which tensors go into which file: in order of name, a new file where the next one does not fit."""
    groups: list[list[str]] = [[]]
    held = 0
    for name in sorted(facts):
        size = _nbytes(name, *facts[name])
        if groups[-1] and held + size > limit:
            groups.append([])
            held = 0
        groups[-1].append(name)
        held += size
    if len(groups) == 1:
        return (_file(SINGLE, groups[0], facts),)
    stem = f"model-{tag}-" if tag else "model-"
    return tuple(
        _file(f"{stem}{i:05}-of-{len(groups):05}.safetensors", names, facts) for i, names in enumerate(groups, 1)
    )


def export_of(folder: Path, facts: Facts, limit: int) -> tuple[Export, bool]:
    """A new export, and whether its files have names of their own: an index of the usual names is there already."""
    token = secrets.token_hex(4)
    files = layout_files(facts, limit, "")
    tagged = len(files) > 1 and any((folder / f.name).exists() for f in files)
    return Export(folder, layout_files(facts, limit, token) if tagged else files, token), tagged


def _nbytes(name: str, dtype: str, shape: tuple[int, ...]) -> int:
    if dtype not in _NAMES:
        raise ShardlangError(sl07_state.no_such_dtype(name, dtype))
    return math.prod(shape) * DTYPES[dtype].itemsize


def _file(file: str, names: Iterable[str], facts: Facts) -> ExportFile:
    """The header of a file. Wide dtypes come first, so that every tensor is aligned."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    starts: dict[str, int] = {}
    at = 0
    for name in sorted(names, key=lambda n: (-DTYPES[facts[n][0]].itemsize, n)):
        dtype, shape = facts[name]
        size = _nbytes(name, dtype, shape)
        entries[name] = {"dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": [at, at + size]}
        starts[name] = at
        at += size
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    header = len(text).to_bytes(8, "little") + text
    return ExportFile(file, header, {n: len(header) + start for n, start in starts.items()}, len(header) + at)


def make_drafts(export: Export) -> None:
    export.folder.mkdir(parents=True, exist_ok=True)
    for file in export.files:
        with export.draft(file).open("wb") as draft:
            draft.write(file.header)
            draft.truncate(file.size)


def _write(export: Export, blocks: Mapping[str, Block]) -> int:
    """Writes what this rank owns of every tensor; returns its bytes."""
    writer = writers({name: (b.layout, b.local.itemsize) for name, b in blocks.items()})
    written = 0
    with ExitStack() as stack:
        for file in export.files:
            handle = os.open(export.draft(file), os.O_WRONLY)
            stack.callback(os.close, handle)
            for name, start in file.offsets.items():
                block = blocks[name]
                for chunk in owned(block.layout, block.rank, writer[name]):
                    for piece in split_chunk(chunk, STAGING // block.local.itemsize):
                        values = block.local[piece.place].contiguous().cpu()
                        written += write_box(handle, start, block.layout.shape, piece.box, values)
            os.fsync(handle)
    return written


def publish(export: Export, facts: Facts) -> None:
    """Gives the files their names, the index last, and removes those of the checkpoint that was there before."""
    before = _named_before(export.folder)
    for file in export.files:
        export.draft(file).replace(export.folder / file.name)
    named = {f.name for f in export.files}
    if len(export.files) > 1:
        total = sum(f.size - len(f.header) for f in export.files)
        index = {"metadata": {"total_size": total}, "weight_map": {n: f.name for f in export.files for n in f.offsets}}
        draft = export.folder / f".{INDEX}.{export.token}"
        draft.write_text(json.dumps(index, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        draft.replace(export.folder / INDEX)
        named.add(INDEX)
    sync_folder(export.folder)
    for stale in before - named:
        (export.folder / stale).unlink(missing_ok=True)


def _named_before(folder: Path) -> set[str]:
    """The files of the checkpoint that a folder holds."""
    names = {SINGLE} if (folder / SINGLE).is_file() else set()
    with suppress(OSError, ValueError, AttributeError):
        entries = json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"]
        names |= {INDEX, *(f for f in entries.values() if Path(f).name == f)}
    return names


__all__ = [
    "Export",
    "ExportFile",
    "export_of",
    "layout_files",
    "load_safetensors",
    "make_drafts",
    "publish",
    "save_safetensors",
]
