"""Cases from the field: inputs on which other tools fail, each with the right value."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import Shard, distribute_tensor

import shardlang as sl
from shardlang.layout import Layout
from shardlang.lower.placements import mesh_of
from shardlang.mesh import Axis, Mesh
from shardlang.plan.search import plan_transition
from shardlang.runtime import distributed, simulate
from shardlang.runtime.groups import Team
from shardlang.runtime.record import Recorder
from shardlang.runtime.specs import layout_for
from tests.runtime.transitions import LINE, SQUARE, layout, same, value_of
from tests.world import World, torch_mesh

CUBE = Mesh("cube", (Axis("a", 2), Axis("b", 2), Axis("c", 2)))
WIDE = Mesh("wide", (Axis("a", 2), Axis("b", 3)))


def keeps(source: Layout, target: Layout) -> bool:
    """Does a plan, on all ranks simulated, keep the tensor?"""
    value = value_of(source.shape)
    after = simulate.run_plan(plan_transition(source, target), simulate.shard(value, source))
    return same(simulate.assemble(after, target), value)


@pytest.mark.parametrize("target", [{}, {0: "b"}])
def test_case_1_uneven_rows_over_three_axes(target: dict[int, str]) -> None:
    assert keeps(layout(CUBE, (5, 7), {0: "abc"}), layout(CUBE, (5, 7), target))


def uneven_linears() -> bool:
    mesh = torch_mesh((4,), ("tp",))
    draw = torch.Generator().manual_seed(0)
    first, second, x = (torch.randint(-3, 4, s, generator=draw).float() for s in ((5, 4), (4, 5), (2, 4)))
    rows = sl.distribute(first, "[f/~tp d]", mesh).to_local()
    columns = sl.distribute(second, "[d f/~tp]", mesh).to_local()
    part = (x @ rows.T) @ columns.T
    return torch.equal(sl.reshard(part, "[b d]", mesh, source="[b d]{+tp}"), (x @ first.T) @ second.T)


def test_case_3_a_width_that_does_not_divide(world: World) -> None:
    assert world.run(uneven_linears) == [True] * 4


@pytest.mark.parametrize("n", [1, 2, 3, 5, 6, 7])
@pytest.mark.parametrize("mesh", [SQUARE, WIDE], ids=["2x2", "2x3"])
def test_case_4_the_inner_axis_first_goes_there_and_back(mesh: Mesh, n: int) -> None:
    inner_first, plain = layout(mesh, (n,), {0: "ba"}), layout(mesh, (n,), {0: "ab"})
    assert keeps(plain, inner_first)
    assert keeps(inner_first, plain)
    assert keeps(inner_first, layout(mesh, (n,)))


def inner_first(shape: tuple[int, int]) -> list[bool]:
    mesh = torch_mesh((2, 2), ("dp", "tp"))
    weight = torch.arange(float(shape[0] * shape[1])).view(shape)
    held = sl.distribute(weight, "[v/~tp/~dp d]", mesh)
    back = sl.reshard(held, "[v d/~tp]")
    return [torch.equal(held.full_tensor(), weight), torch.equal(back.full_tensor(), weight)]


@pytest.mark.parametrize("shape", [(4, 1), (1, 17)])
def test_cases_5_and_6_rows_by_tp_and_then_by_fsdp(world: World, shape: tuple[int, int]) -> None:
    assert world.run(inner_first, shape) == [[True, True]] * 4


def test_case_7_seven_rows_over_three_ranks() -> None:
    seven = layout(Mesh("m", (Axis("a", 3),)), (7,), {0: "a"})
    assert [seven.runs(r)[0] for r in range(3)] == [((0, 3),), ((3, 6),), ((6, 7),)]


def rows_to_columns() -> list[Any]:
    mesh = torch_mesh((4,), ("tp",))
    x = distribute_tensor(torch.arange(64.0).view(8, 8), mesh, [Shard(0)])
    sl.reshard(x, "[n d/tp]")
    with Recorder() as recorder:
        y = sl.reshard(x, "[n d/tp]")
    return [torch.equal(y.full_tensor(), x.full_tensor()), recorder.summary()]


def test_case_11_rows_to_columns_on_gloo_is_an_all_to_all(world: World) -> None:
    sent = [{"kind": "all_to_all", "axes": ["tp"], "count": 1, "bytes": 8 * 8 * 4 // 4 * 3 // 4}]
    assert world.run(rows_to_columns) == [[True, sent]] * 4


def there_and_back() -> bool:
    three = Mesh("m", (Axis("a", 3),))
    if dist.get_rank() == 3:
        return True
    value = torch.randn(33, generator=torch.Generator().manual_seed(1))
    whole, owed = layout(three, (33,)), layout(three, (33,), a="sum")
    parts = distributed.run_plan(plan_transition(whole, owed), value, team=Team())
    return same(distributed.run_plan(plan_transition(owed, whole), parts, team=Team()), value)


def test_case_28_whole_to_pending_and_back_is_exact(world: World) -> None:
    assert world.run(there_and_back) == [True] * 4


def leaves_the_global_view() -> tuple[str, list[float], list[float]]:
    mesh = torch_mesh((2, 2), ("a", "b"))
    x = sl.ones("[3]", mesh, requires_grad=True)
    try:
        sl.local(x)
        code = "none"
    except sl.ShardlangError as error:
        code = error.codes[0]
    (sl.local(x, grad="[3]{+a}") * (dist.get_rank() // 2 + 1)).sum().backward()
    first = x.grad.full_tensor().tolist()
    x.grad = None
    (sl.local(x, grad="[3]") * 5).sum().backward()
    return code, first, x.grad.full_tensor().tolist()


def test_cases_29_and_30_a_whole_value_says_how_its_gradient_comes_back(world: World) -> None:
    assert world.run(leaves_the_global_view) == [("SL0711", [3.0] * 3, [5.0] * 3)] * 4


def test_a_plan_for_four_ranks_is_an_all_to_all_too() -> None:
    plan = plan_transition(layout(LINE, (8, 8), {0: "r"}), layout(LINE, (8, 8), {1: "r"}))
    assert [s.kind for s in plan.steps] == ["all_to_all"]


def fsdp_over_tensor_parallel(rows: int, due: str) -> list[bool]:
    from torch.distributed.fsdp import fully_shard

    mesh = torch_mesh((2, 2), ("dp", "tp"))
    model = torch.nn.Linear(4, rows, bias=False)
    weight = torch.arange(float(rows * 4)).view(rows, 4)
    model.weight = torch.nn.Parameter(distribute_tensor(weight, mesh["tp"], [Shard(0)]))
    fully_shard(model, mesh=mesh["dp"])
    stored = model.weight
    whole = sl.reshard(stored, "[n d]")
    columns = sl.reshard(stored, "[n d/tp/dp]")
    return [
        sl.layout_of(stored).equivalent(layout_for(due, (rows, 4), mesh_of(mesh))),
        torch.equal(whole.to_local(), weight),
        torch.equal(columns.full_tensor(), weight),
    ]


@pytest.mark.parametrize("rows", [8, 7])
def test_parameters_that_fsdp_cut_within_tensor_parallel_blocks(world: World, rows: int) -> None:
    due = "[n/tp/dp d]" if rows == 8 else "[n/~tp/~dp d]"
    assert world.run(fsdp_over_tensor_parallel, rows, due) == [[True, True, True]] * 4
