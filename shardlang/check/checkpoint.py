"""What a safetensors checkpoint says of its tensors: names, shapes and dtypes, from headers alone."""

from __future__ import annotations

import json
import math
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

from attrs import frozen

from shardlang.check.facts import Facts, Tensor, modules_of
from shardlang.diagnostics import ShardlangError, sl06_models, sl07_state
from shardlang.dtypes import DTYPES

HEADER_LIMIT = 100_000_000
"""The longest header that the format allows, in bytes."""

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
"""The names under which a folder holds a checkpoint: in one file, or in several with an index."""

_NAMES = {name.upper(): name for name in DTYPES} | {"F8_E4M3": "f8e4m3", "F8_E5M2": "f8e5m2"}


@frozen
class StoredTensor:
    """A tensor in a file: its bytes, row-major, begin at ``offset`` and are ``length`` many."""

    tensor: Tensor
    file: Path
    offset: int
    length: int


def stored_tensors(path: str) -> dict[str, StoredTensor]:
    """Where the tensors of ``X.safetensors``, of an index, or of a folder with either lie.

    Raises SL0614 for what is malformed, and SL0755 for a file that ends before its last tensor does.
    """
    try:
        place = Path(path)
        if place.is_dir():
            single = place / SINGLE
            place = single if single.is_file() else place / INDEX
        if place.suffix != ".json":
            return _stored(place)
        entries = _weight_map(place)
        found: dict[str, StoredTensor] = {}
        for file in dict.fromkeys(entries.values()):
            found |= _stored(place.parent / file)
        return {name: found[name] for name in _all_present(entries, found)}
    except OSError as error:
        raise ShardlangError(sl06_models.checkpoint_unreadable(path, _why(error))) from None
    except _Malformed as fault:
        raise ShardlangError(sl06_models.checkpoint_unreadable(path, str(fault))) from None


def _stored(file: Path) -> dict[str, StoredTensor]:
    start, entries = _entries(file)
    size = file.stat().st_size
    stored: dict[str, StoredTensor] = {}
    for name, entry in entries.items():
        tensor = _tensor(name, entry)
        offsets = entry.get("data_offsets")
        if (
            not isinstance(offsets, list)
            or [type(n) for n in offsets] != [int, int]
            or not 0 <= offsets[0] <= offsets[1]
        ):
            raise _Malformed(f"its entry for `{name}` has no offsets")
        length = offsets[1] - offsets[0]
        known = DTYPES.get(tensor.dtype)
        if known is not None and length != math.prod(tensor.shape) * known.itemsize:
            raise _Malformed(f"`{name}` has {length} bytes, which its shape and dtype do not make")
        if start + offsets[1] > size:
            raise ShardlangError(sl07_state.file_short(str(file), size, start + offsets[1]))
        stored[name] = StoredTensor(tensor, file, start + offsets[0], length)
    return stored


def checkpoint_facts(path: str) -> Facts:
    """The tensors of ``X.safetensors``, or of the files that ``X.safetensors.index.json`` names beside it.

    Of an index none of whose files is there, only the names are known: ``shapes_known`` is false then. Raises SL0614.
    """
    try:
        if path.endswith(".json"):
            return _index(Path(path))
        tensors = _header(Path(path))
        return Facts(tensors, modules_of(tensors), modules_known=False)
    except OSError as error:
        raise ShardlangError(sl06_models.checkpoint_unreadable(path, _why(error))) from None
    except _Malformed as fault:
        raise ShardlangError(sl06_models.checkpoint_unreadable(path, str(fault))) from None


class _Malformed(Exception):
    """Not what the format says; the text is the reason."""


def _why(error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return f"there is no file `{error.filename}`"
    return (error.strerror or str(error)).lower()


def _json(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError):
        raise _Malformed("its header is no JSON") from None
    if not isinstance(value, dict):
        raise _Malformed("its header is no JSON object")
    return value


def _header(path: Path) -> dict[str, Tensor]:
    return {name: _tensor(name, entry) for name, entry in _entries(path)[1].items()}


def _entries(path: Path) -> tuple[int, dict[str, Any]]:
    """Where the data of a file begins, and the entries of its header."""
    with path.open("rb") as file:
        prefix = file.read(8)
        length = int.from_bytes(prefix, "little")
        if len(prefix) < 8 or length > HEADER_LIMIT:
            raise _Malformed("it does not begin with the length of a header")
        data = file.read(length)
    if len(data) < length:
        raise _Malformed("it ends within its header")
    entries = _json(data)
    entries.pop("__metadata__", None)
    return 8 + length, entries


def _tensor(name: str, entry: object) -> Tensor:
    if isinstance(entry, dict):
        shape, dtype = entry.get("shape"), entry.get("dtype")
        if isinstance(shape, list) and all(type(n) is int and n >= 0 for n in shape) and isinstance(dtype, str):
            return Tensor(tuple(shape), _NAMES.get(dtype, dtype.lower()))
    raise _Malformed(f"its entry for `{name}` has no shape and dtype")


def _weight_map(path: Path) -> dict[str, str]:
    entries = _json(path.read_bytes()).get("weight_map")
    if not isinstance(entries, dict) or not all(isinstance(f, str) for f in entries.values()):
        raise _Malformed("it has no `weight_map` of names to files")
    return entries


def _all_present(entries: Mapping[str, str], found: Container[str]) -> Mapping[str, str]:
    missing = next((name for name in entries if name not in found), None)
    if missing is not None:
        raise _Malformed(f"`{missing}` is not in `{entries[missing]}`, where the index has it")
    return entries


def _index(path: Path) -> Facts:
    entries = _weight_map(path)
    files = list(dict.fromkeys(entries.values()))
    if not any((path.parent / f).exists() for f in files):
        unknown = {name: Tensor((), "") for name in entries}
        return Facts(unknown, modules_of(unknown), shapes_known=False, modules_known=False)
    tensors: dict[str, Tensor] = {}
    for file in files:
        tensors |= _header(path.parent / file)
    known = {name: tensors[name] for name in _all_present(entries, tensors)}
    return Facts(known, modules_of(known), modules_known=False)
