"""The swift reader makes the trees that Lark makes, place for place, and takes the very texts that Lark takes."""

from __future__ import annotations

import random
from typing import Any

import pytest
from lark import Token, Tree
from lark.exceptions import UnexpectedInput

from shardlang.syntax import swift
from shardlang.syntax.grammar import reader
from tests.syntax import corpus


def by_lark(text: str, start: str) -> Tree[Token] | None:
    state = reader(text, start)
    try:
        for token in state.lexer_thread.lex(state.parser_state):
            state.feed_token(token)
        made: Any = state.feed_token(Token("$END", "", start_pos=len(text), end_pos=len(text)))
    except UnexpectedInput:
        return None
    assert isinstance(made, Tree)
    return made


def plain(node: Any) -> Any:
    """A tree as plain values: kinds, words and places."""
    if node is None:
        return None
    inside = [plain(child) for child in node.children] if isinstance(node, Tree) else str(node)
    return (node.data if isinstance(node, Tree) else node.type), node.start_pos, node.end_pos, inside


@pytest.mark.parametrize("name", sorted(corpus.written()))
def test_a_file_is_read_as_lark_reads_it(name: str) -> None:
    text = corpus.written()[name]
    read = swift.read(text, "start")
    assert read is not None
    assert plain(read) == plain(by_lark(text, "start"))


def test_walks_through_the_grammar_and_what_is_left_of_them_are_taken_alike() -> None:
    draw = random.Random(0)
    outcomes = set()
    for seed in range(60):
        text = corpus.walk(seed)
        at = draw.randrange(len(text) + 1)
        for given in (text, text[:at], text[:at] + draw.choice("[](){}/+,:.*\n #x1") + text[at:]):
            read = plain(swift.read(given, "start"))
            assert read == plain(by_lark(given, "start")), given
            outcomes.add(read is None)
    assert outcomes == {True, False}


@pytest.mark.parametrize(
    ("start", "text"),
    [
        ("spec", " bf16[(3 kv/tp k)/fsdp _ ...]{+tp} grad whole # so"),
        ("signature", "(x: [b/dp d], y: whole) -> (_, z: [b])"),
        ("change", "[8/a 4] => [8 4/a]"),
        ("axes", "a:2 * b:?@ib"),
        ("start", ""),
        ("start", "  # nothing"),
    ],
)
def test_pieces_are_read_as_lark_reads_them(start: str, text: str) -> None:
    read = swift.read(text, start)
    assert read is not None
    assert plain(read) == plain(by_lark(text, start))
