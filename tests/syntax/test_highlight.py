"""The Pygments lexer against the parser's own: the same tokens, each in a fitting class, on every text."""

import importlib.metadata
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lark import Token
from pygments.lexers import get_lexer_by_name, get_lexer_for_filename
from pygments.token import Comment, Error, Keyword, Name, Number, Operator, Punctuation, Whitespace

from shardlang.syntax.grammar import parser
from shardlang.syntax.highlight import KEYWORDS, ShardlangLexer
from shardlang.syntax.place import DECLARATIONS, ITEMS
from tests.syntax import corpus

DECLARING = {word.upper() for word in (*DECLARATIONS, *ITEMS)}
PUNCTUATION = {"LPAR", "RPAR", "LSQB", "RSQB", "LBRACE", "RBRACE", "COMMA", "COLON", "SEMICOLON"}
FITTING = {
    "NAME": (Name, Keyword.Type, Keyword.Constant),
    "INT": (Number.Integer,),
    "QUANTITY": (Number,),
    "RATIO": (Number.Float,),
    "REFERENCE": (Name.Namespace,),
    "OPERATOR": (Name.Function,),
    "PATH": (Name.Namespace,),
    "UNNAMED": (Keyword.Constant,),
    "REST": (Keyword.Constant,),
    "WHOLE": (Keyword.Constant,),
    "ANY": (Keyword.Constant,),
    "DOT": (Keyword.Constant, Punctuation),
    **dict.fromkeys(("MAX", "MIN", "AVG"), (Operator.Word,)),
    **dict.fromkeys(("ON", "FROM", "GRAD", "RANKS", "OVER", "REPLICATE", "EAGER", "ELSE"), (Keyword,)),
    **dict.fromkeys(("MEMORY", "PEAK", "FORBID"), (Keyword,)),
    **dict.fromkeys(DECLARING, (Keyword.Declaration,)),
    **dict.fromkeys(PUNCTUATION, (Punctuation,)),
}
"""The classes that fit a terminal; a sign not listed is an operator. A dtype and yes or no are names to the parser."""


def spans(text: str) -> list[tuple[int, object, str]]:
    return list(ShardlangLexer().get_tokens_unprocessed(text))


def fits(token: Token, kind: object) -> bool:
    signs = {t.name for t in parser().terminals}
    assert token.type in signs
    if token.type in ("MAX", "MIN", "AVG", "ON", "FROM") or token.type in DECLARING:
        return kind in FITTING[token.type]
    return any(kind in allowed for allowed in FITTING.get(token.type, (Operator,)))


def misfits(text: str) -> list[tuple[Token, object]]:
    """The parser's tokens that Pygments cuts in another way or gives a class that does not fit."""
    found = {(start, start + len(part)): kind for start, kind, part in spans(text)}
    wrong = []
    for token in corpus.tokens(text):
        kind = found.get((token.start_pos, token.end_pos))
        if kind is None or not fits(token, kind):
            wrong.append((token, kind))
    return wrong


@pytest.mark.parametrize("name", corpus.written())
def test_every_token_of_the_written_texts_has_its_class(name: str) -> None:
    assert misfits(corpus.written()[name]) == []


def test_every_token_of_random_walks_has_its_class() -> None:
    for seed in range(150):
        text = corpus.walk(seed)
        assert misfits(text) == [], text


def test_what_the_parser_skips_is_blank_or_a_comment() -> None:
    text = corpus.EVERYTHING
    inside = {i for t in corpus.tokens(text) for i in range(t.start_pos, t.end_pos)}
    for start, kind, part in spans(text):
        if start not in inside:
            assert kind in (Comment.Single if part.startswith("#") else Whitespace), part


def test_the_keywords_are_those_of_the_grammar() -> None:
    named = [t for t in parser().terminals if re.fullmatch(r"[a-z]+(\\b.*|\(\?.*)", t.pattern.value, re.DOTALL)]
    words = {t.name for t in named}
    assert words == {name for name in FITTING if name.isalpha() and name.lower() in words_of_lexer()}
    assert set(KEYWORDS) == {*DECLARATIONS, *ITEMS}


def words_of_lexer() -> set[str]:
    """Every word that some state of the lexer looks for by itself."""
    patterns = [rule[0] for state in ShardlangLexer.tokens.values() for rule in state if isinstance(rule, tuple)]
    return {w for p in patterns if isinstance(p, str) for w in re.findall(r"[a-z]{2,}(?=\\b|[|)(])", p)}


@pytest.mark.parametrize(
    "piece",
    [
        "bf16[batch/dp seq d]{+tp}",
        "f32[8192/a/b 8192] => [8192 8192/a/b]",
        "(x: [b/dp d], w: [d f/tp]) -> [b/dp f/tp]",
        "a:2 * b:4@ib",
        "whole grad [d]",
    ],
)
def test_pieces_of_decorators_and_command_lines_have_no_error(piece: str) -> None:
    assert not [part for _, kind, part in spans(piece) if kind in Error]


@given(
    st.one_of(st.text(), st.text(alphabet="[](){}/~.?:=>-#\n \tmeshonpar_1x*,"), st.integers(0, 400).map(corpus.walk))
)
def test_any_text_is_lexed_to_its_end(text: str) -> None:
    assert "".join(part for _, _, part in spans(text)) == text


def test_a_broken_declaration_does_not_spoil_the_next() -> None:
    text = "link x = 3 apples, ]\nmesh pod = dp:2\nparam ] oops\nlet d = 4\n"
    found = {part: kind for _, kind, part in spans(text)}
    assert found["mesh"] is Keyword.Declaration
    assert found["dp"] is Name.Attribute
    assert found["let"] is Keyword.Declaration


def test_pygments_finds_the_lexer_by_name_and_by_file() -> None:
    entries = importlib.metadata.entry_points(group="pygments.lexers", name="shardlang")
    assert [e.value for e in entries] == ["shardlang.syntax.highlight:ShardlangLexer"]
    assert isinstance(get_lexer_by_name("shardlang"), ShardlangLexer)
    assert isinstance(get_lexer_for_filename("x.shard"), ShardlangLexer)
