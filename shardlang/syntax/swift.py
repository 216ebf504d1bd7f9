"""Reads a text without faults by Lark's own tables, in a loop that keeps nothing but what trees are made of.

Lark's lexer counts lines, its parser goes through several calls a token, and both are ready to resume. All that is
for faults; a text with one is read again by Lark, which says where and what was wanted.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any, TypeAlias

from attrs import frozen
from lark import Token, Tree
from lark.parsers.lalr_analysis import Shift

from shardlang.syntax.grammar import reader

_Match: TypeAlias = "Callable[[str, int], re.Match[str] | None]"
_Reduction: TypeAlias = "tuple[int, Callable[[list[Any]], Any], str]"


class _Words(dict[int, "_Match"]):
    """What reads the next word, for each state of the parser; made when a text first comes there."""

    def __init__(self, lexers: Any) -> None:
        self.lexers = lexers

    def __missing__(self, state: int) -> _Match:
        made = self[state] = _words(self.lexers[state])
        return made


class _Actions(dict[int, "dict[str, int | _Reduction]"]):
    """For each state of the parser, by the kind of the next word, the state that it leads to, or what is to be reduced
    before it (how many parts, what makes a tree of them, the kind of the tree); made when a text first comes there."""

    def __init__(self, conf: Any) -> None:
        self.conf = conf

    def __missing__(self, state: int) -> dict[str, int | _Reduction]:
        make = self.conf.callbacks
        made = self[state] = {
            kind: target if action is Shift else (len(target.expansion), make[target], target.origin.name)
            for kind, (action, target) in self.conf.states[state].items()
        }
        return made


@frozen
class _Tables:
    first: int
    last: int
    words: _Words
    actions: _Actions


def read(text: str, start: str) -> Tree[Token] | None:
    """The tree of a text, as Lark makes it; ``None`` for one with a fault."""
    tables = _tables(start)
    words, actions = tables.words, tables.actions
    state, at, length = tables.first, 0, len(text)
    states: list[int] = [state]
    values: list[Any] = []
    while True:
        match = words[state](text, at)
        if match is None:
            return None
        kind = match.lastgroup
        if kind is None:
            if match.end() < length:
                return None
            kind, word = "$END", Token("$END", "", start_pos=length, end_pos=length)
        else:
            word = _token(kind, match)
            at = match.end()
        action = actions[state].get(kind)
        while action.__class__ is tuple:
            size, make, made = action  # a reduction is the only tuple
            if size:
                parts = values[-size:]
                del values[-size:], states[-size:]
            else:
                parts = []
            values.append(make(parts))
            state = actions[states[-1]][made]  # type: ignore[assignment]  # a tree is always shifted
            states.append(state)
            if kind == "$END" and state == tables.last:
                tree = values[-1]
                assert isinstance(tree, Tree)
                return tree
            action = actions[state].get(kind)
        if action is None:
            return None
        state = action  # type: ignore[assignment]
        states.append(state)
        values.append(word)


def _token(kind: str, match: re.Match[str]) -> Token:
    """A token that knows its kind and its place, and neither line nor column."""
    value = match[kind]
    token: Token = str.__new__(Token, value)
    token.type, token.value = kind, value
    token.start_pos, token.end_pos = match.span(kind)
    return token


@lru_cache(maxsize=8)
def _tables(start: str) -> _Tables:
    state = reader("", start)
    conf = state.parser_state.parse_conf
    lexers: Any = state.lexer_thread.lexer
    return _Tables(conf.start_state, conf.end_state, _Words(lexers.lexers), _Actions(conf))


@cache
def _words(lexer: Any) -> _Match:
    """Matches blanks and comments and, in a group of its name, the next word, as this lexer of Lark's does; no group
    where none follows."""
    terminals = lexer.scanner.terminals
    assert not lexer.callback, "a word that is of another kind than its pattern says"
    ignored = "|".join(t.pattern.to_regexp() for t in terminals if t.name in lexer.ignore_types)
    named = "|".join(f"(?P<{t.name}>{t.pattern.to_regexp()})" for t in terminals if t.name not in lexer.ignore_types)
    return re.compile(f"(?:{ignored})*(?:{named})?" if named else f"(?:{ignored})*").match


__all__ = ["read"]
