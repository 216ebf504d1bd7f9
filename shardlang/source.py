"""Text with a name, and spans in it: where every diagnostic points."""

from __future__ import annotations

from bisect import bisect_right

from attrs import field, frozen


@frozen
class Source:
    """A piece of shardlang text.

    ``name`` is what a diagnostic shows (a path, ``<stdin>``, ``<argument>``). ``first_line`` and ``first_column``
    (1-based) say where the text starts inside that file, so that a decorator's string literal can point into the
    Python file that holds it; ``context`` is then the text of that whole file, for showing its lines. ``pieces`` says
    it of a text that stands there in several literals: the offset at which each begins, its line and its column.
    """

    name: str
    text: str = field(repr=False)
    first_line: int = 1
    first_column: int = 1
    context: str | None = field(default=None, repr=False)
    pieces: tuple[tuple[int, int, int], ...] = field(default=(), repr=False)
    _starts: tuple[int, ...] = field(init=False, repr=False, eq=False)

    @_starts.default
    def _line_starts(self) -> tuple[int, ...]:
        starts = [0]
        starts.extend(i + 1 for i, c in enumerate(self.text) if c == "\n")
        return tuple(starts)

    def position(self, offset: int) -> tuple[int, int]:
        """The 1-based (line, column) in the named file of a character offset of ``text``."""
        if self.pieces:
            start, line, column = self.pieces[bisect_right(self.pieces, offset, key=lambda piece: piece[0]) - 1]
            newline = self.text.rfind("\n", start, offset)
            below = self.text.count("\n", start, offset)
            return (line + below, offset - newline) if below else (line, column + offset - start)
        row = bisect_right(self._starts, offset) - 1
        column = offset - self._starts[row]
        if row == 0:
            return self.first_line, self.first_column + column
        return self.first_line + row, column + 1

    def line(self, number: int) -> str:
        """The text of one line (1-based, in the named file), without its end."""
        text = self.text if self.context is None else self.context
        index = number - (self.first_line if self.context is None else 1)
        lines = text.split("\n")
        return lines[index].rstrip("\r") if 0 <= index < len(lines) else ""

    def span(self, start: int, end: int) -> Span:
        return Span(self, start, end)

    def whole(self) -> Span:
        return Span(self, 0, len(self.text))


@frozen
class Span:
    """The characters ``[start, end)`` of a source."""

    source: Source
    start: int
    end: int

    @property
    def text(self) -> str:
        return self.source.text[self.start : self.end]

    @property
    def begin(self) -> tuple[int, int]:
        """1-based (line, column) of the first character."""
        return self.source.position(self.start)

    @property
    def finish(self) -> tuple[int, int]:
        """1-based (line, column) just past the last character."""
        if self.source.pieces and self.end > self.start and self.source.text[self.end - 1] != "\n":
            # What ends with one literal does not end where the next begins.
            line, column = self.source.position(self.end - 1)
            return line, column + 1
        return self.source.position(self.end)

    def join(self, other: Span) -> Span:
        """The smallest span over both."""
        return Span(self.source, min(self.start, other.start), max(self.end, other.end))
