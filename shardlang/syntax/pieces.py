"""A text that does not parse, taken apart: its declarations and the lines of its models, each to be read by itself.

Where one ends and the next begins is told by keywords at the beginning of lines, and, while no bracket is open, by any
word that stands where a keyword would: it may be a misspelt one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

from attrs import evolve, frozen

from shardlang.diagnostics.prose import nearest
from shardlang.syntax.place import DECLARATIONS, ITEMS

_LINE = re.compile(r"^([ \t]*)([A-Za-z_]\w*)(?=([ \t]+)?([A-Za-z0-9_*{\[])?)", re.MULTILINE)
_KEYWORDS = re.compile(rf"^([ \t]*)(?:{'|'.join(DECLARATIONS)})\b(?=[ \t]+[A-Za-z_])", re.MULTILINE)
_SIGN = re.compile(r"#[^\n]*|[()\[\]{}]|[^\s#()\[\]{}]+")
_PAIRS = {"(": ")", "[": "]", "{": "}"}
_GOES_ON = ("ranks", "on", "from", "grad", "else", "whole", "over", "replicate", "eager")
"""Words that may begin a line in the middle of a declaration."""
_ENDS = re.compile(r"[\w)\]}*?]$")
"""How a declaration can end."""


@frozen
class Piece:
    """A part of a text: a ``declaration``, the ``head`` of a model up to its first line, or one ``line`` of it.

    ``model`` and ``brace`` are the offsets of a line's model and of the bracket that opens it. A head, and a line that
    is not the ``last`` of its model, are complete before the model is.
    """

    kind: Literal["declaration", "head", "line"]
    start: int
    end: int
    model: int = 0
    brace: int = -1
    last: bool = True


def pieces(text: str) -> list[Piece]:
    """The pieces of a text, in order; what is before the first is left out."""
    found: list[Piece] = []
    starts = list(_starts(text))
    ends = [*(start for start, _, _, _ in starts[1:]), len(text)]
    for (start, kind, model, brace), end in zip(starts, ends, strict=False):
        if kind == "line":
            before = found[-1]
            found[-1] = evolve(before, kind="line" if before.kind == "line" else "head", last=False)
        found.append(Piece(kind, start, end, model, brace))
    return found


def _starts(text: str) -> Iterator[tuple[int, Literal["declaration", "line"], int, int]]:
    """Where pieces begin, with their model and its bracket."""
    margin = min((len(m[1]) for m in _KEYWORDS.finditer(text)), default=0)
    model, brace = -1, -1  # the model whose lines these are, and its bracket, -1 while it is not open
    opened: list[str] = []  # brackets since the last start; one closes those inside it that were left open
    last, at = "", 0  # the last word before
    for line in _LINE.finditer(text):
        for sign in _SIGN.finditer(text, at, line.start()):
            one = sign[0]
            if one == "{" and not opened and model >= 0 and brace < 0:
                brace = sign.start()
            elif one in _PAIRS:
                opened.append(one)
            elif one in ")]}":
                if one == "}" and "{" not in opened:
                    model = brace = -1
                while opened and _PAIRS[opened.pop()] != one:
                    pass
            if one[0] != "#":
                last = one
        at = line.start()
        word, start, apart = line[2], line.start(2), line[3] is not None and line[4] is not None
        bare = apart and not opened and word not in _GOES_ON and (not last or _ENDS.search(last) is not None)
        if apart and word in DECLARATIONS and len(line[1]) <= margin:
            model, brace = (start if word == "model" else -1), -1
            yield start, "declaration", -1, -1
        elif brace >= 0 and ((apart and word in ITEMS) or (bare and word not in DECLARATIONS)):
            yield start, "line", model, brace
        elif brace < 0 and bare and word not in DECLARATIONS:
            model = start if nearest(word, DECLARATIONS)[:1] == ["model"] else -1
            yield start, "declaration", -1, -1
        else:
            continue
        opened, last = [], ""


__all__ = ["Piece", "pieces"]
