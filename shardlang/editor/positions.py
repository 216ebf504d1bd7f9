"""Offsets in a text and the positions of the language server protocol, whose columns count UTF-16 units by default."""

from __future__ import annotations

import re
from bisect import bisect_right
from typing import Literal

from attrs import field, frozen

from shardlang.source import Span

Encoding = Literal["utf-8", "utf-16", "utf-32"]
_END = re.compile(r"\r\n|\n|\r")


@frozen
class Lines:
    """A text and where its lines begin, as the protocol has them: ``\\n``, ``\\r\\n`` and a lone ``\\r`` end a line."""

    text: str
    encoding: Encoding = "utf-16"
    _starts: tuple[int, ...] = field(init=False)

    @_starts.default
    def _line_starts(self) -> tuple[int, ...]:
        return (0, *(m.end() for m in _END.finditer(self.text)))

    def position(self, offset: int) -> tuple[int, int]:
        """The 0-based (line, column in units of the encoding) of a character offset; beyond the text, its end."""
        offset = max(0, min(offset, len(self.text)))
        line = bisect_right(self._starts, offset) - 1
        return line, sum(self._units(c) for c in self.text[self._starts[line] : offset])

    def offset(self, line: int, column: int) -> int:
        """The character offset of a position. One beyond the end of its line is that end, as the protocol wants it.

        A position inside a character is that character's beginning.
        """
        if line < 0:
            return 0
        if line >= len(self._starts):
            return len(self.text)
        at, units = self._starts[line], 0
        end = self._starts[line + 1] if line + 1 < len(self._starts) else len(self.text)
        while at < end and self.text[at] not in "\r\n":
            units += self._units(self.text[at])
            if units > column:
                break
            at += 1
        return at

    def range(self, span: Span) -> tuple[tuple[int, int], tuple[int, int]]:
        """The positions of a span's ends."""
        return self.position(span.start), self.position(span.end)

    def _units(self, character: str) -> int:
        code = ord(character)
        if self.encoding == "utf-16":
            return 2 if code > 0xFFFF else 1
        if self.encoding == "utf-8":
            return 1 + (code > 0x7F) + (code > 0x7FF) + (code > 0xFFFF)
        return 1


__all__ = ["Encoding", "Lines"]
