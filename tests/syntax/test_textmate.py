"""The TextMate grammar against the parser's tokens, by a small interpreter of such grammars."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lark import Token

from shardlang.dtypes import DTYPES
from shardlang.syntax.grammar import parser
from shardlang.syntax.place import DECLARATIONS, ITEMS
from tests.syntax import corpus, textmate

TEXTS = [name for name in corpus.written() if name != "words as names"]
NAMES = ("variable.", "entity.name.", "support.", "constant.language")
FITTING = {
    "NAME": NAMES,
    **dict.fromkeys(("PATH", "REFERENCE"), ("entity.name.namespace",)),
    "OPERATOR": ("entity.name.function",),
    **dict.fromkeys(("INT", "QUANTITY", "RATIO"), ("constant.numeric",)),
    **dict.fromkeys(("WHOLE", "UNNAMED", "REST", "ANY"), ("constant.language",)),
    "DOT": ("constant.language", "punctuation."),
    **dict.fromkeys(("MAX", "MIN", "AVG"), ("keyword.operator.word",)),
    **dict.fromkeys((w.upper() for w in (*DECLARATIONS, *ITEMS)), ("keyword.declaration",)),
}
"""The scopes that fit a terminal, by their beginnings. Other keywords and signs are keywords or punctuation."""


def misfits(text: str) -> list[tuple[Token, set[str]]]:
    found = textmate.scopes(text, textmate.load())
    wrong = []
    for token in corpus.tokens(text):
        scopes = set(found[token.start_pos : token.end_pos])
        fitting = FITTING.get(token.type, ("keyword.", "punctuation."))
        if len(scopes) != 1 or not scopes.pop().startswith(fitting):
            wrong.append((token, set(found[token.start_pos : token.end_pos])))
    return wrong


@pytest.mark.parametrize("name", TEXTS)
def test_every_token_has_a_fitting_scope(name: str) -> None:
    assert misfits(corpus.written()[name]) == []


def test_comments_have_their_scope_and_blanks_have_none() -> None:
    text = corpus.EVERYTHING
    found = textmate.scopes(text, textmate.load())
    inside = {i for t in corpus.tokens(text) for i in range(t.start_pos, t.end_pos)}
    for start, end in (m.span() for m in re.finditer(r"#.*", text)):
        assert set(found[start:end]) == {"comment.line.number-sign.shardlang"}
        inside.update(range(start, end))
    assert not [i for i, scope in enumerate(found) if scope and i not in inside]


def test_the_words_are_the_keywords_of_the_grammar() -> None:
    plain = [re.sub(r"\\[a-z]|\[[^]]*\]", " ", e) for e in textmate.expressions(textmate.load())]
    words = {w for e in plain for w in re.findall(r"[a-z][a-z0-9]+", e)}
    keywords = {t.name.lower() for t in parser().terminals if t.name.lower() in t.pattern.value and t.name.isalpha()}
    assert words - set(DTYPES) == keywords
    assert set(DTYPES) <= words


def test_the_expressions_keep_to_what_editors_and_re_share() -> None:
    for expression in textmate.expressions(textmate.load()):
        re.compile(expression)
        assert not re.search(r"\(\?P|\(\?\(|\\Z|\\A", expression)


def test_the_file_is_json_with_the_name_and_the_suffix() -> None:
    grammar = json.loads(textmate.GRAMMAR.read_text(encoding="utf-8"))
    assert grammar["scopeName"] == "source.shardlang"
    assert grammar["fileTypes"] == ["shard"]


@given(st.text(alphabet="[](){}/~.?:=>-#\n meshodlonpar1x*,", max_size=200))
def test_any_text_comes_to_an_end(text: str) -> None:
    textmate.scopes(text, textmate.load())
