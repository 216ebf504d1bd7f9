"""What texts mean."""

import pytest

from shardlang.diagnostics import ShardlangError
from shardlang.source import Source
from shardlang.syntax import tree
from shardlang.syntax.parse import parse, parse_axes, parse_change, parse_signature, parse_spec
from tests.syntax.texts import DESIGN, RARE


def source(text: str) -> Source:
    return Source("test.shard", text)


def one(text: str) -> tree.Decl:
    [decl] = parse(source(text)).decls
    return decl


def spec(text: str) -> tree.Spec:
    return parse_spec(source(text))


def dims(text: str) -> tuple[tree.SpecDim, ...]:
    tensor = spec(text).tensor
    assert isinstance(tensor, tree.Tensor)
    return tensor.dims


def test_the_program_of_the_design_parses() -> None:
    kinds = [type(decl).__name__ for decl in parse(source(DESIGN)).decls]
    assert kinds == [
        "Link",
        "Link",
        "Mesh",
        "Mesh",
        "Split",
        "Let",
        "Rules",
        "Fn",
        "Reshard",
        "Model",
        "Transfer",
        "Budget",
        "Rule",
    ]


def test_rare_forms_parse() -> None:
    parse(source(RARE))


def test_nothing_is_a_file() -> None:
    assert parse(source("")).decls == ()
    assert parse(source("# only a comment")).decls == ()


def test_line_ends_of_every_system_are_blanks() -> None:
    assert parse(source(DESIGN.replace("\n", "\r\n"))) == parse(source(DESIGN))


def test_quantities_are_read_in_base_units() -> None:
    link = one("link a = 1.5 GiB/s, 2.5 us")
    assert isinstance(link, tree.Link)
    assert (link.bandwidth.value, link.latency.value) == (3 * 2**29, 2_500_000)


def test_a_mesh_has_axes_links_and_ranks() -> None:
    mesh = one("mesh pod = dp:?@ib * tp:8 ranks 8..15")
    assert isinstance(mesh, tree.Mesh)
    assert [(a.name.text, a.size, a.link and a.link.text) for a in mesh.axes] == [("dp", None, "ib"), ("tp", 8, None)]
    assert mesh.ranks is not None
    assert (mesh.ranks.first, mesh.ranks.last) == (8, 15)


def test_sizes_lean_left_and_brackets_count() -> None:
    def value(text: str) -> tree.Expr:
        let = one(f"let x = {text}")
        assert isinstance(let, tree.Let)
        return let.bindings[0].value

    def shown(e: tree.Expr) -> str:
        if isinstance(e, tree.Binary):
            return f"({shown(e.left)}{e.op}{shown(e.right)})"
        return str(e.value) if isinstance(e, tree.Int) else e.name

    assert shown(value("1 + 2*a//3 + b")) == "((1+((2*a)//3))+b)"
    assert shown(value("d//(kv*g)")) == "(d//(kv*g))"
    assert shown(value("((7))")) == "7"


def test_dims_are_told_apart() -> None:
    batch, any_size, head, whole, uneven, chosen = dims("[batch/dp/fsdp _ (3 kv/tp k)/fsdp seq/. vocab/~tp d/?]")
    assert isinstance(batch, tree.Dim)
    assert [c.axis and c.axis.text for c in batch.cuts] == ["dp", "fsdp"]
    assert isinstance(any_size, tree.Dim)
    assert any_size.size is None
    assert isinstance(head, tree.Group)
    assert [len(f.cuts) for f in head.factors] == [0, 1, 0]
    assert len(head.cuts) == 1
    assert [d.cuts[0].kind for d in (whole, uneven, chosen) if isinstance(d, tree.Dim)] == ["whole", "uneven", "choose"]
    assert isinstance(dims("[... d]")[0], tree.Rest)


