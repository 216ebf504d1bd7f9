"""Names that are unknown, doubled or circular, each at its place in the text."""

from __future__ import annotations

import pytest

from shardlang.diagnostics import ShardlangError
from shardlang.diagnostics.prose import nearest
from tests.check.marked import assert_faults, faults, program, unmark

MESH = "mesh m = dp:2 * tp:2\n"
NET = MESH + "model net on m {\n  param otherwise : whole\n"


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("SL0201", MESH + "fn f(x: [b/dp d/«tq»]) -> [b]"),
        ("SL0201", MESH + "fn f(x: [b]{+«tq»}) -> [b]"),
        ("SL0201", MESH + "fn f(x: [b]) -> [b] grad [b/«d»]"),
        ("SL0201", MESH + "reshard r on m: [8/dp] => [8/«x»]"),
        ("SL0201", MESH + "rules on m {\n  b -> «fp»\n}"),
        ("SL0201", NET + "  fsdp root over «fsdp»\n}"),
        ("SL0201", NET + "  fsdp root over dp replicate «t»\n}"),
        ("SL0202", "mesh m = dp:2\nmesh «m» = dp:4"),
        ("SL0202", "link l = 1 GB/s, 1 us\nlink «l» = 2 GB/s, 1 us"),
        ("SL0202", "let a = 1, «a» = 2"),
        ("SL0202", MESH + "fn f(x: [b]) -> [b]\nfn «f»(x: [b]) -> [b]"),
        ("SL0202", MESH + "reshard r: [8] => [8/dp]\nreshard «r»: [8] => [8/tp]"),
        ("SL0202", NET + "}\nmodel «net» on m {\n  param otherwise : whole\n}"),
        ("SL0202", "mesh m = tp:4\nsplit m.tp = a:2 * b:2\nsplit m.«tp» = c:2 * d:2"),
        ("SL0203", MESH + "fn f(w: [embed/tp mlp/«tp»]) -> [embed]"),
        ("SL0203", MESH + "fn f(w: [embed/tp/«tp»]) -> [embed]"),
        ("SL0203", MESH + "fn f(w: [(kv/tp k)/«tp»]) -> [kv]"),
        ("SL0203", MESH + "rules on m {\n  b -> dp/«dp»\n}"),
        ("SL0203", "mesh m = tp:4\nsplit m.tp = a:2 * b:2\nfn f(x: [b/a c/«a»]) -> [b]"),
        ("SL0204", "mesh m = dp:2@«ib»"),
        ("SL0204", "mesh m = tp:4\nsplit m.tp = a:2@«ib» * b:2"),
        ("SL0204", NET + "}\nbudget net { forbid all_gather on «ib» }"),
        ("SL0205", MESH + "fn f on «n» (x: [b]) -> [b]"),
        ("SL0205", MESH + "reshard r on «n»: [8] => [8]"),
        ("SL0205", MESH + "rules on «n» {\n  b -> dp\n}"),
        ("SL0205", MESH + "split «n».tp = a:2 * b:1"),
        ("SL0205", MESH + "model net on «n» {\n  param otherwise : whole\n}"),
        ("SL0207", "let «a» = 2*b, b = a + 1"),
        ("SL0207", "let «a» = a"),
        ("SL0208", "let a = 2*«b»"),
        ("SL0209", "budget «net» { memory <= 1 GiB }"),
        ("SL0209", NET + "}\ntransfer net => «ned»"),
        ("SL0209", NET + "}\ntransfer «ned» => net"),
        ("SL0210", MESH + "fn f(x: [b], «x»: [b]) -> [b]"),
        ("SL0210", MESH + "fn f(x: [b]) -> (y: [b], «y»: [b])"),
        ("SL0211", MESH + "mesh n = a:2\nfn «f»(x: [b]) -> [b]"),
        ("SL0211", "fn «f»(x: [b]) -> [b]"),
        ("SL0211", MESH + "mesh n = a:2\nreshard «r»: [8] => [8]"),
        ("SL0212", "mesh m = dp:2 * «dp»:2"),
        ("SL0212", "mesh m = dp:2 * tp:4\nsplit m.tp = «dp»:2 * b:2"),
        ("SL0212", "mesh m = tp:4\nsplit m.tp = b:2 * «b»:2"),
        ("SL0213", MESH + "fn f(x: «float32»[b]) -> [b]"),
        ("SL0213", MESH + "fn f(x: «bf61»[b]) -> [b]"),
        ("SL0213", NET + "  fsdp root over dp { param «b16» }\n}"),
        ("SL0665", NET + "  fsdp root over dp { param «i32» }\n}"),
        ("SL0665", NET + "  fsdp root over dp { reduce bf16, output «f8e4m3» }\n}"),
        ("SL0214", MESH + "rules on m {\n  b -> dp\n  c, «b» -> tp\n}"),
        ("SL0215", MESH + "rules on m {\n  «bath» -> dp\n}\nfn f(x: [batch]) -> [batch]"),
        ("SL0216", "link ib = 1 GB/s, 1 us\n" + NET + "}\nbudget net { forbid «allgather» on ib }"),
        ("SL0217", MESH + "split m.«tq» = a:2 * b:1"),
        ("SL0218", MESH + "rules on m {\n  v -> tp\n}\nfn f(x: [d/tp «v»]) -> [d]"),
        ("SL0218", MESH + "rules on m {\n  v, w -> tp\n}\nfn f(x: [v «w»]) -> [d]"),
        ("SL0219", "rule my.op: [i k+] [k+ j] -> [i «h»]"),
        ("SL0220", "rule my.op: [i k+] [k+ j] -> [i «k»]"),
    ],
)
def test_fault_of_a_name_is_at_the_name(code: str, text: str) -> None:
    assert_faults(text, code)


