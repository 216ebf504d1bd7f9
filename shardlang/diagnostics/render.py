"""The one renderer: a diagnostic as people read it in a terminal, with the text at fault and marks under it."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from typing import Literal

from attrs import frozen

from shardlang.diagnostics.diagnostic import Diagnostic
from shardlang.source import Source, Span

TAB = 4
"""A tab goes to the next multiple of this many columns."""
WINDOW = 140
"""A line that is wider is shown in part."""
SHOWN = 100
"""How many diagnostics are shown at once. ``check --format json`` has all of them."""

_Style = Literal["error", "warning", "bold", "frame", "note"]
_STYLES: dict[_Style, str] = {
    "error": "\x1b[1;31m",
    "warning": "\x1b[1;33m",
    "bold": "\x1b[1m",
    "frame": "\x1b[1;34m",
    "note": "\x1b[1m",
}


@frozen
class _Mark:
    """Marks under columns ``[start, end)`` (0-based) of one line; ``more`` where the span goes on in a later line."""

    source: Source
    line: int
    start: int
    end: int
    text: str
    primary: bool


def render(diagnostic: Diagnostic, *, colour: bool = False) -> str:
    """The text of one diagnostic, without a newline at its end. ``colour`` adds escape sequences for a terminal."""
    paint = _paint if colour else _leave
    kind = paint(f"{diagnostic.severity}[{diagnostic.code}]", diagnostic.severity)
    out = [kind + paint(f": {_printable(diagnostic.message)}", "bold")]
    marks: list[_Mark] = []
    if diagnostic.span is not None:
        marks += _marks(diagnostic.span, diagnostic.label, primary=True)
    for label in diagnostic.labels:
        marks += _marks(label.span, label.text, primary=False)
    width = max((len(str(m.line)) for m in marks), default=1)
    if diagnostic.span is not None:
        out += _excerpt(diagnostic.span, marks, width, colour, diagnostic.severity)
    for word, texts in (("note", diagnostic.notes), ("help", diagnostic.helps)):
        for text in texts:
            out.append(f"{' ' * width} {paint('=', 'frame')} {paint(f'{word}:', 'note')} {_printable(text)}")
    return "\n".join(out)


def _paint(text: str, style: _Style) -> str:
    return f"{_STYLES[style]}{text}\x1b[0m"


def _leave(text: str, style: _Style) -> str:
    return text


def _marks(span: Span, text: str, *, primary: bool) -> list[_Mark]:
    """One mark, or for a span of several lines one in its first line and one in its last, which has the text."""
    (line, column), (last, stop) = span.begin, span.finish
    if last > line and stop == 1:
        # The span ends with a newline: its last character is at the end of the line before.
        last, stop = last - 1, len(span.source.line(last - 1)) + 1
    start, end = _shifted(span.source, line, column), _shifted(span.source, last, stop)
    if line == last:
        return [_Mark(span.source, line, start, max(end, start + 1), text, primary)]
    first, final = span.source.line(line), span.source.line(last)
    indent = min(len(final) - len(final.lstrip()), end)
    return [
        _Mark(span.source, line, start, max(len(first.rstrip()), start + 1), "", primary),
        _Mark(span.source, last, indent, max(end, indent + 1), text, primary),
    ]


def _shifted(source: Source, line: int, column: int) -> int:
    """The 0-based column in what ``source.line`` shows (the text begins its line where there is no whole file)."""
    offset = source.first_column if source.context is None and line == source.first_line else 1
    return column - offset


def _excerpt(span: Span, marks: list[_Mark], width: int, colour: bool, severity: _Style) -> list[str]:
    paint = _paint if colour else _leave
    bar = paint("|", "frame")
    line, column = span.begin
    head = f"{' ' * width}{paint('-->', 'frame')} {_printable(span.source.name)}"
    if not span.source.text and span.source.context is None:
        # A file as a whole, whose text is not at hand: nothing to show.
        return [head]
    out = [f"{head}:{line}:{column}", f"{' ' * width} {bar}"]
    for source in _sources(span.source, marks):
        if source.name != span.source.name:
            first = min(m.line for m in marks if m.source.name == source.name)
            out.append(f"{' ' * width}{paint(':::', 'frame')} {_printable(source.name)}:{first}")
        shown = 0
        for number in sorted({m.line for m in marks if m.source.name == source.name}):
            if shown and number > shown + 1:
                out.append("...")
            shown = number
            here = sorted(
                (m for m in marks if m.line == number and m.source.name == source.name), key=lambda m: (m.start, m.end)
            )
            out += _line(here, number, width, paint_marks=colour, severity=severity)
    return out


def _sources(first: Source, marks: list[_Mark]) -> list[Source]:
    """One source a file name, the diagnostic's own first."""
    found = {first.name: first}
    for mark in marks:
        found.setdefault(mark.source.name, mark.source)
    return list(found.values())


def _line(marks: list[_Mark], number: int, width: int, *, paint_marks: bool, severity: _Style) -> list[str]:
    paint = _paint if paint_marks else _leave
    text = marks[0].source.line(number)
    cells, columns = _cells(text)
    low, high = _window(columns, marks)
    visible = "".join(cells[low:high]).rstrip()
    head = "..." if low else ""
    tail = "..." if high < len(cells) else ""
    out = [f"{paint(f'{number:>{width}} |', 'frame')} {head}{visible}{tail}".rstrip()]
    for mark in marks:
        start = columns[max(low, min(mark.start, len(cells)))] - columns[low]
        end = columns[max(low, min(mark.end, high))] - columns[low]
        count = max(end - start, 1)
        sign = "^" if mark.primary else "-"
        drawn = paint(
            sign * count + (f" {_printable(mark.text)}" if mark.text else ""), severity if mark.primary else "frame"
        )
        out.append(f"{' ' * width} {paint('|', 'frame')} {' ' * (start + len(head))}{drawn}")
    return out


def _cells(text: str) -> tuple[list[str], list[int]]:
    """What is shown for each character, and the column at which each begins (one more for the end)."""
    cells: list[str] = []
    columns = [0]
    for character in text:
        if character == "\t":
            shown, size = " " * (TAB - columns[-1] % TAB), TAB - columns[-1] % TAB
        else:
            shown, size = _printable(character), _width(character)
        cells.append(shown)
        columns.append(columns[-1] + size)
    return cells, columns


def _window(columns: list[int], marks: list[_Mark]) -> tuple[int, int]:
    """The characters of a line to show: all, or in a wide line those around its first mark."""
    if columns[-1] <= WINDOW:
        return 0, len(columns) - 1
    low = max(0, min(marks[0].start, len(columns) - 1) - WINDOW // 2)
    return low, min(len(columns) - 1, low + WINDOW)


def _width(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) == "Cf":
        return 0 if character.isprintable() else 1
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _printable(text: str) -> str:
    """The text with a replacement for what a terminal would act on: escape sequences, and marks that reorder text."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else "\ufffd" for c in text)


def render_all(diagnostics: Iterable[Diagnostic], *, colour: bool = False) -> str:
    """Several diagnostics with an empty line between them: ``SHOWN``, errors before warnings, and how many more."""
    every = list(diagnostics)
    if len(every) > SHOWN:
        every.sort(key=lambda d: d.severity != "error")
    parts = [render(d, colour=colour) for d in every[:SHOWN]]
    if len(every) > SHOWN:
        parts.append(f"and {len(every) - SHOWN} more")
    return "\n\n".join(parts)


__all__ = ["render", "render_all"]
