"""Where a string literal of the user's program stands in its file, so that errors can point into it."""

from __future__ import annotations

import ast
import linecache
import sys
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
    best: tuple[int, int, int] | None = None
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or node.value != text:
            continue
        segment = ast.get_source_segment(whole, node) or ""
        at = segment.find(text)
        if at < 0:
            continue
        before = segment[:at]
        row = node.lineno + before.count("\n")
        start = len(lines[node.lineno - 1].encode()[: node.col_offset].decode())
        column = len(before) - before.rfind("\n") if "\n" in before else start + at + 1
        distance = abs(node.lineno - line)
        if best is None or distance < best[0]:
            best = (distance, row, column)
    if best is None:
        return Source("<signature>", text)
    return Source(file, text, first_line=best[1], first_column=best[2], context=whole)
