"""What a safetensors checkpoint says of its tensors: names, shapes and dtypes, from headers alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from shardlang.check.facts import Facts, Tensor, modules_of
from shardlang.diagnostics import ShardlangError, sl06_models
from shardlang.dtypes import DTYPES

HEADER_LIMIT = 100_000_000
"""The longest header that the format allows, in bytes."""

_NAMES = {name.upper(): name for name in DTYPES} | {"F8_E4M3": "f8e4m3", "F8_E5M2": "f8e5m2"}


def checkpoint_facts(path: str) -> Facts:
    """The tensors of ``X.safetensors``, or of the files that ``X.safetensors.index.json`` names beside it.

    Of an index none of whose files is there, only the names are known: ``shapes_known`` is false then. Raises SL0614.
    """
    try:
        if path.endswith(".json"):
            return _index(Path(path))
        tensors = _header(Path(path))
        return Facts(tensors, modules_of(tensors))
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
    with path.open("rb") as file:
        prefix = file.read(8)
        length = int.from_bytes(prefix, "little")
        if len(prefix) < 8 or length > HEADER_LIMIT:
            raise _Malformed("it does not begin with the length of a header")
        data = file.read(length)
    if len(data) < length:
        raise _Malformed("it ends within its header")
    entries = _json(data)
    return {name: _tensor(name, entry) for name, entry in entries.items() if name != "__metadata__"}


def _tensor(name: str, entry: object) -> Tensor:
    if isinstance(entry, dict):
        shape, dtype = entry.get("shape"), entry.get("dtype")
        if isinstance(shape, list) and all(type(n) is int and n >= 0 for n in shape) and isinstance(dtype, str):
            return Tensor(tuple(shape), _NAMES.get(dtype, dtype.lower()))
    raise _Malformed(f"its entry for `{name}` has no shape and dtype")


def _index(path: Path) -> Facts:
    entries = _json(path.read_bytes()).get("weight_map")
    if not isinstance(entries, dict) or not all(isinstance(f, str) for f in entries.values()):
        raise _Malformed("it has no `weight_map` of names to files")
    files = list(dict.fromkeys(entries.values()))
    if not any((path.parent / f).exists() for f in files):
        unknown = {name: Tensor((), "") for name in entries}
        return Facts(unknown, modules_of(unknown), shapes_known=False)
    tensors: dict[str, Tensor] = {}
    for file in files:
        tensors |= _header(path.parent / file)
    missing = next((name for name in entries if name not in tensors), None)
    if missing is not None:
        raise _Malformed(f"`{missing}` is not in `{entries[missing]}`, where the index has it")
    known = {name: tensors[name] for name in entries}
    return Facts(known, modules_of(known))
