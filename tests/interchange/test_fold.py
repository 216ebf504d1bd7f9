"""Folding names into patterns: whatever the names, each has its own spec and no other line."""

from hypothesis import example, given, settings
from hypothesis import strategies as st

from shardlang.check.patterns import NameIndex
from shardlang.interchange.fold import fold

COMPONENT = st.sampled_from(["layers", "h", "w", "b", "q", "0", "1", "2", "3", "10", "01", "7" * 20])
NAMES = st.lists(COMPONENT, min_size=1, max_size=4).map(".".join)


@settings(max_examples=300)
@given(st.dictionaries(NAMES, st.sampled_from(["[a]", "[b]", "whole"]), min_size=1, max_size=14))
@example({"root.w": "[a]", "w.otherwise": "[b]"})
def test_every_name_has_its_spec_by_just_one_line(specs: dict[str, str]) -> None:
    index = NameIndex(specs)
    claimed: dict[str, list[str]] = {name: [] for name in specs}
    for pattern, spec in fold(specs):
        matched = index.match(pattern)
        assert matched, pattern
        for name in matched:
            claimed[name].append(spec)
    assert claimed == {name: [spec] for name, spec in specs.items()}


def test_names_that_differ_in_a_number_share_a_line() -> None:
    specs = {f"layers.{i}.{w}": "[d/tp]" for i in range(12) for w in ("q", "k")}
    assert fold(specs) == [("layers.*.{q,k}", "[d/tp]")]


def test_a_layer_apart_cuts_the_range() -> None:
    specs = {f"layers.{i}.w": "[d]" if i == 3 else "[d/tp]" for i in range(6)}
    assert fold(specs) == [("layers.[0..2].w", "[d/tp]"), ("layers.[4..5].w", "[d/tp]"), ("layers.3.w", "[d]")]


def test_a_name_of_the_same_form_with_another_spec_is_not_swallowed() -> None:
    specs = {"h.0.w": "[d/tp]", "h.1.w": "[d/tp]", "h.last.w": "[d]"}
    assert fold(specs) == [("h.[0..1].w", "[d/tp]"), ("h.last.w", "[d]")]
