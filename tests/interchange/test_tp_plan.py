"""Plans of transformers: every rank holds what the style gives it, and what cannot be said has a code."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shardlang.diagnostics import ShardlangError
from shardlang.interchange import Imported
from shardlang.interchange.tp_plan import STYLES, UNSAYABLE, import_hf
from shardlang.source import Source
from tests.interchange.layouts import layouts

LLAMA = {
    "layers.*.self_attn.q_proj": "colwise",
    "layers.*.self_attn.k_proj": "colwise",
    "layers.*.self_attn.v_proj": "colwise",
    "layers.*.self_attn.o_proj": "rowwise",
    "layers.*.mlp.gate_proj": "colwise",
    "layers.*.mlp.up_proj": "colwise",
    "layers.*.mlp.down_proj": "rowwise",
}


def imported(plan: dict[str, str], parameters: dict[str, Sequence[int]] | None = None, tp: int = 2) -> Imported:
    said: dict[str, Any] = plan
    if parameters is not None:
        said = {"tp_plan": plan, "mesh": {"tp": tp}, "parameters": {n: list(s) for n, s in parameters.items()}}
    return import_hf(Source("plan.json", json.dumps(said)))


def block(style: str, bias: bool, tensor: torch.Tensor, tp: int, rank: int) -> torch.Tensor:
    """What rank ``rank`` holds under a style, by what the styles do to a tensor: cuts and joins of it, no layouts.

    A Linear keeps its weight as [out, in]. By columns means some outputs: rows of the weight and of the bias. By rows
    means some inputs: columns of the weight; the bias is added once, so it is whole. An embedding by rows means some
    words. Packed weights hold two projections one after the other, each of which is cut for itself.
    """
    if "colwise" in style:
        dim = -1 if bias else -2
    elif style == "embedding_rowwise" and not bias:
        dim = -2
    elif "rowwise" in style and not bias:
        dim = -1
    else:
        return tensor
    halves = tensor.chunk(2, dim) if "packed" in style else [tensor]
    return torch.cat([half.chunk(tp, dim)[rank] for half in halves], dim)


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(sorted(STYLES)), st.sampled_from([1, 2, 3]), st.integers(1, 3), st.integers(1, 3), st.booleans())
def test_every_rank_holds_what_the_style_gives_it(style: str, tp: int, rows: int, columns: int, deep: bool) -> None:
    out, into = 2 * tp * rows, 2 * tp * columns
    weight = (3, out, into) if deep else (out, into)
    shapes: dict[str, Sequence[int]] = {"h.0.m.weight": weight, "h.0.m.bias": (out,), "h.1.m.weight": weight}
    shapes |= {"h.1.m.bias": (out,), "norm.weight": (5,)}
    result = imported({"h.*.m": style}, shapes, tp)
    found = layouts(result.text, {n: tuple(s) for n, s in shapes.items()})
    for name, shape in shapes.items():
        whole = torch.arange(torch.Size(shape).numel()).view(*shape)
        for rank in range(tp):
            expected = whole if name == "norm.weight" else block(style, name.endswith("bias"), whole, tp, rank)
            held = whole
            for dim, runs in enumerate(found[name].runs(rank)):
                index = torch.tensor([i for a, b in runs for i in range(a, b)], dtype=torch.long)
                held = held.index_select(dim, index)
            assert torch.equal(held, expected), (name, rank, result.text)


def test_a_plan_alone_becomes_weights_and_calls_for_any_number_of_ranks() -> None:
    result = imported(LLAMA)
    assert [d.code for d in result.diagnostics] == ["SL0262"]
    assert result.text.startswith("mesh mesh = tp:?\n")
    assert "param layers.*.self_attn.o_proj.weight : [_ _/tp]" in result.text
    assert "call  layers.*.self_attn.o_proj (input: [... _/tp]) -> [... _]" in result.text
    shapes = {f"layers.{i}.{m.removeprefix('layers.*.')}.weight": (8, 8) for i in (0, 1) for m in LLAMA}
    found = layouts(result.text, {**shapes, "norm.weight": (8,)}, nproc=4)
    assert found["layers.1.mlp.up_proj.weight"].local_shape(3) == (2, 8)
    assert found["layers.1.mlp.down_proj.weight"].local_shape(3) == (8, 2)
    assert found["norm.weight"].local_shape(3) == (8,)


CALLS = {
    "colwise": "(input: [... _]) -> [... _/tp]",
    "colwise_rep": "(input: [... _]) -> [... _]",
    "colwise_gather_output": "(input: [... _]) -> [... _]",
    "packed_colwise": "(input: [... _]) -> [... (2 _/tp)]",
    "rowwise": "(input: [... _/tp]) -> [... _]",
    "rowwise_rep": "(input: [... _]) -> [... _]",
    "rowwise_split_input": "(input: [... _]) -> [... _]",
    "local_rowwise": "(input: [... _/tp]) -> [... _]{+tp}",
    "embedding_rowwise": "(input: [...]) -> [... _]",
}


@pytest.mark.parametrize("style", CALLS)
def test_the_boundary_of_a_module_is_what_the_style_makes_it(style: str) -> None:
    lines = [line.strip() for line in imported({"m": style}).text.splitlines()]
    assert [line.removeprefix("call  m ") for line in lines if line.startswith("call")] == [CALLS[style]]


def test_a_parameter_that_a_plan_names_itself_has_no_call() -> None:
    text = imported({"e.*.gate_up": "local_packed_rowwise"}, {"e.0.gate_up": (3, 4, 8), "e.0.down": (3, 4, 4)}).text
    assert "param e.*.gate_up : [_ _ (2 _/tp)]" in text
    assert "call" not in text


def test_numbers_alone_match_a_star() -> None:
    shapes = {"h.0.q.weight": (4, 4), "h.last.q.weight": (4, 4)}
    result = imported({"h.*.q": "colwise"}, shapes)
    found = layouts(result.text, {n: tuple(s) for n, s in shapes.items()})
    assert found["h.0.q.weight"].local_shape(0) == (2, 4)
    assert found["h.last.q.weight"].local_shape(0) == (4, 4)
    assert "call  h.0.q (" in result.text


@pytest.mark.parametrize("style", UNSAYABLE)
def test_a_style_that_no_line_says_has_a_code_and_the_rest_is_written(style: str) -> None:
    result = imported({"m": style, "q": "colwise"}, {"m.weight": (4, 4), "q.weight": (4, 4)})
    (fault,) = result.diagnostics
    assert fault.code == "SL0261"
    assert fault.span is not None
    assert fault.span.text == f'"{style}"'
    found = layouts(result.text, {"m.weight": (4, 4), "q.weight": (4, 4)})
    assert found["m.weight"].local_shape(1) == (4, 4)
    assert found["q.weight"].local_shape(1) == (2, 4)


LEFT: list[tuple[str, dict[str, str], dict[str, Sequence[int]], str]] = [
    ("SL0260", {"m": "colwsie"}, {"m.weight": (4, 4)}, '"colwsie"'),
    ("SL0263", {"m": "colwise"}, {"m.weight": (4,)}, '"colwise"'),
    ("SL0264", {"x.embed_tokens": "rowwise"}, {"x.embed_tokens.weight": (4, 4)}, '"rowwise"'),
    ("SL0265", {"q_prj": "colwise"}, {"q_proj.weight": (4, 4)}, '"q_prj"'),
    ("SL0266", {"m": "sequence_parallel"}, {"m.weight": (4,)}, '"sequence_parallel"'),
    ("SL0259", {"m": "rowwise"}, {"m.weight": (4, 5)}, '"rowwise"'),
    ("SL0259", {"m": "packed_colwise"}, {"m.weight": (6, 5)}, '"packed_colwise"'),
    ("SL0259", {"m": "packed_colwise"}, {"m.weight": (5, 5)}, '"packed_colwise"'),
]


@pytest.mark.parametrize(("code", "plan", "parameters", "place"), LEFT)
def test_what_a_line_does_not_say_in_full_has_its_code_and_place(
    code: str, plan: dict[str, str], parameters: dict[str, Sequence[int]], place: str
) -> None:
    result = imported(plan, parameters)
    (fault,) = result.diagnostics
    assert fault.code == code
    assert fault.span is not None
    assert fault.span.text == place
    assert set(layouts(result.text, {n: tuple(s) for n, s in parameters.items()})) == set(parameters)


FAULTS: list[tuple[str, Any]] = [
    ("SL0251", []),
    ("SL0251", {"tp_plan": []}),
    ("SL0251", {"m": 3}),
    ("SL0251", {"tp_plan": {}, "other": 1}),
    ("SL0251", {"tp_plan": {}, "mesh": {"a": 2, "b": 2}}),
    ("SL0251", {"tp_plan": {}, "parameters": {"w": [-1]}}),
    ("SL0254", {"m.block*": "colwise"}),
    ("SL0254", {"tp_plan": {}, "parameters": {"a b": [1]}}),
]


@pytest.mark.parametrize(("code", "said"), FAULTS)
def test_a_fault_of_the_plan_itself_has_its_code(code: str, said: Any) -> None:
    with pytest.raises(ShardlangError) as caught:
        import_hf(Source("x.json", json.dumps(said)))
    assert caught.value.codes == (code,)
