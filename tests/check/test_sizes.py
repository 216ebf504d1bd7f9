"""Size expressions: their value, and the one name that a value determines."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardlang.check.program import Size
from shardlang.check.sizes import Binding, NoSolution, Sizes, evaluate, free_names, solve
from shardlang.diagnostics import ShardlangError
from shardlang.source import Source

SPAN = Source("test", "a*b").whole()


def number(value: int) -> Size:
    return Size("int", SPAN, value=value)


def name(text: str) -> Size:
    return Size("name", SPAN, name=text)


def combined(op: str, left: Size, right: Size) -> Size:
    assert op in ("+", "*", "//")
    return Size(op, SPAN, left=left, right=right)  # type: ignore[arg-type]  # the three are its literals


SIZES = st.recursive(
    st.integers(0, 9).map(number) | st.sampled_from("abc").map(name),
    lambda inner: st.builds(combined, st.sampled_from(["+", "*", "//"]), inner, inner),
    max_leaves=6,
)


def divides_by_zero(size: Size, sizes: dict[str, int]) -> bool:
    """Is there a division by zero in the expression, whose names all have sizes?"""
    parts = [p for p in (size.left, size.right) if p is not None]
    if any(divides_by_zero(p, sizes) for p in parts):
        return True
    return size.kind == "//" and evaluate(parts[1], sizes) == 0


@given(SIZES, st.fixed_dictionaries({n: st.integers(1, 9) for n in "abc"}), st.sampled_from("abc"))
def test_what_a_value_determines_gives_that_value(size: Size, sizes: dict[str, int], unknown: str) -> None:
    if divides_by_zero(size, sizes):
        return
    value = evaluate(size, sizes)
    assert value is not None
    known = {n: v for n, v in sizes.items() if n != unknown}
    found = solve(size, value, known) if evaluate(size, known) is None else None
    if found is not None:
        assert found[0] == unknown
        assert evaluate(size, {**known, unknown: found[1]}) == value


def test_a_division_by_zero_is_a_fault() -> None:
    with pytest.raises(ShardlangError) as caught:
        evaluate(combined("//", number(1), name("a")), {"a": 0})
    assert caught.value.codes == ("SL0320",)


@pytest.mark.parametrize(
    ("op", "left", "right", "value"),
    [("*", number(3), name("a"), 7), ("+", name("a"), number(3), 2), ("*", name("a"), number(0), 1)],
)
def test_a_value_that_nothing_gives_has_no_solution(op: str, left: Size, right: Size, value: int) -> None:
    with pytest.raises(NoSolution):
        solve(combined(op, left, right), value, {})


def test_what_is_not_determined_stays_open() -> None:
    assert solve(combined("*", name("a"), name("b")), 6, {}) is None
    assert solve(combined("*", name("a"), number(0)), 0, {}) is None
    assert solve(combined("//", name("a"), number(2)), 3, {}) is None
    assert solve(number(3), 3, {}) is None
    assert evaluate(combined("*", name("a"), number(2)), {}) is None


def test_a_size_is_at_most_that_of_torch() -> None:
    with pytest.raises(ShardlangError) as caught:
        evaluate(combined("*", name("a"), name("a")), {"a": 2**32})
    assert caught.value.codes == ("SL0310",)


def test_names_stand_in_the_order_of_the_text() -> None:
    assert list(free_names(combined("*", name("b"), combined("+", name("a"), number(1))))) == ["b", "a"]


def test_sizes_remember_who_bound_them() -> None:
    sizes = Sizes({"d": 4})
    sizes.bind("f", 8, Binding("dim 0 of `w`", SPAN))
    assert sizes == {"d": 4, "f": 8}
    assert sizes.binders["f"].where == "dim 0 of `w`"
