"""Transitions as the command line and ``sl.plan`` take them: every size from the two sides."""

from __future__ import annotations

from typing import Literal

import pytest

from shardlang.check.asked import read_mesh, read_splits
from shardlang.check.planned import plan_cheapest
from shardlang.check.transition import Transition, transitions
from shardlang.diagnostics import Diagnostic, ShardlangError
from shardlang.plan.search import plan_transition
from shardlang.source import Source
from shardlang.syntax.parse import parse_change


def move(change: str, axes: str = "a:2 * b:4", **sizes: int) -> Transition:
    (found,) = ways(change, axes, **sizes)
    return found


def ways(change: str, axes: str = "a:2 * b:4", **sizes: int) -> tuple[Transition, ...]:
    return transitions(parse_change(Source("change", change)), read_mesh(axes), sizes)


def fault(change: str, axes: str = "a:2 * b:4") -> Diagnostic:
    with pytest.raises(ShardlangError) as caught:
        move(change, axes)
    (found,) = caught.value.diagnostics
    return found


@pytest.mark.parametrize(
    ("change", "dtype", "source", "target"),
    [
        ("f32[8192/a/b 8192] => [8192 8192/a/b]", "f32", "[8192/a/b 8192]", "[8192 8192/a/b]"),
        ("[8 6] => bf16[8/a 6]", "bf16", "[8 6]", "[8/a 6]"),
        ("[n/a 6] => [8 m]", "f32", "[8/a 6]", "[8 6]"),
        ("[n/a _] => [8 6/~b]", "f32", "[8/a 6]", "[8 6/~b]"),
        ("whole => [8/a 6]", "f32", "[8 6]", "[8/a 6]"),
        ("[8/a 6] => whole", "f32", "[8/a 6]", "[8 6]"),
        ("[... 8/a] => [4/b 8]", "f32", "[4 8/a]", "[4/b 8]"),
        ("[(3 n/b)] => [24/a]", "f32", "[(3 8/b)]", "[24/a]"),
        ("[(n/a m) m] => [8 2]", "f32", "[(4/a 2) 2]", "[8 2]"),
        ("[8]{+a} => [8/a]", "f32", "[8]{+a}", "[8/a]"),
        ("[] => []", "f32", "[]", "[]"),
        ("[0/a] => [0]", "f32", "[0/a]", "[0]"),
    ],
)
def test_sizes_come_from_both_sides(change: str, dtype: str, source: str, target: str) -> None:
    found = move(change)
    assert (found.dtype, str(found.source), str(found.target)) == (dtype, source, target)


def test_constants_are_given_from_outside() -> None:
    assert str(move("[d/a] => [d]", d=16).source) == "[16/a]"


@pytest.mark.parametrize(
    ("change", "code", "columns"),
    [
        ("[n/a] => [n]", "SL0305", (2, 5)),
        ("[n] => [m/a]", "SL0321", (9, 12)),
        ("[_] => [_]", "SL0305", (2, 3)),
        ("[... 8] => [... 8/a]", "SL0305", (1, 8)),
        ("whole => whole", "SL0305", (1, 6)),
        ("[8 8] => [8]", "SL0324", (10, 13)),
        ("[8] => [9]", "SL0317", (9, 10)),
        ("f32[8] => f16[8]", "SL0318", (11, 17)),
        ("[6/b] => [6]", "SL0302", (2, 5)),
        ("[8] => [8/c]", "SL0201", (11, 12)),
        ("[8/a/a] => [8]", "SL0203", (6, 7)),
        ("[(3 _)] => [10]", "SL0314", (2, 7)),
        ("[3/?] => [3]", "SL0527", (2, 5)),
        ("[8/a/b 8/?] => [8 8]", "SL0527", (8, 11)),
        ("[8/?]{+a, +b} => [8]", "SL0527", (2, 5)),
        ("[8] grad [8/?] => [8]", "SL0322", (11, 14)),
        ("[6/b 8/?] => [6 8]", "SL0302", (2, 5)),
    ],
)
def test_fault_is_at_its_place(change: str, code: str, columns: tuple[int, int]) -> None:
    found = fault(change)
    assert found.code == code
    assert found.span is not None
    assert (found.span.begin[1], found.span.finish[1]) == columns


