"""The JSON of ``shardlang compile``, read back: its version, and its form held before anything builds on it."""

from __future__ import annotations

import json
from typing import Any

from shardlang.diagnostics import ShardlangError, sl02_names

ARTEFACT_VERSION = 1
"""The version of the JSON that ``compile`` writes; a change that a reader must know of raises it."""


def read_artefact(name: str, data: bytes) -> dict[str, Any]:
    """The object of an artefact, its form held. No text of the language begins with a brace."""
    try:
        said = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError):
        raise ShardlangError(sl02_names.malformed_artefact(name, "it is no JSON")) from None
    if not isinstance(said, dict) or "shardlang" not in said:
        raise ShardlangError(sl02_names.malformed_artefact(name, "it has no `shardlang` version"))
    if said["shardlang"] != ARTEFACT_VERSION or isinstance(said["shardlang"], bool):
        raise ShardlangError(sl02_names.artefact_version(name, said["shardlang"], ARTEFACT_VERSION))
    source, sets = said.get("source"), said.setdefault("sets", {})
    if not isinstance(source, dict) or not all(isinstance(source.get(k), str) for k in ("name", "text")):
        raise ShardlangError(sl02_names.malformed_artefact(name, "its `source` has no `name` and `text`"))
    if not isinstance(sets, dict) or not all(type(v) is int and v >= 0 for v in sets.values()):
        raise ShardlangError(sl02_names.malformed_artefact(name, "its `sets` are not sizes by name"))
    nproc, model = said.setdefault("nproc", None), said.setdefault("model", None)
    if not (nproc is None or (type(nproc) is int and nproc > 0)):
        raise ShardlangError(sl02_names.malformed_artefact(name, "its `nproc` is no number of ranks"))
    if not (model is None or isinstance(model, str)):
        raise ShardlangError(sl02_names.malformed_artefact(name, "its `model` is no reference"))
    if not isinstance(said.setdefault("steps", {}), dict):
        raise ShardlangError(sl02_names.malformed_artefact(name, "its `steps` are not plans by name"))
    return said
