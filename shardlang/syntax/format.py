"""The formatter: the one way to write a file. It keeps comments, and at most one blank line where there were some.

A comment on a line of its own stays above what follows it; one at the end of a line stays there; one in the middle of
something that is written in one line goes above it. Formatting a formatted text changes nothing.
"""

from __future__ import annotations

import re

from attrs import define, field, frozen

from shardlang.source import Source
from shardlang.syntax.lines import STEP, Comment, Line, lines
from shardlang.syntax.parse import parse

_COMMENT = re.compile(r"#[^\n]*")


def format_source(source: Source) -> str:
    """The text of a file as it should be written. Raises ``ShardlangError`` where it does not parse."""
    file = parse(source)
    text = source.text
    comments = tuple(Comment(*m.span(), m.group().rstrip()) for m in _COMMENT.finditer(text))
    placed = [_Placed(line) for line in lines(file, text, comments)]
    last = _attach(text, comments, placed)
    return _write(_rows(text, placed, last))


@define
class _Placed:
    """A line with its comments: ``above`` it on lines of their own, ``inner`` ones that go there, ``beside`` it."""

    line: Line
    above: list[Comment] = field(factory=list)
    inner: list[Comment] = field(factory=list)
    beside: Comment | None = None


@frozen
class _Row:
    """A row of the result. ``beside`` is a comment after it, ``blank`` an empty row before it.

    An ``edge`` begins or ends a block.
    """

    indent: str
    cells: tuple[str, ...]
    kind: str = ""
    beside: str = ""
    blank: bool = False
    edge: bool = False


def _attach(text: str, comments: tuple[Comment, ...], placed: list[_Placed]) -> list[Comment]:
    """Gives every comment to a line; those after the last line are returned."""
    at = 0
    rest: list[Comment] = []
    for comment in comments:
        while at < len(placed) and placed[at].line.end <= comment.start:
            at += 1
        before = placed[at - 1] if at else None
        if at < len(placed) and placed[at].line.start < comment.start:
            placed[at].inner.append(comment)
        elif before is not None and before.beside is None and "\n" not in text[before.line.end : comment.start]:
            before.beside = comment
        elif at < len(placed):
            placed[at].above.append(comment)
        else:
            rest.append(comment)
    return rest


def _rows(text: str, placed: list[_Placed], last: list[Comment]) -> list[_Row]:
    rows: list[_Row] = []
    opened = True
    for item in placed:
        line = item.line
        indent = line.indent + (STEP if line.closes else "")
        blank = not line.tight and _after_blank(text, line.start)
        for comment in item.above:
            loose = _after_blank(text, comment.start) and not opened and not (line.tight and not line.closes)
            rows.append(_Row(indent, (comment.text,), blank=loose))
            opened = False
        for comment in item.inner:
            rows.append(_Row(indent, (comment.text,), blank=blank and not opened))
            opened = blank = False
        beside = item.beside.text if item.beside is not None else ""
        edge = line.opens or line.closes
        rows.append(_Row(line.indent, line.cells, line.kind, beside, blank and not opened, edge))
        opened = line.opens
    for comment in last:
        rows.append(_Row("", (comment.text,), blank=_after_blank(text, comment.start) and bool(rows)))
    return rows


def _after_blank(text: str, start: int) -> bool:
    """Is the line before the one of this offset blank, and nothing before the offset in its own?"""
    return re.search(r"\n[ \t\r]*\n[ \t\r]*$", text[max(0, start - 1000) : start]) is not None


def _write(rows: list[_Row]) -> str:
    texts = _aligned(rows)
    columns = _comment_columns(rows, texts)
    out: list[str] = []
    for row, text, column in zip(rows, texts, columns, strict=True):
        if row.blank:
            out.append("\n")
        out.append(f"{text:<{column}}{row.beside}\n" if row.beside else f"{text}\n")
    return "".join(out)


def _comment_columns(rows: list[_Row], texts: list[str]) -> list[int]:
    """Where the comment beside each row begins: at one column in a paragraph, for rows of the same indent."""
    columns = [len(text) + 2 for text in texts]
    start = 0
    for end in range(1, len(rows) + 1):
        if end < len(rows) and not rows[end].blank:
            continue
        for indent in {row.indent for row in rows[start:end]}:
            same = [i for i in range(start, end) if rows[i].indent == indent and rows[i].beside and not rows[i].edge]
            for i in same:
                columns[i] = max(len(texts[j]) for j in same) + 2
        start = end
    return columns


def _aligned(rows: list[_Row]) -> list[str]:
    """The text of each row, the cells of neighbouring rows of one kind one below the other."""
    texts: list[str] = []
    index = 0
    while index < len(rows):
        end = index + 1
        while rows[index].kind and end < len(rows) and rows[end].kind == rows[index].kind and not rows[end].blank:
            end += 1
        run = rows[index:end]
        widths = [max(len(row.cells[i]) for row in run) for i in range(len(run[0].cells) - 1)]
        for row in run:
            padded = [f"{cell:<{width}}" for cell, width in zip(row.cells, widths, strict=False)]
            texts.append(row.indent + "".join([*padded, row.cells[-1]]))
        index = end
    return texts


__all__ = ["format_source"]