def test_set_of_an_unknown_let_names_those_that_exist() -> None:
    (fault,) = faults("let d = 1, f = 2", sets={"dd": 3})
    assert fault.code == "SL0206"
    assert fault.span is None
    assert fault.notes == ("declared there: `d` and `f`",)
    assert fault.helps == ("did you mean `d`?",)


def test_every_fault_of_a_file_is_reported_in_the_order_of_the_text() -> None:
    text = "mesh m = dp:2@«lb»\nlet d = «e»\nfn f(x: [b/«pd» c/dp e/«dp»]) -> «f23»[b]\ntransfer «a» => «b»"
    assert_faults(text, "SL0204", "SL0208", "SL0201", "SL0203", "SL0213", "SL0209", "SL0209")


def test_a_fault_in_a_mesh_does_not_hide_the_faults_of_the_specs_on_it() -> None:
    assert_faults("mesh m = dp:2@«x» * tp:2\nfn f(x: [b/tp c/«tp»]) -> [b]", "SL0204", "SL0203")


def test_short_names_with_letters_swapped_are_near() -> None:
    assert nearest("pd", ["dp", "tp"]) == ["dp"]
    assert nearest("rot", ["root"]) == ["root"]
    assert nearest("xy", ["dp", "tp"]) == []


def test_a_budget_that_names_an_axis_for_a_link_is_told_so() -> None:
    budget = "}\nbudget net { forbid all_gather on «dp» }"
    for mesh, way in (
        ("mesh pod = dp:2 * tp:2\n", "declare a link and put the axis on it, as in `dp:2@ib`"),
        ("link ib = 50 GB/s, 10 us\nmesh pod = dp:2@ib * tp:2\n", "write `ib`, its link"),
    ):
        text, (place,) = unmark(f"{mesh}model net on pod {{ param otherwise : whole {budget}")
        (found,) = faults(text)
        assert found.code == "SL0204"
        assert found.span is not None
        assert (found.span.start, found.span.end) == place
        assert found.message == "there is no link `dp`: it is an axis of mesh `pod`"
        assert found.helps == (way,)


def test_of_two_open_axes_none_takes_the_launch() -> None:
    with pytest.raises(ShardlangError) as caught:
        program("mesh m = dp:? * tp:?\nfn f(x: [2/tp]) -> [2]", nproc=8)
    assert caught.value.codes == ("SL0312",)


def test_an_unknown_name_suggests_the_nearest() -> None:
    (fault,) = faults("link nvlink = 1 GB/s, 1 us\nmesh m = dp:2@nvlnik")
    assert fault.helps == ("did you mean `nvlink`?",)
    assert fault.fix is not None
    assert fault.fix.replacement == "nvlink"


def test_a_far_name_is_suggested_to_nobody() -> None:
    (fault,) = faults("link nvlink = 1 GB/s, 1 us\nmesh m = dp:2@ib")
    assert fault.fix is None
    assert fault.helps == ("declare it: `link ib = 50 GB/s, 10 us`",)


def test_a_torch_dtype_is_corrected() -> None:
    (fault,) = faults("mesh m = dp:2\nfn f(x: bfloat16[b]) -> [b]")
    assert fault.fix is not None
    assert fault.fix.replacement == "bf16"


def test_lets_fold_in_any_order() -> None:
    assert program("let f = 4*d, k = d//(kv*g)\nlet d = 4096, kv = 8, g = 4 + 0").lets == {
        "f": 16384,
        "k": 128,
        "d": 4096,
        "kv": 8,
        "g": 4,
    }


def test_set_overrides_a_let_and_what_depends_on_it() -> None:
    assert program("let d = 4, f = 4*d", sets={"d": 8}).lets == {"d": 8, "f": 32}


def test_a_long_chain_of_lets_folds() -> None:
    lets = ", ".join(f"a{i} = a{i + 1}" for i in range(5000))
    assert program(f"let {lets}, a5000 = 7").lets["a0"] == 7


def test_an_operators_rule_keeps_factors_as_written() -> None:
    (rule,) = program("rule my.op: [... (i g) k+] [k 3 j!] -> [... (i g) j 3]").rules
    assert rule.operator == "my.op"
    assert rule.inputs == ((("...",), ("i", "g"), ("k+",)), (("k",), ("3",), ("j!",)))
    assert rule.outputs == ((("...",), ("i", "g"), ("j",), ("3",)),)


def test_a_factor_contracted_in_any_operand_is_contracted() -> None:
    assert_faults("rule my.op: [i k] [k+ j] -> [i «k»]", "SL0220")


def test_keywords_are_names_of_axes_and_dims() -> None:
    words = ("link", "mesh", "split", "let", "rules", "fn", "model", "param", "call", "fsdp", "max", "on", "over")
    for word in words:
        found = program(f"mesh m = {word}:2\nfn f(x: [{word}/{word} d]) -> [{word} d]")
        assert found.meshes["m"].axes[0].name == word


def test_marks_enclose_what_a_test_expects() -> None:
    assert unmark("a«b»c«d»") == ("abcd", [(1, 2), (3, 4)])