def test_pending_and_gradients() -> None:
    built = spec("bf16[d]{+tp, avg dp} grad {max dp}")
    assert isinstance(built.tensor, tree.Tensor)
    assert built.tensor.dtype is not None
    assert built.tensor.pending is not None
    assert [(o.op, o.axis.text) for o in built.tensor.pending.owed] == [("sum", "tp"), ("avg", "dp")]
    assert isinstance(built.grad, tree.Pending)
    assert isinstance(spec("whole").tensor, tree.Whole)
    assert isinstance(spec("[d] grad [d/tp]").grad, tree.Tensor)


def test_results_are_one_or_a_list() -> None:
    bare = parse_signature(source("(x: [d]) -> [d]"))
    listed = parse_signature(source("(x: [d]) -> ([d])"))
    named = parse_signature(source("() -> (hidden: [d], _, [d])"))
    assert (bare.many, listed.many) == (False, True)
    assert bare != listed
    assert [(r.name and r.name.text, r.spec is None) for r in named.results] == [
        ("hidden", False),
        (None, True),
        (None, False),
    ]


def test_a_model_keeps_its_lines_in_order() -> None:
    model = parse(source(DESIGN)).decls[9]
    assert isinstance(model, tree.Model)
    assert [type(i).__name__ for i in model.items] == ["Param"] * 8 + [
        "Call",
        "Call",
        "Checkpoint",
        "Fsdp",
        "Fsdp",
        "Freeze",
    ]
    assert model.reference is not None
    assert model.reference.text == "examples.llama.model:build"
    fsdp = model.items[11]
    assert isinstance(fsdp, tree.Fsdp)
    assert [(o.name.text, o.value) for o in fsdp.options][2] == ("reshard", True)


def test_blanks_in_a_path_do_not_count() -> None:
    model = one("model m on pod { param a.{ wq , wk }.weight : [d] }")
    assert isinstance(model, tree.Model)
    assert model.items[0].path.text == "a.{wq,wk}.weight"


def test_pieces_have_their_own_entries() -> None:
    change = parse_change(source("f32[8192/a/b 8192] => [8192 8192/a/b]"))
    assert change.source.span.text == "f32[8192/a/b 8192]"
    assert [a.size for a in parse_axes(source("a:2 * b:4@ib"))] == [2, 4]


def test_every_node_knows_its_text() -> None:
    text = "let d = 3\nmodel m on pod {\n  param a.b : bf16[ d/tp (x y/dp)/fsdp ]{+ep} grad whole # c\n}"
    model = parse(source(text)).decls[1]
    assert isinstance(model, tree.Model)
    param = model.items[0]
    assert isinstance(param, tree.Param)
    assert model.span.text == text[text.index("model") :]
    assert param.span.text == "param a.b : bf16[ d/tp (x y/dp)/fsdp ]{+ep} grad whole"
    assert param.path.span.text == "a.b"
    tensor = param.spec.tensor
    assert isinstance(tensor, tree.Tensor)
    assert tensor.span.text == "bf16[ d/tp (x y/dp)/fsdp ]{+ep}"
    assert [d.span.text for d in tensor.dims] == ["d/tp", "(x y/dp)/fsdp"]
    group = tensor.dims[1]
    assert isinstance(group, tree.Group)
    assert group.factors[1].cuts[0].span.text == "/dp"
    assert tensor.pending is not None
    assert tensor.pending.owed[0].span.text == "+ep"


def test_trees_are_equal_up_to_spans() -> None:
    assert spec("[ b/dp   d ]") == spec("[b/dp d]")
    assert spec("[b/dp d]") != spec("[b/tp d]")


def test_errors_in_a_decorators_string_point_into_its_file() -> None:
    at = Source("m.py", "(x: [b, d]) -> [b]", first_line=7, first_column=12, context="\n" * 6 + '@sharded("')
    with pytest.raises(ShardlangError) as caught:
        parse_signature(at)
    span = caught.value.diagnostics[0].span
    assert span is not None
    assert span.begin == (7, 18)
