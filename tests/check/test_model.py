"""A ``model`` declaration against a model's parameters and modules."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from attrs import evolve

from shardlang.check.facts import Facts, Tensor, modules_of
from shardlang.check.model import ModelLayouts, check_model
from shardlang.diagnostics import Diagnostic, ShardlangError
from tests.check.marked import program, unmark

MESH = "mesh pod = dp:2 * tp:2\n"


def facts(shapes: Mapping[str, tuple[int, ...]], *tied: tuple[str, ...], dtype: str = "f32") -> Facts:
    parameters = {name: Tensor(shape, dtype) for name, shape in shapes.items()}
    return Facts(parameters, modules_of(parameters), tied)


def llama(layers: int = 2, d: int = 8, f: int = 16, kv: int = 2, g: int = 2, k: int = 2, vocab: int = 32) -> Facts:
    shapes: dict[str, tuple[int, ...]] = {"tok_embeddings.weight": (vocab, d)}
    for i in range(layers):
        shapes[f"layers.{i}.attention.wq.weight"] = (kv * g * k, d)
        shapes[f"layers.{i}.attention.wk.weight"] = (kv * k, d)
        shapes[f"layers.{i}.attention.wv.weight"] = (kv * k, d)
        shapes[f"layers.{i}.attention.wo.weight"] = (d, kv * g * k)
        shapes[f"layers.{i}.feed_forward.w1.weight"] = (f, d)
        shapes[f"layers.{i}.feed_forward.w2.weight"] = (d, f)
        shapes[f"layers.{i}.norm.weight"] = (d,)
    shapes["norm.weight"] = (d,)
    shapes["output.weight"] = (vocab, d)
    return facts(shapes)


LINES = """
  param tok_embeddings.weight        : [vocab/tp d]
  param layers.*.attention.wq.weight : [(kv/tp g k) d]
  param layers.*.attention.{wk,wv}.weight : [(kv/tp k) d]
  param layers.*.attention.wo.weight : [d (kv/tp g k)]
  param layers.*.feed_forward.w1.weight : [f/tp d]
  param layers.*.feed_forward.w2.weight : [d f/tp]
  param output.weight : [vocab/tp d]
  param otherwise : whole
  call root (tokens: [batch/dp seq]) -> [batch/dp seq vocab/tp]
  call layers.*.attention (x: [batch/dp seq d]) -> [batch/dp seq/tp d]
  checkpoint layers.*
  fsdp layers.* over dp
  fsdp root over dp { reshard no }
  freeze tok_embeddings.**
