"""The grammar and the parser made from it: built once a process, and kept between processes in a cache folder."""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import sys
import tempfile
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import lark
from lark.parsers.lalr_interactive_parser import InteractiveParser

STARTS = ("start", "spec", "signature", "change", "axes")
"""What a text can be: a file, or one of the pieces that decorators and command lines take."""

_OPTIONS: dict[str, Any] = {
    "parser": "lalr",
    "lexer": "contextual",
    "start": list(STARTS),
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


def reader(text: str, start: str) -> InteractiveParser:
    """The parser at the beginning of a text. Its trees know where they stand, as tokens do: ``start_pos``, ``end_pos``.

    Lark's own option for that keeps lines and columns of everything as well, at twice the time of a whole parse.
    """
    state = parser().parse_interactive(text, start)
    state.parser_state.parse_conf.callbacks = _placing()
    return state


@lru_cache(maxsize=1)
def _placing() -> dict[Any, Callable[..., Any]]:
    """What the parser calls to make a tree of a rule's parts, for each rule: with the tree's place added."""
    own = parser().parse_interactive("", "start").parser_state.parse_conf.callbacks
    return {rule: _placed(make) for rule, make in own.items()}


def _placed(make: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    """``make``, whose trees begin where the first of their parts does that is anywhere, and end where the last does."""

    def made(parts: list[Any]) -> Any:
        start = end = None
        for part in parts:
            start = part.start_pos
            if start is not None:
                break
        for part in reversed(parts):
            end = part.end_pos
            if end is not None:
                break
        tree = make(parts)
        tree.start_pos, tree.end_pos = start, end
        return tree

    return made


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


__all__ = ["STARTS", "build", "grammar_text", "parser", "reader"]
