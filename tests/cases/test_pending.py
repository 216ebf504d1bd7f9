"""Cases from the field: pending values, gradients and random numbers, through the public faces."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

import shardlang as sl
from shardlang.mesh import Axis, Mesh
from tests.world import World, torch_mesh

PAIR = Mesh("pair", (Axis("a", 2), Axis("b", 2)))


def sums_and_constants() -> list[float]:
    mesh = torch_mesh((2, 2), ("a", "b"))

    @sl.sharded("(x: [n/a]) -> ([], [])", mesh)
    def tensor_first(x: Any) -> Any:
        s = x.sum()
        return s + torch.tensor(10), s + 10

    @sl.sharded("(x: [n/a]) -> ([], [])", mesh)
    def number_first(x: Any) -> Any:
        s = x.sum()
        return s + 10, s + torch.tensor(10)

    x = sl.distribute(torch.arange(10), "[n/a]", mesh)
    return [float(r.full_tensor()) for f in (tensor_first, number_first, tensor_first) for r in f(x)]


def test_case_25_a_constant_counts_once_in_either_order(world: World) -> None:
    assert world.run(sums_and_constants) == [[55.0] * 6] * 4


def compared(auto: bool) -> Any:
    mesh = torch_mesh((2, 2), ("a", "b"))

    @sl.sharded("(x: [n]{+a}) -> [n]", mesh, auto=auto)
    def equal(x: Any) -> Any:
        return -5 * x == 2 * x

    parts = torch.tensor([1.0, -1.0, 3.0]) if dist.get_rank() < 2 else torch.tensor([0.0, 1.0, -3.0])
    try:
        return equal(sl.from_local(parts, "[n]{+a}", mesh)).full_tensor().tolist()
    except sl.ShardlangError as error:
        return error.codes[0]


def test_case_26_pending_values_are_compared_summed_or_not_at_all(world: World) -> None:
    """The sums are 1, 0, 0; part by part, no rank would find the last two equal."""
    assert world.run(compared, True) == [[False, True, True]] * 4
    assert world.run(compared, False) == ["SL0504"] * 4


def mean_of_split_rows() -> list[float]:
    mesh = torch_mesh((2, 2), ("a", "b"))

    @sl.sharded("(x: [n/~a d]) -> []", mesh)
    def mean(x: Any) -> Any:
        return x.mean()

    x = torch.arange(12.0).view(3, 4)
    return [float(mean(x)), float(mean(sl.distribute(x, "[n/~a d]", mesh)).full_tensor())]


def test_case_27_the_mean_of_uneven_rows_is_that_of_the_tensor(world: World) -> None:
    assert world.run(mean_of_split_rows) == [[5.5, 5.5]] * 4


def weighed_outside() -> tuple[Any, ...]:
    """Split rows made whole; then each rank weighs them by its own number."""
    mesh = torch_mesh((2, 2), ("a", "b"))
    mine = 1 + dist.get_rank() // 2
    x = sl.distribute(torch.ones(4), "[n/a]", mesh).detach().requires_grad_()
    try:
        sl.local(sl.reshard(x, "[n]"))
        code = "none"
    except sl.ShardlangError as error:
        code = error.codes[0]
    (sl.local(sl.reshard(x, "[n]"), grad="[n]{+a}") * mine).sum().backward()
    block = torch.ones(2).requires_grad_()
    (sl.reshard(block, "[n] grad {+a}", mesh, source="[n/a]") * mine).sum().backward()
    assert block.grad is not None
    return code, x.grad.to_local().tolist(), block.grad.tolist()


def test_case_30_a_gathered_value_weighed_by_rank_is_refused_or_has_every_ranks_gradient(world: World) -> None:
    assert world.run(weighed_outside) == [("SL0711", [3.0, 3.0], [3.0, 3.0])] * 4


DRAWS = ["random_", "normal_", "uniform_", "bernoulli_", "exponential_"]


def drawn_in_place(axis: int, name: str) -> Any:
    mesh = Mesh("m", (Axis("a", axis),))

    @sl.sharded("(x: [n]{+a}) -> [n]{+a}", mesh)
    def draw(x: Any) -> Any:
        return getattr(x + x, name)()

    return draw.program_for(torch.empty(6))


@pytest.mark.parametrize("name", DRAWS)
def test_case_31_drawing_into_a_pending_value_works_on_one_rank_alone(name: str) -> None:
    made = drawn_in_place(1, name)
    assert made.draws or any(name in str(node.target) for node in made.graph.nodes)
    with pytest.raises(sl.ShardlangError) as caught:
        drawn_in_place(2, name)
    (fault,) = caught.value.diagnostics
    assert fault.code == "SL0519"
    assert fault.message.startswith(f"`aten.{name}")
    assert fault.span is not None
    assert fault.span.text == "getattr(x + x, name)()"


def test_case_31_drawing_whole_numbers_of_a_range_is_refused_in_the_users_line() -> None:
    @sl.sharded("(x: [n]{+a}) -> [n]{+a}", PAIR)
    def draw(x: Any) -> Any:
        return (x + x).random_(0, 10)

    with pytest.raises(sl.ShardlangError) as caught:
        draw.program_for(torch.empty(6))
    (fault,) = caught.value.diagnostics
    assert fault.code == "SL0519"
    assert fault.span is not None
    assert fault.span.text == "(x + x).random_(0, 10)"


def one_rank_owes_nothing() -> list[bool]:
    mesh = torch_mesh((1, 4), ("a", "b"))
    x = sl.ones("[6]{+a}", mesh)
    y = sl.reshard(sl.distribute(torch.ones(6), "[n]", mesh), "[n]{+a}")
    return [
        torch.equal(v.normal_().full_tensor(), v.to_local()) and not bool((v.to_local() == 1).any()) for v in (x, y)
    ]


def test_case_31_a_sum_over_one_rank_takes_numbers_drawn_in_place(world: World) -> None:
    assert world.run(one_rank_owes_nothing) == [[True, True]] * 4
