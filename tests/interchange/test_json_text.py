"""JSON with places: the same values as the standard reader, and never another kind of error than a diagnostic."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardlang.diagnostics import ShardlangError
from shardlang.interchange.json_text import MAX_NESTING, Node, read
from shardlang.source import Source

LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(LEAVES, lambda v: st.lists(v) | st.dictionaries(st.text(), v), max_leaves=12)


def plain(node: Node) -> Any:
    if isinstance(node.value, dict):
        return {key: plain(value) for key, value in node.value.items()}
    if isinstance(node.value, list):
        return [plain(value) for value in node.value]
    return node.value


@given(VALUES, st.sampled_from([None, 2]), st.booleans())
def test_values_are_those_of_the_standard_reader(value: Any, indent: int | None, ascii_only: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    assert plain(read(Source("x", text))) == json.loads(text)


@given(VALUES)
def test_the_place_of_a_value_reads_as_that_value(value: Any) -> None:
    def visit(node: Node) -> None:
        assert json.loads(node.span.text) == plain(node)
        below = (
            node.value.values() if isinstance(node.value, dict) else node.value if isinstance(node.value, list) else ()
        )
        for part in below:
            visit(part)

    visit(read(Source("x", json.dumps(value))))


@given(st.text() | st.text(alphabet='{}[]",:0123456789.eE+- \\untrfalse'))
def test_any_other_text_is_a_diagnostic_just_where_the_standard_reader_refuses(text: str) -> None:
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        expected: tuple[str, ...] = ("SL0250",)
    else:
        expected = ("SL0252",) if _repeats(text) else ()
    found: tuple[str, ...] = ()
    try:
        assert plain(read(Source("x", text))) == value
    except ShardlangError as error:
        found = error.codes
    assert found == expected


def _refuse(word: str) -> None:
    raise ValueError(word)


def _repeats(text: str) -> bool:
    pairs: list[bool] = []
    json.loads(text, object_pairs_hook=lambda found: pairs.append(len(dict(found)) < len(found)))
    return any(pairs)


def test_deep_nesting_is_refused_and_not_followed() -> None:
    assert plain(read(Source("x", "[" * MAX_NESTING + "]" * MAX_NESTING))) is not None
    for text in ("[" * 100_000, '{"a":' * 100_000, "[" * (MAX_NESTING + 2) + "]" * (MAX_NESTING + 2)):
        with pytest.raises(ShardlangError) as caught:
            read(Source("x", text))
        assert caught.value.codes == ("SL0250",)


def test_a_key_given_twice_is_refused() -> None:
    with pytest.raises(ShardlangError) as caught:
        read(Source("x", '{"a": 1, "a": 2}'))
    assert caught.value.codes == ("SL0252",)
