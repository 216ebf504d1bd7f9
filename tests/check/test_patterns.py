"""Patterns over dotted names, against the plainest definition of what they match."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardlang.check.patterns import NameIndex

LLAMA = [f"layers.{i}.attention.{w}.weight" for i in range(12) for w in ("wq", "wk", "wv", "wo")]
LLAMA += [f"layers.{i}.feed_forward.{w}.weight" for i in range(12) for w in ("w1", "w2", "w3")]
LLAMA += ["tok_embeddings.weight", "norm.weight", "output.weight"]


def plainly(pattern: Sequence[str], name: Sequence[str]) -> bool:
    """Does a pattern match a name, component by component, as the language says it?"""
    if not pattern:
        return not name
    first, rest = pattern[0], pattern[1:]
    if first == "**":
        return plainly(rest, name) or (bool(name) and plainly(pattern, name[1:]))
    if not name:
        return False
    if first.startswith("["):
        low, high = map(int, first[1:-1].split(".."))
        here = name[0].isdecimal() and str(int(name[0])) == name[0] and low <= int(name[0]) <= high
    else:
        ways = itertools.product(*(piece.strip("{}").split(",") for piece in re.findall(r"\{.*?\}|[^{]+", first)))
        here = any(fnmatchcase(name[0], "".join(way)) for way in ways)
    return here and plainly(rest, name[1:])


WORDS = st.sampled_from(["a", "b", "c", "0", "1", "2", "10", "01", "w", "ab", "abab", "w1"])
PIECES = st.lists(st.sampled_from(["a", "b", "*", "{a,ab}", "{b,1}"]), min_size=2, max_size=4).map("".join)
COMPONENTS = (
    WORDS
    | st.sampled_from(["*", "**", "{a,b}", "{c,0,w}", "w{0,1}", "[0..1]", "[1..10]", "[2..2]", "**"])
    | PIECES.filter(lambda text: "**" not in text)
)


@given(
    st.lists(st.lists(WORDS, min_size=1, max_size=4), max_size=12),
    st.lists(st.lists(COMPONENTS, min_size=1, max_size=4), min_size=1, max_size=4),
)
def test_an_index_matches_as_component_by_component(names: list[list[str]], patterns: list[list[str]]) -> None:
    dotted = list(dict.fromkeys(".".join(n) for n in names))
    index = NameIndex(dotted)
    for pattern in patterns:
        expected = [n for n in dotted if plainly(pattern, n.split("."))]
        assert index.match(".".join(pattern)) == expected


def test_root_is_the_model_itself() -> None:
    assert NameIndex(["", "layers", "layers.0"]).match("root") == [""]
    assert NameIndex(["layers"]).match("root") == []
    assert NameIndex(["", "layers", "layers.0"]).match("**") == ["layers", "layers.0"]


def test_a_star_or_a_choice_may_be_a_piece_of_a_name() -> None:
    names = [f"layers.{i}.{w}.weight" for i in range(2) for w in ("q_proj", "k_proj", "norm", "w1", "w12")]
    index = NameIndex(names)
    assert index.match("layers.0.*_proj.weight") == names[:2]
    assert index.match("**.{q,k}_proj.weight") == [*names[:2], *names[5:7]]
    assert index.match("layers.1.w{1,3}.weight") == [names[8]]
    assert index.match("layers.1.w*.*ei*t") == names[8:]
    assert index.match("**.*_proj.bias") == []
    assert index.nearest("layers.*.*_prj.weight") == ["layers.*.q_proj.weight"]


def test_blanks_in_braces_count_for_nothing() -> None:
    assert NameIndex(["a", "b", "c"]).match("{a, c}") == ["a", "c"]


@pytest.mark.parametrize(
    ("pattern", "near"),
    [
        ("layers.*.attention.wqq.weight", ["layers.*.attention.wq.weight"]),
        ("layer.*.attention.wq.weight", ["layers.*.attention.wq.weight"]),
        ("layers.*.attention.wq.wieght", ["layers.*.attention.wq.weight"]),
        ("**.wqq.weight", ["**.wq.weight"]),
        ("tok_embedding.weight", ["tok_embeddings.weight"]),
        ("layers.*.attention.wq", ["layers.*.attention.wq.weight"]),
        ("layers.*.attention", ["layers.*.attention.**"]),
        ("LAYERS.*.attention.wq.weight", ["layers.*.attention.wq.weight"]),
        ("nothing.like.it", []),
    ],
)
def test_a_pattern_in_vain_is_mended_where_it_leads_nowhere(pattern: str, near: list[str]) -> None:
    index = NameIndex(LLAMA)
    assert index.match(pattern) == []
    assert index.nearest(pattern) == near


def test_a_range_longer_than_any_number_matches_all() -> None:
    assert NameIndex(["0", "7"]).match("[0..99999999999999999999999]") == ["0", "7"]
    assert NameIndex(["9" * 5000]).match("[0..9]") == []
