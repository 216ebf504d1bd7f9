"""Specs meet shapes: names take their sizes, in any order, and the layout is what the spec says."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardlang.check import Scope, Sizes, check_spec
from shardlang.check.bind import Operand, bind, bind_all, gradient_spec
from shardlang.check.program import TensorSpec
from shardlang.check.scope import DimRule
from shardlang.diagnostics import Diagnostic, ShardlangError
from shardlang.layout import Layout
from shardlang.mesh import Axis, Mesh
from shardlang.source import Source
from shardlang.syntax.parse import parse_spec

MESH = Mesh("m", (Axis("dp", 2), Axis("tp", 4)), {"tp": (Axis("t0", 2), Axis("t1", 2))})


def spec(text: str, **lets: int) -> TensorSpec:
    return check_spec(parse_spec(Source("test", text)), Scope(MESH, lets), name="w")


def bound(text: str, shape: tuple[int, ...], **sizes: int) -> tuple[Layout, dict[str, int]]:
    known = Sizes(sizes)
    return bind(spec(text), shape, MESH, known, name="w"), dict(known)


def fault(text: str, shape: tuple[int, ...], **sizes: int) -> Diagnostic:
    with pytest.raises(ShardlangError) as caught:
        bind(spec(text), shape, MESH, Sizes(sizes), name="w")
    (diagnostic,) = caught.value.diagnostics
    return diagnostic


@pytest.mark.parametrize(
    ("text", "shape", "layout", "sizes"),
    [
        ("[f/tp d]", (8, 3), "[8/tp 3]", {"f": 8, "d": 3}),
        ("[(kv/tp k) d]", (16, 4), None, None),
        ("[(4/tp k) d]", (16, 4), "[(4/tp 4) 4]", {"k": 4, "d": 4}),
        ("[(3 kv/tp 2) d]", (24, 5), "[(3 4/tp 2) 5]", {"kv": 4, "d": 5}),
        ("[(3 4/tp k)/dp d]", (24, 5), "[(3 4/tp 2)/dp 5]", {"k": 2, "d": 5}),
        ("[v/~tp _]", (7, 9), "[7/~tp 9]", {"v": 7}),
        ("[2*n/dp]", (12,), "[12/dp]", {"n": 6}),
        ("[n*4/dp]", (12,), "[12/dp]", {"n": 3}),
        ("[... d/tp]", (2, 3, 8), "[2 3 8/tp]", {"d": 8}),
        ("[... d/tp]", (8,), "[8/tp]", {"d": 8}),
        ("[...]", (), "[]", {}),
        ("whole", (3, 4), "[3 4]", {}),
        ("[n n/tp]", (8, 8), "[8 8/tp]", {"n": 8}),
        ("[b]{+dp}", (5,), "[5]{+dp}", {"b": 5}),
        ("[]", (), "[]", {}),
        ("[z/tp]", (0,), "[0/tp]", {"z": 0}),
    ],
)
def test_names_take_the_sizes_of_the_shape(
    text: str, shape: tuple[int, ...], layout: str | None, sizes: dict[str, int] | None
) -> None:
    if layout is None:
        assert fault(text, shape).code == "SL0305"
        return
    found, known = bound(text, shape)
    assert (str(found), known) == (layout, sizes)


def test_a_factor_is_found_once_another_tensor_gives_the_rest() -> None:
    wide, narrow = spec("[(kv/tp g k) d]"), spec("[(kv/tp k) d]")
    for order in (1, -1):
        sizes = Sizes({"k": 2})
        operands = [Operand("wq", wide, (48, 3), MESH), Operand("wk", narrow, (16, 3), MESH)][::order]
        layouts = dict(zip([o.name for o in operands], bind_all(operands, sizes), strict=True))
        assert dict(sizes) == {"k": 2, "kv": 8, "g": 3, "d": 3}
        assert str(layouts["wq"]) == "[(8/tp 3 2) 3]"


def test_a_size_that_differs_shows_who_bound_it() -> None:
    sizes = Sizes()
    bind(spec("[f/tp d]"), (8, 4096), MESH, sizes, name="w1")
    with pytest.raises(ShardlangError) as caught:
        bind(spec("[d f/tp]"), (4095, 8), MESH, sizes, name="w2")
    (found,) = caught.value.diagnostics
    assert found.code == "SL0301"
    assert found.message == "dim 0 of `w2` has size 4095, but `d` is 4096"
    assert found.notes == ("sizes bound so far: d=4096 (dim 1 of `w1`)",)
    assert found.span is not None
    assert found.span.begin == (1, 2)
    assert found.labels[0].text == "`d` is 4096 by dim 1 of `w1`"


@pytest.mark.parametrize(
    ("text", "shape", "code", "columns"),
    [
        ("[4 d]", (5, 3), "SL0301", (2, 3)),
        ("[f/tp d]", (6, 3), "SL0302", (2, 6)),
        ("[(3 4/tp k)/dp d]", (12, 3), "SL0302", (2, 15)),
        ("[f d]", (6,), "SL0303", (1, 6)),
        ("[... f d]", (6,), "SL0303", (1, 10)),
        ("[f/tp]", (), "SL0304", (1, 7)),
        ("[f]", (), "SL0303", (1, 4)),
        ("[(a b) c]", (6, 1), "SL0305", (2, 7)),
        ("[(_ b)]", (6,), "SL0305", (2, 7)),
        ("[(3 n)]", (10,), "SL0314", (2, 7)),
        ("[2*n]", (7,), "SL0314", (2, 5)),
        ("[f/?]", (8,), "SL0322", (2, 5)),
    ],
)
def test_a_spec_that_does_not_fit_is_a_fault_at_its_place(
    text: str, shape: tuple[int, ...], code: str, columns: tuple[int, int]
) -> None:
    found = fault(text, shape)
    assert found.code == code
    assert found.span is not None
    assert (found.span.begin[1], found.span.finish[1]) == columns


def test_a_scalar_asked_to_split_names_the_tensor_and_the_axis() -> None:
    assert fault("[f/tp]", ()).message == "`w` is a scalar, and has no dim to split over `tp`"


def test_every_fault_of_several_tensors_is_reported() -> None:
    operands = [Operand("a", spec("[4]"), (5,), MESH), Operand("b", spec("[n n]"), (6, 7), MESH)]
    with pytest.raises(ShardlangError) as caught:
        bind_all(operands, {})
    assert caught.value.codes == ("SL0301", "SL0301")


def test_a_plain_dict_of_sizes_is_grown() -> None:
    sizes: dict[str, int] = {}
    bind(spec("[f/tp d]"), (8, 3), MESH, sizes, name="w")
    assert sizes == {"f": 8, "d": 3}


def test_a_gradient_is_split_alike_and_pending_nowhere_unless_written() -> None:
    assert gradient_spec(spec("[b/dp]{+tp}")).pending == ()
    assert str(bind(gradient_spec(spec("[b/dp]{+tp}")), (4,), MESH, {}, name="x")) == "[4/dp]"
    assert str(bind(gradient_spec(spec("[b/dp] grad {+tp}")), (4,), MESH, {}, name="x")) == "[4/dp]{+tp}"
    assert str(bind(gradient_spec(spec("[b/dp] grad [b/tp]")), (4,), MESH, {}, name="x")) == "[4/tp]"


def test_a_rules_fallback_leaves_a_dim_whole_where_its_axis_does_not_divide() -> None:
    rules = {"v": DimRule("v", ("tp",), True, Source("test", "v").whole())}
    checked = check_spec(parse_spec(Source("test", "[v d]")), Scope(MESH, {}, rules), name="w")
    assert str(bind(checked, (8, 3), MESH, {}, name="w")) == "[8/tp 3]"
    assert str(bind(checked, (7, 3), MESH, {}, name="w")) == "[7 3]"


CUTS = {(): 1, ("dp",): 2, ("tp",): 4, ("t0",): 2, ("dp", "t1"): 4, ("tp", "dp"): 8}


@given(
    st.lists(st.tuples(st.sampled_from(["a", "b", "c", "3"]), st.sampled_from(list(CUTS))), min_size=1, max_size=3),
    st.fixed_dictionaries({n: st.integers(1, 4).map(lambda n: 8 * n) for n in "abc"}),
    st.integers(0, 2),
)
def test_a_dim_of_factors_finds_the_factor_that_is_not_known(
    factors: list[tuple[str, tuple[str, ...]]], sizes: dict[str, int], unknown: int
) -> None:
    used: set[str] = set()
    parts, shape = [], 1
    for name, cuts in factors:
        leaves = {leaf for axis in cuts for leaf in MESH.expand(axis)}
        cuts = () if leaves & used or name == "3" else cuts
        used |= {leaf for axis in cuts for leaf in MESH.expand(axis)}
        parts.append("/".join([name, *cuts]))
        shape *= sizes.get(name, 3)
    names = [n for n, _ in factors if n in sizes]
    missing = names[unknown % len(names)] if names else ""
    if names.count(missing) > 1:
        return
    known = {n: v for n, v in sizes.items() if n != missing}
    layout = bind(spec(f"[({' '.join(parts)})]"), (shape,), MESH, known, name="w")
    assert missing == "" or known[missing] == sizes[missing]
    ways = math.prod(MESH.axis(a).size for a in layout.cut_axes())
    assert layout.block_numel() == shape // ways
