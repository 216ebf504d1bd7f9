"""The grammar and the parser made from it: built once a process, and kept between processes in a cache folder."""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import sys
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import lark

STARTS = ("start", "spec", "signature", "change", "axes")
"""What a text can be: a file, or one of the pieces that decorators and command lines take."""

_OPTIONS: dict[str, Any] = {
    "parser": "lalr",
    "lexer": "contextual",
    "start": list(STARTS),
    "propagate_positions": True,
    "maybe_placeholders": True,
}


@lru_cache(maxsize=1)
def grammar_text() -> str:
    """The text of ``shardlang.lark``: inside the package in a wheel, beside it in a checkout."""
    package = Path(__file__).parent.parent
    for path in (package / "grammar" / "shardlang.lark", package.parent / "grammar" / "shardlang.lark"):
        if path.is_file():
            return path.read_text(encoding="utf-8")
    raise FileNotFoundError("shardlang.lark is missing from this installation")


@lru_cache(maxsize=1)
def parser() -> lark.Lark:
    """The parser. Its tables take 0.2 s to build and 0.01 s to read back, so they are kept where that is possible."""
    path = _cache_path()
    kept = _read(path) if path is not None else None
    if kept is not None:
        return kept
    built = build()
    if path is not None:
        _write(path, built)
    return built


def build(*, strict: bool = False) -> lark.Lark:
    """Builds the parser anew; ``strict`` refuses any clash of terminals (needs the package interegular)."""
    return lark.Lark(grammar_text(), strict=strict, **_OPTIONS)


def _cache_path() -> Path | None:
    """Where the tables are kept, by all that they depend on; ``None`` where there is no home."""
    key = repr((grammar_text(), sorted(_OPTIONS.items()), lark.__version__, sys.version_info[:3]))
    try:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        return None
    return base / "shardlang" / f"tables-{hashlib.sha256(key.encode()).hexdigest()[:24]}"


class _PlainUnpickler(pickle.Unpickler):
    """Reads dicts, lists, strings and numbers, and nothing that could run code."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name} in a table of numbers")


def _read(path: Path) -> lark.Lark | None:
    try:
        with path.open("rb") as file:
            return lark.Lark.load(_PlainUnpickler(file).load())
    except FileNotFoundError:
        return None
    except Exception:
        # A damaged or foreign file is no fault of the user's text: the tables are built anew and put in its place.
        return None


def _write(path: Path, built: lark.Lark) -> None:
    tables = io.BytesIO()
    built.save(tables)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(tables.getvalue())
        os.replace(name, path)
    except OSError:
        # A read-only or full home costs 0.2 s a process and nothing else.
        return


__all__ = ["STARTS", "build", "grammar_text", "parser"]
