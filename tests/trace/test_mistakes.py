"""What cannot be typed or traced is an error at the user's own line, with the ways out."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import shardlang as sl
from shardlang.diagnostics import ShardlangError
from shardlang.mesh import Axis, Mesh
from shardlang.trace.rules import RULES, load
from shardlang.trace.rules.pointwise import elementwise
from tests.trace.oracle import check, reals

POD = Mesh("pod", (Axis("dp", 2), Axis("tp", 2)))


def test_an_error_names_line_layouts_and_priced_choices() -> None:
    def added(x: Any, y: Any) -> Any:
        return x + y

    with pytest.raises(ShardlangError) as caught:
        check(added, [reals(4, 6), reals(4, 6)], ["[a/dp b]", "[a b/tp]"])
    (fault,) = caught.value.diagnostics
    assert fault.code == "SL0501"
    assert fault.span is not None
    assert fault.span.text == "x + y"
    assert fault.span.source.name == __file__
    assert any("sl.reshard(x1" in text and " B, " in text for text in fault.helps)


def test_the_origin_of_an_operand_is_shown_in_the_signature() -> None:
    @sl.sharded("(x: [b/dp d], y: [b d/tp]) -> [b/dp d]", POD)
    def added(x: Any, y: Any) -> Any:
        return x + y

    with pytest.raises(ShardlangError) as caught:
        added.program_for(torch.empty(4, 6), torch.empty(4, 6))
    (fault,) = caught.value.diagnostics
    assert [label.span.text for label in fault.labels] == ["x: [b/dp d]", "y: [b d/tp]"]
    line, column = fault.labels[1].span.begin
    with open(__file__) as file:
        assert file.readlines()[line - 1][column - 1 :].startswith("y: [b d/tp]")


def test_a_fault_in_the_decorators_text_points_into_the_python_file() -> None:
    with pytest.raises(ShardlangError) as caught:
        sl.sharded("(x: [b/dq d]) -> [b/dp d]", POD)(lambda x: x)
    (fault,) = caught.value.diagnostics
    assert fault.span is not None
    line, column = fault.span.begin
    with open(__file__) as file:
        assert file.readlines()[line - 1][column - 1 :].startswith("dq d]")


def test_a_spec_in_the_body_is_placed_too() -> None:
    @sl.sharded("(x: [b/dp d]) -> [b/dp d]", POD)
    def moved(x: Any) -> Any:
        return sl.reshard(x, "[b/tq d]")

    with pytest.raises(ShardlangError) as caught:
        moved.program_for(torch.empty(4, 6))
    (fault,) = caught.value.diagnostics
    assert fault.span is not None
    line, column = fault.span.begin
    with open(__file__) as file:
        assert file.readlines()[line - 1][column - 1 :].startswith("tq d]")


def test_names_of_the_signature_have_their_sizes_in_the_body() -> None:
    @sl.sharded("(x: [b/dp d]) -> [b d]", POD)
    def moved(x: Any) -> Any:
        return sl.reshard(x, "[d b]")

    with pytest.raises(ShardlangError) as caught:
        moved.program_for(torch.empty(4, 6))
    assert set(caught.value.codes) == {"SL0301"}


def test_a_wrong_rule_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    load()
    x = torch.randn(4, 6)
    sl.check_rule(None, lambda x: torch.cumsum(x, -1), x)
    monkeypatch.setitem(RULES, "aten.cumsum", lambda call: elementwise(call))
    with pytest.raises(ShardlangError) as caught:
        sl.check_rule(None, lambda x: torch.cumsum(x, -1), x)
    assert caught.value.codes == ("SL0517",)


def test_a_rule_that_forgets_a_sum_is_caught() -> None:
    with pytest.raises(ShardlangError) as caught:
        sl.check_rule("aten.mm: [i k] [k j] -> [i j]", torch.mm, torch.randn(4, 6), torch.randn(6, 2))
    assert caught.value.codes == ("SL0517",)


@torch.library.custom_op("shardlang_tests::scaled_mm", mutates_args=())
def scaled_mm(a: torch.Tensor, b: torch.Tensor, scale: float) -> torch.Tensor:
    return scale * (a @ b)


@scaled_mm.register_fake
def _(a: torch.Tensor, b: torch.Tensor, scale: float) -> torch.Tensor:
    return a.new_empty(a.shape[0], b.shape[1])


def _backward(ctx: Any, grad: torch.Tensor) -> Any:
    a, b = ctx.saved_tensors
    return ctx.scale * grad @ b.T, ctx.scale * a.T @ grad, None


def _setup(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs[:2])
    ctx.scale = inputs[2]


scaled_mm.register_autograd(_backward, setup_context=_setup)


def test_a_users_operator_with_a_rule_is_split() -> None:
    sl.check_rule(
        "shardlang_tests.scaled_mm: [i k+] [k+ j] -> [i j]",
        lambda a, b: scaled_mm(a, b, 3.0),
        reals(4, 6),
        reals(6, 2),
    )


def test_a_plan_text_has_the_line_of_each_step() -> None:
    @sl.sharded("(x: [b/dp d], w: [d f/tp]) -> [b/dp f/tp]", POD)
    def gathered(x: Any, w: Any) -> Any:
        return sl.reshard(torch.relu(x), "[b/dp d]") @ w

    gathered.program_for(torch.empty(4, 6), torch.empty(6, 8))
    assert "forward:" in gathered.plan
    assert "backward:" in gathered.plan
    assert gathered.backward_signature.startswith("(f32[4 8]) -> (x: f32[4 6], w: f32[6 8])")
    assert "torch.ops.aten.matmul(" in gathered.local_source