"""


def layouts(lines: str, given: Facts, lets: str = "", mesh: str = MESH) -> ModelLayouts:
    found = program(f"{mesh}{lets}\nmodel net on pod {{{lines}}}\n")
    return check_model(found.models["net"], given)


def assert_faults(lines: str, given: Facts, *codes: str, lets: str = "", mesh: str = MESH) -> tuple[Diagnostic, ...]:
    """Just these faults, each at one of the marks, in order."""
    text, spans = unmark(f"{mesh}{lets}\nmodel net on pod {{{lines}}}\n")
    with pytest.raises(ShardlangError) as caught:
        check_model(program(text).models["net"], given)
    found = caught.value.diagnostics
    assert [d.code for d in found] == list(codes), str(caught.value)
    assert [(d.span.start, d.span.end) for d in found if d.span] == spans, str(caught.value)
    return found


def test_a_llama_gets_every_layout() -> None:
    found = layouts(LINES, llama(), "let kv = 2, g = 2")
    assert {n: str(p.layout) for n, p in found.parameters.items() if "layers.1" not in n} == {
        "tok_embeddings.weight": "[32/tp 8]",
        "layers.0.attention.wq.weight": "[(2/tp 2 2) 8]",
        "layers.0.attention.wk.weight": "[(2/tp 2) 8]",
        "layers.0.attention.wv.weight": "[(2/tp 2) 8]",
        "layers.0.attention.wo.weight": "[8 (2/tp 2 2)]",
        "layers.0.feed_forward.w1.weight": "[16/tp 8]",
        "layers.0.feed_forward.w2.weight": "[8 16/tp]",
        "layers.0.norm.weight": "[8]",
        "norm.weight": "[8]",
        "output.weight": "[32/tp 8]",
    }
    assert dict(found.sizes) == {"vocab": 32, "d": 8, "k": 2, "f": 16}
    assert [(g.module, len(g.parameters)) for g in found.groups] == [("layers.0", 7), ("layers.1", 7), ("", 3)]
    assert [c.module for c in found.calls] == ["", "layers.0.attention", "layers.1.attention"]
    assert found.checkpoint == ("layers.0", "layers.1")
    assert [n for n, p in found.parameters.items() if p.frozen] == ["tok_embeddings.weight"]


def test_a_pattern_in_vain_names_the_nearest() -> None:
    lines = "param «layers.*.attention.wqq.weight» : [f/tp d]\nparam otherwise : whole"
    (found,) = assert_faults(lines, llama(), "SL0601")
    assert found.message == "no parameter of model `net` matches `layers.*.attention.wqq.weight`"
    assert found.helps == ("did you mean `layers.*.attention.wq.weight`?",)


@pytest.mark.parametrize(
    "line",
    [
        "call «layer.*» (x: [b]) -> [b]",
        "fsdp «layers.[8..9]» over dp",
        "checkpoint «blocks.*»",
        "freeze «tok_embeddings»",
        "param «layers.*.attention.wq» : whole",
    ],
)
def test_every_kind_of_line_must_match(line: str) -> None:
    assert_faults(f"param otherwise : whole\n{line}", llama(), "SL0601")


def test_a_word_in_braces_must_match_as_well() -> None:
    lines = "param layers.*.attention.{wq, «wkk»,wo}.weight : whole\nparam otherwise : whole"
    (found,) = assert_faults(lines, llama(), "SL0601")
    assert found.message == "no parameter of model `net` matches `layers.*.attention.wkk.weight`"
    assert found.helps == ("did you mean `layers.*.attention.wk.weight`?",)
    assert_faults("param otherwise : whole\nfsdp layers.*.{attention,«ffn»} over dp", llama(), "SL0601")
    layouts("param layers.*.attention.w{q,k}.weight : whole\nparam otherwise : whole", llama())


def test_a_parameter_where_a_module_is_due_leads_to_its_module() -> None:
    for line in ("fsdp «layers.*.attention.wq.weight» over dp", "checkpoint «layers.*.attention.wq.weight»"):
        (found,) = assert_faults(f"param otherwise : whole\n{line}", llama(), "SL0601")
        assert found.helps == ("did you mean `layers.*.attention.wq`?",)


def test_all_lines_in_vain_are_reported() -> None:
    assert_faults("param «a» : whole\nparam «b» : whole\nfreeze «c»\nparam otherwise : whole", llama(), *["SL0601"] * 3)


def test_a_pattern_in_vain_hides_no_fault_of_a_size() -> None:
    given = facts({"a": (9, 4), "b": (4, 4), "c": (12, 4)})
    lines = "param «bb» : [(m/tp k) d]\nparam a : [«n/tp» d]\nparam c : [(k m/tp) d]\nparam b : [d d]"
    assert_faults(lines, given, "SL0601", "SL0302")
    lines = "param b : whole\nparam «{b,c}» : [e/tp d]\nparam a : [«n/tp» d]"
    assert_faults(lines, given, "SL0602", "SL0302")


def test_two_lines_that_claim_a_parameter_are_both_named() -> None:
    lines = "param layers.*.norm.weight : whole\nparam «**.norm.weight» : [d/tp]\nparam otherwise : whole"
    given = llama()
    (found,) = assert_faults(lines, given, "SL0602")
    assert found.message == (
        "`layers.*.norm.weight` and `**.norm.weight` both claim `layers.0.norm.weight` and `layers.1.norm.weight`"
    )
    assert found.labels[0].span.text == "layers.*.norm.weight"


def test_one_pattern_twice_is_found_without_a_model() -> None:
    with pytest.raises(ShardlangError) as caught:
        program(MESH + "model net on pod {\n param a : whole\n param a : [d]\n}")
    assert caught.value.codes == ("SL0602",)


def test_parameters_without_a_line_are_listed() -> None:
    text = MESH + "\nmodel net on pod {\nparam layers.** : whole\n}\n"
    with pytest.raises(ShardlangError) as caught:
        check_model(program(text).models["net"], llama())
    (found,) = caught.value.diagnostics
    assert found.code == "SL0603"
    assert found.span is not None
    assert found.span.text == "net"
    assert "`tok_embeddings.weight`, `norm.weight` and `output.weight`" in found.message


def test_a_size_that_differs_between_parameters_names_both() -> None:
    (found,) = assert_faults("param a : [f d]\nparam b : [d «f»]", facts({"a": (4, 8), "b": (8, 6)}), "SL0301")
    assert found.message == "dim 1 of `b` has size 6, but `f` is 4"
    assert found.notes == ("sizes bound so far: f=4 (dim 0 of `a`)",)
    assert found.labels[0].text == "`f` is 4 by dim 0 of `a`"


def test_one_fault_of_many_layers_is_reported_once() -> None:
    lines = "param layers.*.feed_forward.w1.weight : [«f/tp» d]\nparam otherwise : whole"
    assert_faults(lines, llama(layers=9, f=15), "SL0302")


def test_a_dtype_that_differs_is_a_fault() -> None:
    assert_faults("param a : «bf16[d]»", facts({"a": (4,)}), "SL0319")
    assert layouts("param a : bf16[d]", facts({"a": (4,)}, dtype="bf16")).parameters["a"].dtype == "bf16"


def test_a_scalar_is_whole_and_never_split() -> None:
    given = facts({"scale": (), "w": (4,)})
    assert str(layouts("param otherwise : whole", given).parameters["scale"].layout) == "[]"
    assert_faults("param scale : «[d/tp]»\nparam otherwise : whole", given, "SL0304")


def test_integer_parameters_and_empty_ones_are_parameters() -> None:
    given = Facts({"q": Tensor((4,), "u8", trainable=False), "none": Tensor((0, 4), "f32")}, ("",))
    found = layouts("param q : [n/tp]\nparam none : [z/tp d]", given)
    assert found.parameters["q"].frozen
    assert str(found.parameters["none"].layout) == "[0/tp 4]"


def test_fsdp_over_an_axis_that_splits_is_a_fault() -> None:
    given = facts({"layers.0.w": (4, 4), "layers.1.w": (4, 4)})
    for lines in (
        "param layers.*.w : [f/dp d]\nfsdp layers.* over «dp»",
        "param layers.*.w : [f/dp d]\nfsdp layers.* over «tp» replicate dp",
    ):
        (found,) = assert_faults(lines, given, "SL0607")
        assert found.labels[0].span.text == "[f/dp d]"


def test_fsdp_over_a_part_of_an_axis_that_splits_is_a_fault() -> None:
    mesh = "mesh pod = dp:2 * tp:4\nsplit pod.tp = a:2 * b:2\n"
    assert_faults("param w : [f/tp]\nfsdp root over «a»", facts({"w": (8,)}), "SL0607", mesh=mesh)
    layouts("param w : [f/b]\nfsdp root over a", facts({"w": (8,)}), mesh=mesh)


def test_a_module_in_two_groups_is_a_fault() -> None:
    lines = "param otherwise : whole\nfsdp layers.* over dp\nfsdp «layers.0» over dp"
    assert_faults(lines, llama(), "SL0608")


def test_two_calls_of_a_module_are_a_fault() -> None:
    lines = "param otherwise : whole\ncall layers.* (x: [b]) -> [b]\ncall «layers.0» (x: [b]) -> [b]"
    assert_faults(lines, llama(), "SL0611")


def test_a_call_names_arguments_that_the_module_takes() -> None:
    given = evolve(llama(), arguments={"layers.0": ("x", "mask"), "layers.1": ("x", "mask")})
    (found,) = assert_faults("param otherwise : whole\ncall layers.* («y: [b]») -> [b]", given, "SL0630")
    assert "`x`" in "".join((*found.notes, *found.helps))
    layouts("param otherwise : whole\ncall layers.* (mask: [b]) -> [b]\ncall norm (z: [b]) -> [b]", given)


def test_reshard_takes_divisors_of_the_group() -> None:
    mesh = "mesh pod = fsdp:4 * tp:2\n"
    for count in (1, 2, 4):
        program(mesh + f"model net on pod {{ fsdp root over fsdp {{ reshard {count} }} }}")
    text, spans = unmark(mesh + "model net on pod { fsdp root over fsdp { reshard «3» } }")
    with pytest.raises(ShardlangError) as caught:
        program(text)
    (found,) = caught.value.diagnostics
    assert found.code == "SL0605"
    assert found.span is not None
    assert [(found.span.start, found.span.end)] == spans
    assert found.helps == ("write one of 1, 2 or 4, or `yes` or `no`",)


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("SL0604", "fsdp root over dp/«dp»"),
        ("SL0604", "fsdp root over dp replicate «dp»"),
        ("SL0606", "param w : [f]«{+tp}»"),
    ],
)
def test_fault_of_a_line_is_found_without_a_model(code: str, line: str) -> None:
    text, spans = unmark(MESH + f"model net on pod {{\n{line}\n}}")
    with pytest.raises(ShardlangError) as caught:
        program(text)
    (found,) = caught.value.diagnostics
    assert found.code == code
    assert found.span is not None
    assert [(found.span.start, found.span.end)] == spans


TIED = facts({"embed.weight": (7, 4), "out.weight": (7, 4), "mid.weight": (4, 4)}, ("embed.weight", "out.weight"))


def test_a_line_for_one_name_of_a_tied_parameter_is_for_all() -> None:
    found = layouts("param out.weight : [v/~tp d]\nparam otherwise : whole\nfsdp root over dp", TIED)
    assert str(found.parameters["embed.weight"].layout) == "[7/~tp 4]"
    assert [p.name for p in found.unique_parameters()] == ["embed.weight", "mid.weight"]


def test_a_tied_parameter_has_one_layout() -> None:
    lines = "param embed.weight : [v d/tp]\nparam out.weight : «[v d]»\nparam otherwise : whole"
    assert_faults(lines, TIED, "SL0609")


def test_a_tied_parameter_is_in_one_group() -> None:
    lines = "param otherwise : whole\nfsdp «embed» over dp\nfsdp root over dp"
    (found,) = assert_faults(lines, TIED, "SL0610")
    assert found.labels[0].span.text == "root"
    assert_faults("param otherwise : whole\nfsdp «embed» over dp\nfsdp mid over dp", TIED, "SL0610")
    layouts("param otherwise : whole\nfsdp mid over dp\nfsdp root over dp", TIED)


def test_freezing_one_name_of_a_tied_parameter_freezes_it() -> None:
    found = layouts("param otherwise : whole\nfreeze embed.**", TIED)
    assert found.parameters["out.weight"].frozen


def test_sizes_found_from_parameters_are_held_against_calls() -> None:
    lines = "param w : [f d]\ncall root (x: [b «d/tp»]) -> [b d]"
    assert_faults(lines, facts({"w": (4, 5)}), "SL0302")


def test_a_checkpoint_does_not_know_modules_without_parameters() -> None:
    given = evolve(llama(), modules_known=False)
    layouts("param otherwise : whole\ncall layers.*.rope (x: [b]) -> [b]", given)
    assert_faults("param otherwise : whole\ncall «layers.*.atention» (x: [b]) -> [b]", given, "SL0601")
    for pattern in ("blocks.*", "layers.[8..9]", "layers.*.[0..1]", "layers.*.{a,b}", "rope"):
        assert_faults(f"param otherwise : whole\ncall «{pattern}» (x: [b]) -> [b]", given, "SL0601")
    assert_faults("param otherwise : whole\ncall «layers.*.rope» (x: [b]) -> [b]", llama(), "SL0601")


def test_where_only_names_are_known_patterns_are_checked() -> None:
    names = Facts({"a.w": Tensor((), ""), "b.w": Tensor((), "")}, ("", "a", "b"), shapes_known=False)
    assert layouts("param a.w : [f/tp d]\nparam otherwise : whole", names).parameters == {}
    assert_faults("param «c.w» : [f/tp d]\nparam otherwise : whole", names, "SL0601")
