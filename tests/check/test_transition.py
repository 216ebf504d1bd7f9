"""Transitions as the command line and ``sl.plan`` take them: every size from the two sides."""

from __future__ import annotations

import pytest

from shardlang.check.meshes import check_axes
from shardlang.check.transition import Transition, transition
from shardlang.diagnostics import Diagnostic, ShardlangError
from shardlang.mesh import Mesh
from shardlang.source import Source
from shardlang.syntax.parse import parse_axes, parse_change


def move(change: str, axes: str = "a:2 * b:4", **sizes: int) -> Transition:
    mesh = Mesh("", check_axes(parse_axes(Source("mesh", axes))))
    return transition(parse_change(Source("change", change)), mesh, sizes)


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
        ("[8/?] => [8]", "SL0322", (2, 5)),
    ],
)
def test_fault_is_at_its_place(change: str, code: str, columns: tuple[int, int]) -> None:
    found = fault(change)
    assert found.code == code
    assert found.span is not None
    assert (found.span.begin[1], found.span.finish[1]) == columns


def test_a_plan_needs_every_axis() -> None:
    found = fault("[8/a] => [8]", "a:?")
    assert found.code == "SL0316"
    assert found.message == "a plan needs the size of mesh axis `a`, which is `?`"


def test_axes_of_a_command_line_are_checked() -> None:
    for axes, code in (("a:2 * a:2", "SL0212"), ("a:2@ib", "SL0204"), ("a:? * b:?", "SL0312")):
        with pytest.raises(ShardlangError) as caught:
            check_axes(parse_axes(Source("mesh", axes)))
        assert caught.value.codes == (code,)
