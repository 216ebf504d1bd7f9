"""Specs that no layout can be, each fault at its place in the text."""

from __future__ import annotations

import pytest

from shardlang.check.program import SpecFactor
from shardlang.layout import Cut, Pending
from tests.check.marked import assert_faults, faults, program

MESH = "mesh m = dp:2 * tp:4\nsplit m.tp = t0:2 * t1:2\n"
NET = MESH + "model net on m {\n"


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("SL0302", "let kv = 3\n" + MESH + "fn f(x: [(«kv/dp» k)]) -> [k]"),
        ("SL0302", MESH + "fn f(x: [«6/tp»]) -> [_]"),
        ("SL0302", MESH + "fn f(x: [«12/dp/tp»]) -> [_]"),
        ("SL0302", MESH + "fn f(x: [«(3 2)/tp»]) -> [_]"),
        ("SL0302", MESH + "reshard r: [8 5] => [8 «5/dp»]"),
        ("SL0302", MESH + "reshard r: [n] => [6]\nreshard s: [«n/tp»] => [6]"),
        ("SL0302", NET + "  param w : [«6/tp» d]\n}"),
        ("SL0302", NET + "  param otherwise : whole\n  call root (x: [«7/dp»]) -> [_]\n}"),
        ("SL0302", MESH + "fn f(x: [n] grad [«6/tp»]) -> [n]"),
        ("SL0306", MESH + "fn f(x: [b/dp]{+«dp»}) -> [b]"),
        ("SL0306", MESH + "fn f(x: [b/tp]{+«tp»}) -> [b]"),
        ("SL0306", MESH + "fn f(x: [b/dp] grad {+«dp»}) -> [b]"),
        ("SL0307", MESH + "fn f(x: [b/tp c/«t0»]) -> [b]"),
        ("SL0307", MESH + "fn f(x: [b/t0 c/«tp»]) -> [b]"),
        ("SL0307", MESH + "fn f(x: [b/t1]{+«tp»}) -> [b]"),
        ("SL0308", MESH + "fn f(x: [b]{+dp, «max tp»}) -> [b]"),
        ("SL0308", MESH + "fn f(x: [b]{min dp, «max tp»}) -> [b]"),
        ("SL0308", MESH + "fn f(x: [b]{avg dp, «max tp»}) -> [b]"),
        ("SL0309", MESH + "fn f(x: [(kv«/~tp» k)]) -> [k]"),
        ("SL0310", "let a = 4611686018427387904, b = «2*a»"),
        ("SL0310", MESH + "fn f(x: [«9223372036854775807*2»]) -> [_]"),
        ("SL0310", "mesh m = «a:4000000000 * b:4000000000»"),
        ("SL0312", "mesh m = a:? * b:«?»"),
        ("SL0313", "mesh m = tp:8\nsplit m.tp = «a:2 * b:2»"),
        ("SL0315", "mesh m = tp:8 «ranks 0..5»"),
        ("SL0315", "mesh m = a:? * tp:4 «ranks 0..5»"),
        ("SL0317", MESH + "reshard r: [8/dp 4] => [8 «6»]"),
        ("SL0318", MESH + "reshard r: f32[8/dp] => «bf16[8]»"),
        ("SL0320", "let a = 0, b = «8//a»"),
        ("SL0321", MESH + "reshard r: [b s] => [b «t/dp»]"),
        ("SL0321", MESH + "reshard r: [(a b)] => [«c»]"),
        ("SL0322", MESH + "reshard r: [8] => [8] grad [«8/?»]"),
        ("SL0322", NET + "  param w : [«f/?» d]\n}"),
        ("SL0322", NET + "  call root (x: [«b/?»]) -> [b]\n}"),
        ("SL0322", NET + "  call root (x: [b]) -> [«b/?»]\n}"),
        ("SL0322", MESH + "fn f(x: [b/?]) -> [«b/?»]"),
        ("SL0322", MESH + "fn f(x: [b/?] grad [«b/?»]) -> [b]"),
        ("SL0323", MESH + "fn f(x: [b]{+dp, avg «dp»}) -> [b]"),
        ("SL0324", MESH + "reshard r: [8/dp 4] => «[8]»"),
        ("SL0324", MESH + "reshard r: [8] => «[... 8 4]»"),
        ("SL0325", MESH + "reshard r: [8/dp] => [«(3 n)»]"),
        ("SL0325", MESH + "reshard r: [2*n] => [«4*n»]"),
    ],
)
def test_fault_of_a_layout_is_at_its_place(code: str, text: str) -> None:
    assert_faults(text, code)


@pytest.mark.parametrize(
    "text",
    [
        "fn f(x: [b/dp/tp d]) -> [b d]",
        "fn f(x: [b]{+dp, avg tp}) -> [b]",
        "fn f(x: [b]{max dp, max tp}) -> [b]",
        "fn f(x: [b/t0 c/t1]) -> [b c]",
        "fn f(x: [b/t0]{+t1}) -> [b]",
        "fn f(x: [... d/tp]) -> [... d]",
        "fn f(x: [5/~tp _]) -> [_ _]",
        "fn f(x: [(3 4/tp k)/dp]) -> [_]",
        "fn f(x: [b] grad [b/dp]) -> [b] grad {+dp}",
        "fn f(x: [b/?]) -> [b/dp]",
        "fn f() -> (a: [b], _, [c/tp])",
        "reshard r: [b/dp s kv/tp 128] => [b/dp s/tp kv 128]",
        "reshard r: whole => [8/dp]",
        "reshard r: [(a b/dp)] => [(b a)/dp]",
        "reshard r: [8/? n] => [8 n/?]",
        "reshard r: [... 8/dp] => [... 8]",
    ],
)
def test_right_spec_passes(text: str) -> None:
    assert faults(MESH + text) == ()


