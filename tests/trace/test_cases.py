"""Cases from the field: pending values, gradients and random numbers that other tools get wrong."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import shardlang as sl
from shardlang.diagnostics import ShardlangError
from shardlang.runtime import lockstep, simulate
from tests.trace.oracle import check, layout, mesh_of, program, reals


def test_case_25_constants_added_to_a_pending_sum_count_once() -> None:
    def number(x: Any) -> Any:
        return (x.sum() + 10) + torch.tensor(10.0, dtype=torch.float64)

    def tensor(x: Any) -> Any:
        return (x.sum() + torch.tensor(10.0, dtype=torch.float64)) + 10

    for function in (number, tensor):
        made = check(function, [torch.arange(10).double()], ["[n/tp]"], "tp:2", results=["[]"])
        assert len([m for m in made.moves if m.forward and m.forward.collectives]) == 1


def test_case_26_pending_values_are_not_compared_part_by_part() -> None:
    def compared(x: Any) -> Any:
        return -5 * x == 2 * x

    with pytest.raises(ShardlangError) as caught:
        check(compared, [reals(4)], ["[n]{+tp}"], "tp:2")
    assert caught.value.codes == ("SL0504",)
    made = check(compared, [reals(4)], ["[n]{+tp}"], "tp:2", auto=True)
    assert made.results[0].owed() == ()


def test_case_27_the_mean_of_a_split_tensor_is_the_global_mean() -> None:
    mesh = mesh_of("tp:2")
    x = torch.arange(12).double().reshape(3, 4)
    made = program(lambda x: x.mean(), [x], [layout(mesh, "[a/~tp b]", (3, 4))], mesh, [layout(mesh, "[]", ())])
    parts = lockstep.run(made, mesh, [simulate.shard(x, made.arguments[0])])[0]
    assert [float(parts[r]) for r in mesh.ranks] == [5.5, 5.5]


def test_case_28_a_whole_value_made_pending_and_summed_back_keeps_its_bits() -> None:
    mesh = mesh_of("tp:3")
    x = torch.randn(7)

    def there_and_back(x: Any) -> Any:
        return sl.reshard(sl.reshard(x, "[7]{+tp}"), "[7]")

    made = program(there_and_back, [x], [layout(mesh, "[7]", (7,))], mesh)
    parts = lockstep.run(made, mesh, [simulate.shard(x, made.arguments[0])])[0]
    assert all(torch.equal(parts[r], x) for r in mesh.ranks)


def test_case_29_a_whole_value_used_differently_by_each_rank_gets_the_sum_as_gradient() -> None:
    mesh = mesh_of("tp:2")
    x, scale = torch.ones(3).double(), torch.tensor([1.0, 2.0]).double()

    def weighed(x: Any, scale: Any) -> Any:
        return (x[:, None] * scale).sum()

    layouts = [layout(mesh, "[3]", (3,)), layout(mesh, "[2/tp]", (2,))]
    made = program(weighed, [x, scale], layouts, mesh, [layout(mesh, "[]", ())])
    blocks = [simulate.shard(t, w) for t, w in zip([x, scale], layouts, strict=True)]
    for block in blocks[0].values():
        block.requires_grad_()
    result = lockstep.run(made, mesh, blocks)[0]
    torch.autograd.backward([result[r] for r in mesh.ranks])
    for rank in mesh.ranks:
        grad = blocks[0][rank].grad
        assert grad is not None
        assert grad.tolist() == [3, 3, 3]


@pytest.mark.parametrize("specs", [["[a/tp b]"], ["[a b/tp]"], ["[a/dp b/tp]"], ["[a b]{+tp}"]])
def test_case_32_dropout_draws_the_same_mask_however_the_tensor_is_split(specs: list[str]) -> None:
    x = reals(8, 6)

    def dropped(x: Any) -> Any:
        return F.dropout(x, 0.4)

    def run(text: str, spec: str) -> torch.Tensor:
        mesh = mesh_of(text)
        made = program(dropped, [x], [layout(mesh, spec, (8, 6))], mesh)
        parts = lockstep.run(made, mesh, [simulate.shard(x, made.arguments[0])], seed=11)[0]
        return simulate.assemble(parts, made.results[0])

    alone = run("tp:1", "[a b]")
    assert 0 < int((alone == 0).sum()) < 48
    assert torch.equal(alone[alone != 0], (x / 0.6)[alone != 0]) or torch.allclose(
        alone[alone != 0], (x / 0.6)[alone != 0]
    )
    assert torch.equal(run("dp:2 * tp:2", specs[0]), alone)


def test_dropout_that_is_off_is_nothing() -> None:
    made = check(lambda x: F.dropout(x, 0.4, training=False) * F.dropout(x, 0.0), [reals(8, 6)], ["[a/dp b/tp]"])
    assert made.draws == ()


def test_the_declared_gradient_of_a_replicated_weight_may_stay_in_parts() -> None:
    mesh = mesh_of("dp:2")
    from shardlang.trace.capture import TensorType
    from shardlang.trace.compile import Argument, compile_function

    x = Argument("x", TensorType((4, 6), torch.float64), layout(mesh, "[b/dp d]", (4, 6)))
    w = Argument(
        "w", TensorType((6, 3), torch.float64), layout(mesh, "[d f]", (6, 3)), None, layout(mesh, "[d f]{+dp}", (6, 3))
    )
    made = compile_function(lambda x, w: x @ w, [x, w], mesh, lambda shapes: [None])
    assert [m for m in made.moves if m.backward and m.backward.collectives] == []
    assert str(made.gradients[1]) == "[6 3]{+dp}"
