"""The grammar itself, and the tables made from it."""

import subprocess
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import lark
import pytest
from lark import Tree

from shardlang.source import Source
from shardlang.syntax import grammar
from shardlang.syntax.parse import parse, parse_signature, parse_spec
from tests.syntax import corpus

KEYWORDS = sorted(
    t.name.lower() for t in grammar.parser().terminals if t.pattern.to_regexp().startswith(t.name.lower())
)
"""The words that the grammar knows."""


def test_the_grammar_has_no_conflict_and_no_clash_of_terminals() -> None:
    grammar.build(strict=True)


def test_the_grammar_knows_the_words_of_the_design() -> None:
    said = "link mesh split let rules fn reshard model transfer budget rule ranks on from grad max min avg param call"
    said += " fsdp checkpoint compile freeze over replicate eager memory peak forbid else whole"
    assert set(said.split()) == set(KEYWORDS)


def test_no_place_takes_both_a_name_and_a_keyword() -> None:
    """But `else` and `whole`, whose patterns look ahead: nothing else could hide a name."""
    table = grammar.parser().parser.parser._parse_table
    for state in table.states.values():
        if "NAME" in state:
            assert not {k.upper() for k in KEYWORDS} & set(state) - {"ELSE", "WHOLE"}


@pytest.mark.parametrize("word", KEYWORDS)
def test_keyword_is_a_name_everywhere(word: str) -> None:
    parse(
        Source(
            "test.shard",
            f"""
            link {word} = 1 GB/s, 1 us
            mesh {word} = {word}:2@{word} * a:2 ranks 0..3
            mesh other = a:2
            split {word}.{word} = {word}:2 * {word}:1
            let {word} = 3, b = {word}*{word} + ({word})//{word}
            rules on {word} {{
                {word}, {word} -> {word}/{word} else whole
                {word} -> {word}
                {word} -> {word}
            }}
            fn {word} on {word} ({word}: [{word} {word}/{word}], a: f32[({word} {word})])
                -> ({word}: [{word}], [{word}])
            reshard {word} on {word}: f32[{word}]{{+{word}, max {word}}} => [{word}/~{word}] grad {{avg {word}}}
            model {word} from {word}.{word}:{word} on {word} {{
                param {word} : f32[{word}*{word}]
                param {word}.{word} : whole
                call {word} ({word}: [{word}]) -> [{word}] eager
                fsdp {word} over {word} replicate {word} {{ param {word} }}
                fsdp {word} over {word}
                checkpoint {word}
                compile {word}
                freeze {word}
            }}
            transfer {word} => {word}
            budget {word} {{ memory <= 1 GiB; forbid {word} on {word} }}
            rule {word}: [{word}+ ({word})] -> [{word}!]
            """,
        )
    )


def test_keywords_end_where_words_end() -> None:
    for glued in ("linkx = 1 GB/s, 1 us", "meshpod = a:2", "fnf() -> [d]"):
        with pytest.raises(Exception, match="begins no declaration"):
            parse(Source("test.shard", glued))


def test_literals_are_not_glued_to_names() -> None:
    with pytest.raises(Exception, match="SL0120"):
        parse_spec(Source("test", "[2kv/tp]"))


def places(node: Any) -> Any:
    """What a tree is made of, each part with its place; the end of what is empty is nobody's."""
    if not isinstance(node, Tree):
        return node if node is None else (node.type, node.start_pos, node.end_pos)
    start, end = (node.meta.start_pos, node.meta.end_pos) if not node.meta.empty else (None, None)
    if hasattr(node, "start_pos"):
        start, end = node.start_pos, node.end_pos
    return node.data, start, end, [places(child) for child in node.children]


@lru_cache(maxsize=1)
def by_larks_option() -> lark.Lark:
    return lark.Lark(grammar.grammar_text(), **{**grammar._OPTIONS, "propagate_positions": True})


@pytest.mark.parametrize("name", sorted(corpus.written()))
def test_trees_stand_where_larks_own_positions_say(name: str) -> None:
    text = corpus.written()[name]
    state = grammar.reader(text, "start")
    for token in state.lexer_thread.lex(state.parser_state):
        state.feed_token(token)
    ours = state.feed_token(lark.Token("$END", "", start_pos=len(text), end_pos=len(text)))
    assert places(ours) == places(by_larks_option().parse(text, start="start"))


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    forget()
    yield tmp_path
    forget()


def forget() -> None:
    """Leaves no parser, and nothing made of one, in this process."""
    for made in (grammar.parser, grammar._placing):
        made.cache_clear()


def tables(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_tables_are_kept_and_read_back(fresh: Path) -> None:
    built = grammar.parser()
    [kept] = tables(fresh)
    stamp = kept.stat().st_mtime_ns
    forget()
    read = grammar.parser()
    assert read is not built
    assert kept.stat().st_mtime_ns == stamp
    assert parse_signature(Source("t", "(x: [d/tp]) -> [d]")).many is False


@pytest.mark.parametrize("damage", [b"", b"nonsense", b"cposix\nsystem\n(S'exit 1'\ntR.", b"\x80\x04}."])
def test_damaged_tables_are_built_anew_and_run_nothing(fresh: Path, damage: bytes) -> None:
    grammar.parser()
    [kept] = tables(fresh)
    kept.write_bytes(damage)
    forget()
    parse_spec(Source("t", "[d]"))
    assert kept.read_bytes() != damage


def test_a_cache_that_cannot_be_written_costs_only_time(fresh: Path) -> None:
    (fresh / "shardlang").write_text("a file in the way")
    assert parse_spec(Source("t", "[d]"))


def test_syntax_imports_no_torch() -> None:
    code = "import sys; import shardlang.syntax.parse, shardlang.syntax.decode; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