def test_an_open_dim_stands_for_every_axis_that_is_free_and_divides() -> None:
    def sources(change: str, axes: str) -> list[str]:
        return [str(way.source) for way in ways(change, axes)]

    assert sources("[8/? 8] => [8 8]", "a:2 * b:4") == ["[8/a 8]", "[8/b 8]"]
    assert sources("[6/? 8] => [6 8]", "a:2 * b:4") == ["[6/a 8]"]
    assert sources("[8/? 8/b] => [8 8]", "a:2 * b:4") == ["[8/a 8/b]"]
    assert sources("[8/b/? 8] => [8 8]", "a:2 * b:4") == ["[8/b/a 8]"]
    assert sources("[8/?]{+b} => [8]", "a:2 * b:4") == ["[8/a]{+b}"]
    assert sources("[8/? 8] => [8 8]", "one:1 * b:4") == ["[8/b 8]"]
    assert sources("[(2 k)/?] => [8]", "a:2 * b:4") == ["[(2 4)/a]", "[(2 4)/b]"]
    assert sources("[6/~b/?] => [6]", "a:2 * b:3") == ["[6/~b/a]"]
    assert sources("[... 8/?] => [4 8]", "a:2 * b:4") == ["[4 8/a]", "[4 8/b]"]


def test_looking_for_ways_ends_where_there_are_none_among_very_many() -> None:
    axes = " * ".join(f"a{i}:2" for i in range(15)) + " * b:3"
    wide = "[" + " ".join(["64/?"] * 8) + " 3/? 3/?] => [" + " ".join(["64"] * 8) + " 3 3]"
    assert fault(wide, axes).code == "SL0327"
    assert fault("[64/? 64/? 5/?] => [64 64 5]", axes).code == "SL0527"


def test_two_open_dims_never_take_one_axis_but_two_sides_may() -> None:
    found = ways("[8/? 8/?] => [8/? 8]", "a:2 * b:4")
    assert [(str(w.source), str(w.target)) for w in found] == [
        ("[8/a 8/b]", "[8/a 8]"),
        ("[8/a 8/b]", "[8/b 8]"),
        ("[8/b 8/a]", "[8/a 8]"),
        ("[8/b 8/a]", "[8/b 8]"),
    ]


def test_an_open_dim_of_a_split_axis_takes_it_whole_or_in_part() -> None:
    mesh = read_mesh("tp:8", read_splits(["tp = t0:2 * t1:4"]))
    found = transitions(parse_change(Source("change", "[8/? 8/?] => [8 8]")), mesh)
    assert [str(way.source) for way in found] == ["[8/t0 8/t1]", "[8/t1 8/t0]"]
    found = transitions(parse_change(Source("change", "[8/? 8] => [8 8]")), mesh)
    assert [str(way.source) for way in found] == ["[8/tp 8]", "[8/t0 8]", "[8/t1 8]"]


def test_the_cheapest_choice_is_planned_and_of_equal_ones_the_first() -> None:
    def chosen(change: str, axes: str, objective: Literal["time", "bytes"] = "time") -> str:
        return str(plan_cheapest(ways(change, axes), objective=objective).source)

    # What the target has is there already; else the smaller group receives less.
    assert chosen("f32[8192/? 8192] => [8192/b 8192]", "a:2 * b:4") == "[8192/b 8192]"
    assert chosen("f32[8192/? 8192] => [8192 8192]", "a:4 * b:2", "bytes") == "[8192/b 8192]"
    assert chosen("f32[8192/? 8192] => [8192 8192]", "a:4 * b:4") == "[8192/a 8192]"
    every = ways("f32[64/? 64/?] => [64/? 64]", "a:2 * b:2 * c:2")
    plans = [plan_transition(w.source, w.target, w.dtype) for w in every]
    assert plan_cheapest(every).cost == min(p.cost for p in plans)


def test_a_plan_needs_every_axis() -> None:
    found = fault("[8/a] => [8]", "a:?")
    assert found.code == "SL0316"
    assert found.message == "a plan needs the size of mesh axis `a`, which is `?`"


def test_axes_of_a_command_line_are_checked() -> None:
    for axes, code in (("a:2 * a:2", "SL0212"), ("a:2@ib", "SL0204"), ("a:? * b:?", "SL0312")):
        with pytest.raises(ShardlangError) as caught:
            read_mesh(axes)
        assert caught.value.codes == (code,)
