"""Where parsing stopped: the text there, what could have followed, and the brackets that are open."""

from __future__ import annotations

import re
from functools import cached_property, lru_cache
from typing import Any

from attrs import define
from lark import Token
from lark.lexer import PatternStr

from shardlang.source import Source, Span
from shardlang.syntax.grammar import parser

DECLARATIONS = (
    "link",
    "mesh",
    "split",
    "let",
    "rules",
    "fn",
    "reshard",
    "model",
    "transfer",
    "budget",
    "rule",
)
ITEMS = ("param", "call", "fsdp", "checkpoint", "compile", "freeze")
"""The keywords that begin a line of a model."""

_WORD = re.compile(
    r"[A-Za-z_][A-Za-z0-9_]*|[0-9][A-Za-z0-9_]*(?:\.[0-9]+)?|=>|->|<=|//|/\*|\.\.\.|\.\.|--|.", re.DOTALL
)
_BRACKET = re.compile(r"#[^\n]*|[()\[\]{}]")
_PAIRS = {"(": ")", "[": "]", "{": "}"}


@lru_cache(maxsize=1)
def signs() -> dict[str, str]:
    """The text of each terminal that is always the same sign, by the terminal's name."""
    return {t.name: t.pattern.value for t in parser().terminals if isinstance(t.pattern, PatternStr)}


@define
class Place:
    """A place in a text where parsing stopped.

    ``accepted`` are the names of the terminals that could have stood at offset ``at``; ``values`` are the parser's
    trees and tokens so far; ``start`` is what the whole text was to be. ``line`` are the offsets of a model's bracket
    and of the line in it that is read by itself.
    """

    source: Source
    at: int
    accepted: frozenset[str]
    values: tuple[Any, ...]
    start: str
    line: tuple[int, int] | None = None

    @cached_property
    def word(self) -> str:
        """The word or sign that was found, empty at the end of the text."""
        if self.at >= len(self.source.text.rstrip()):
            return ""
        match = _WORD.match(self.source.text, self.at)
        return match.group() if match else ""

    @property
    def span(self) -> Span:
        return self.source.span(self.at, self.at + len(self.word))

    @cached_property
    def before(self) -> str:
        """The text before, without the blanks at its end."""
        return self.source.text[: self.at].rstrip()

    @cached_property
    def previous(self) -> Token | None:
        """The token before, where it stands on the parser's stack as such."""
        last = self.values[-1] if self.values else None
        return last if isinstance(last, Token) else None

    def accepts(self, sign: str) -> bool:
        """Could this sign have stood here?"""
        return any(signs().get(name) == sign for name in self.accepted)

    @cached_property
    def begins_line(self) -> bool:
        return not self.source.text[self.source.text.rfind("\n", 0, self.at) + 1 : self.at].strip()

    @cached_property
    def declaration_start(self) -> int:
        """The offset of the keyword of the declaration that is unfinished here."""
        for value in reversed(self.values):
            if isinstance(value, Token) and value.start_pos is not None and value.type.lower() in DECLARATIONS:
                return value.start_pos
        return self.at if self.start == "start" else 0

    @cached_property
    def opened(self) -> tuple[Span, ...]:
        """The brackets of this declaration that are open, outermost first."""
        stack: list[Span] = []
        begin = self.declaration_start
        if self.line is not None:
            brace, begin = self.line
            stack.append(self.source.span(brace, brace + 1))
        for match in _BRACKET.finditer(self.source.text, begin, self.at):
            bracket = match.group()
            if bracket in _PAIRS:
                stack.append(self.source.span(*match.span()))
            elif stack and _PAIRS[stack[-1].text] == bracket:
                stack.pop()
        return tuple(stack)

    @property
    def opener(self) -> Span | None:
        """The innermost open bracket."""
        return self.opened[-1] if self.opened else None

    @property
    def in_spec(self) -> bool:
        """Is this inside the brackets of a spec?"""
        return any(o.text == "[" for o in self.opened)


__all__ = ["DECLARATIONS", "ITEMS", "Place", "signs"]