def test_three_heads_over_two_ranks_names_the_sizes_that_divide() -> None:
    (fault,) = faults("mesh m = tp:2\nlet kv = 3\nfn f(x: [(kv/tp k)]) -> [k]")
    assert fault.message == "mesh axis `tp` (2 ranks) does not divide `kv` of size 3 in `x`"
    assert fault.notes == ("the sizes nearest to 3 that 2 divides: 2 and 4", "3 splits over 1 or 3 ranks")
    assert fault.helps == ("a factor is split by whole units, never unevenly",)


def test_a_dim_that_does_not_divide_may_be_uneven() -> None:
    (fault,) = faults("mesh m = tp:2\nfn f(x: [50257/tp d]) -> [d]")
    assert fault.helps == ("write `50257/~tp` for uneven blocks",)


@pytest.mark.parametrize(
    ("text", "nproc", "code"),
    [
        ("mesh pod = «dp:2 * tp:2»", 3, "SL0311"),
        ("mesh pod = «dp:? * tp:2»", 3, "SL0311"),
        ("mesh pod = «dp:4»", 8, "SL0311"),
        ("mesh serve = tp:4 «ranks 4..7»", 6, "SL0326"),
    ],
)
def test_a_launch_that_does_not_fit_the_mesh(text: str, nproc: int, code: str) -> None:
    assert_faults(text, code, nproc=nproc)


def test_an_open_axis_takes_what_the_launch_has_left() -> None:
    assert program("mesh pod = dp:? * tp:8", nproc=64).meshes["pod"].axis("dp").size == 8


def test_an_open_axis_takes_the_size_of_its_parts() -> None:
    mesh = program("mesh pod = dp:?\nsplit pod.dp = a:2 * b:4").meshes["pod"]
    assert (mesh.axis("dp").size, mesh.size) == (8, 8)


def test_an_open_axis_takes_what_its_ranks_leave() -> None:
    mesh = program("mesh serve = dp:? * tp:4 ranks 8..15").meshes["serve"]
    assert (mesh.axis("dp").size, mesh.first_rank) == (2, 8)


def test_sub_axes_have_the_link_of_their_axis_unless_they_name_one() -> None:
    links = "link ib = 50 GB/s, 12 us\nlink nv = 450 GB/s, 3 us\n"
    mesh = program(links + "mesh m = tp:8@ib\nsplit m.tp = a:2 * b:4@nv").meshes["m"]
    assert (mesh.axis("a").link.name, mesh.axis("b").link.name) == ("ib", "nv")
    assert (mesh.axis("b").link.bandwidth, mesh.axis("b").link.latency) == (450 * 10**9, 3 * 10**6)


def spec_of(text: str, rules: str = "") -> tuple[SpecFactor, ...]:
    others = "fn others(x: [b/. kv/. f/. v/. w/.]) -> whole\n"
    found = program(MESH + rules + others + f"fn f(x: {text}) -> whole").fns["f"].args[0].spec
    assert found is not None
    assert found.dims is not None
    return tuple(f for d in found.dims for f in d.factors)


def test_rules_give_axes_to_dims_whose_spec_names_none() -> None:
    rules = "rules on m {\n  b -> dp\n  kv, f -> tp\n}\n"
    assert [f.cuts for f in spec_of("[b s f]", rules)] == [("dp",), (), ("tp",)]
    assert [f.cuts for f in spec_of("[b/. s (kv g)]", rules)] == [(), (), ("tp",), ()]
    assert [f.cuts for f in spec_of("[b/tp f/.]", rules)] == [("tp",), ()]


def test_a_rules_fallback_leaves_a_dim_whole_where_its_axis_is_taken() -> None:
    rules = "rules on m {\n  v, w -> tp else whole\n}\n"
    assert [f.cuts for f in spec_of("[d/tp v]", rules)] == [("tp",), ()]
    assert [f.cuts for f in spec_of("[v w]", rules)] == [("tp",), ()]
    assert [(f.cuts, f.fallback) for f in spec_of("[v]", rules)] == [(("tp",), True)]


def test_rules_apply_to_constants_by_name() -> None:
    assert [f.cuts for f in spec_of("[f]", "let f = 8\nrules on m {\n  f -> tp\n}\n")] == [("tp",)]


def test_rules_leave_transitions_alone() -> None:
    rules = "rules on m {\n  kv -> tp\n}\n"
    found = program(MESH + rules + "reshard r: [kv/tp s] => [kv s/tp]").reshards["r"]
    assert found.target.dims is not None
    assert found.target.dims[0].factors[0].cuts == ()


def test_even_cuts_belong_to_the_factor_and_those_after_an_uneven_one_to_the_dim() -> None:
    found = program(MESH + "fn f(x: [b/dp/~t0/t1]) -> whole").fns["f"].args[0].spec
    assert found is not None
    assert found.dims is not None
    assert found.dims[0].factors[0].cuts == ("dp",)
    assert found.dims[0].flat == (Cut("t0", True), Cut("t1"))


def test_a_gradient_of_braces_alone_has_the_dims_of_its_tensor() -> None:
    found = program(MESH + "fn f(x: [b/tp d] grad {+dp}) -> whole").fns["f"].args[0].spec
    assert found is not None
    assert found.grad is not None
    assert found.grad.dims == found.dims
    assert found.grad.pending == (Pending("dp", "sum"),)
