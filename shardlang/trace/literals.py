"""Where a string literal of the user's program stands in its file, so that errors can point into it."""

from __future__ import annotations

import ast
import io
import linecache
import sys
import tokenize
from types import FrameType

from shardlang.source import Source


def source_of_literal(text: str, frame: FrameType | None = None) -> Source:
    """The text as a source placed in the Python file of the caller outside shardlang, if it stands there literally."""
    walk: FrameType | None = frame or sys._getframe(1)
    while walk is not None and str(walk.f_globals.get("__name__", "")).split(".")[0] == "shardlang":
        walk = walk.f_back
    if walk is None:
        return Source("<signature>", text)
    return placed(text, walk.f_code.co_filename, walk.f_lineno)


def placed(text: str, file: str, line: int) -> Source:
    """The text as a source in ``file``, at the literal nearest to ``line`` that holds it."""
    lines = linecache.getlines(file)
    whole = "".join(lines)
    try:
        tree = ast.parse(whole)
    except (SyntaxError, ValueError):
        return Source("<signature>", text)
    best: tuple[int, tuple[tuple[int, int, int], ...]] | None = None
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or node.value != text:
            continue
        segment = ast.get_source_segment(whole, node) or ""
        start = len(lines[node.lineno - 1].encode()[: node.col_offset].decode())
        pieces = _pieces(segment, text, node.lineno, start)
        distance = abs(node.lineno - line)
        if pieces and (best is None or distance < best[0]):
            best = (distance, pieces)
    if best is None:
        return Source("<signature>", text)
    (_, row, column), *more = best[1]
    return Source(file, text, first_line=row, first_column=column, context=whole, pieces=best[1] if more else ())


def _pieces(segment: str, text: str, line: int, start: int) -> tuple[tuple[int, int, int], ...]:
    """Where the literals of a string begin in its text and in the file: offset, line and column (from 1). Nothing where
    some character of the text is written in another way, such as an escape. ``segment`` begins at ``line``, behind
    ``start`` characters.
    """
    found: list[tuple[int, int, int]] = []
    said = ""
    # In brackets, so that line ends and indents between the literals mean nothing.
    for token in tokenize.generate_tokens(io.StringIO(f"({segment}\n)").readline):
        if token.type != tokenize.STRING:
            continue
        value = ast.literal_eval(token.string)
        at = token.string.find(value)
        if at < 0:
            return ()
        row, column = token.start
        found.append((len(said), line + row - 1, column + at + (start if row == 1 else 1)))
        said += value
    return tuple(found) if said == text else ()
