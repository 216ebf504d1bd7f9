"""The contextual lexer against the grammar: a token that the parser accepts is never read as another one."""

import pytest

from shardlang.source import Source
from shardlang.syntax import tree
from shardlang.syntax.grammar import parser
from shardlang.syntax.parse import parse
from tests.syntax import corpus


@pytest.mark.parametrize("name", corpus.written())
def test_written_texts_parse(name: str) -> None:
    assert parse(Source(name, corpus.written()[name])).decls


def test_every_walk_through_the_grammar_is_read_as_it_was_made() -> None:
    for seed in range(150):
        assert corpus.tokens(corpus.walk(seed))


def test_the_corpus_has_every_terminal() -> None:
    seen = {token.type for text in corpus.written().values() for token in corpus.tokens(text)}
    assert {t.name for t in parser().terminals if not t.name.startswith("__IGNORE")} == seen


def test_a_list_of_axes_ends_before_replicate_and_before_the_next_line() -> None:
    text = "model m from x:y on pod {\n fsdp root over a/b replicate c/d\n fsdp x over a/b\n param y : [d]\n}"
    model = parse(Source("x", text)).decls[0]
    assert isinstance(model, tree.Model)
    first, second, param = model.items
    assert isinstance(first, tree.Fsdp)
    assert [n.text for n in first.over] == ["a", "b"]
    assert [n.text for n in first.replicate] == ["c", "d"]
    assert isinstance(second, tree.Fsdp)
    assert second.replicate == ()
    assert isinstance(param, tree.Param)
