"""Cases from the field: tensors that move. Blocks nest in ``torch.chunk``'s way, the left axis outermost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard

import shardlang as sl
from shardlang.mesh import Axis, Mesh
from shardlang.runtime.chunks import chunks_of
from tests.trace.oracle import check, layout, reals
from tests.world import World, torch_mesh


@pytest.fixture(scope="module")
def eight() -> Iterator[World]:
    with World(8) as ranks:
        yield ranks


def chunked(value: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
    """This rank's rows: dim 0 chunked over every axis, left to right."""
    for coordinate, size in zip(mesh.get_coordinate() or (), mesh.shape, strict=False):
        chunks = value.chunk(size)
        value = chunks[coordinate] if coordinate < len(chunks) else value[:0]
    return value.contiguous()


def beside_a_flattened_mesh(shape: tuple[int, int], targets: list[str]) -> list[bool]:
    mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("a", "b", "c"))
    mesh._flatten("abc")
    value = torch.arange(shape[0] * shape[1]).view(shape)
    x = DTensor.from_local(chunked(value, mesh), mesh, [Shard(0)] * 3, shape=value.shape, stride=value.stride())
    answers = []
    for target in targets:
        y = sl.reshard(x, target)
        answers.append(torch.equal(y.to_local(), sl.distribute(value, target, mesh).to_local()))
        answers.append(torch.equal(sl.reshard(y, "[n d]").to_local(), value))
    return answers


def test_case_01_no_row_is_lost_beside_a_flattened_mesh_of_three_axes(eight: World) -> None:
    found = eight.run(beside_a_flattened_mesh, (5, 7), ["[n d]", "[n/~b d]", "[n/~a d/~c]"], timeout=180)
    assert found == [[True] * 6] * 8


def rows_unsaid(rows: list[int]) -> Any:
    """Blocks of which no rank was told the whole: as plain blocks, and wrapped by torch, which guesses shapes."""
    mesh = torch_mesh((4,), ("a",))
    start = sum(rows[: dist.get_rank()])
    block = torch.arange(50.0).view(5, 10)[start : start + rows[dist.get_rank()]]
    whole = sl.reshard(block, "[n d]", mesh, source="[n/~a d]")
    guessed = DTensor.from_local(block, mesh, [Shard(0)])
    try:
        sl.reshard(guessed, "[n d]")
    except sl.ShardlangError as error:
        return tuple(whole.shape), float(whole.sum()), error.codes[0], error.diagnostics[0].notes
    return tuple(whole.shape), float(whole.sum()), tuple(guessed.shape), ()


def test_case_02_uneven_blocks_are_one_shape_or_one_error_on_every_rank(world: World) -> None:
    answers = world.run(rows_unsaid, [2, 2, 1, 0])
    assert answers[0][:3] == ((5, 10), 1225.0, "SL0701")
    assert "8 10" in answers[0][3][0]
    assert answers == [answers[0]] * 4


def test_case_03_two_linears_split_over_a_size_that_does_not_divide() -> None:
    def both(x: Any, w1: Any, b1: Any, w2: Any) -> Any:
        return nn.functional.linear(nn.functional.linear(x, w1, b1), w2)

    tensors = [reals(3, 4), reals(5, 4), reals(5), reals(4, 5)]
    made = check(both, tensors, ["[n d]", "[f/~tp d]", "[f/~tp]", "[d f/~tp]"], "tp:2", results=["[n d]"])
    assert [s.kind for m in made.moves if m.forward for s in m.forward.steps] == ["all_reduce"]


TWO_LINEARS = """
mesh m = dp:2 * tp:2
model net on m {
  param 0.weight : [f/~tp d]
  param 0.bias   : [f/~tp]
  param 1.weight : [e f/~tp]
  param 1.bias   : whole
  call root (input: [n/dp d]) -> [n/dp e]
  fsdp root over dp
}
"""


def two_linears() -> list[bool]:
    program = sl.loads(TWO_LINEARS)
    torch.manual_seed(1)
    plain = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 4)).double()
    torch.manual_seed(1)
    net = program.apply(nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 4)).double(), program.mesh("m").device_mesh("cpu"))
    x = torch.arange(24, dtype=torch.float64).view(6, 4) / 7
    ours = net(x.chunk(2)[dist.get_rank() // 2])
    total = ours.square().sum()
    total.backward()
    dense = plain(x)
    dense.square().sum().backward()
    grads = [
        torch.allclose(p.grad.full_tensor(), q.grad) for p, q in zip(net.parameters(), plain.parameters(), strict=True)
    ]
    return [torch.allclose(ours.full_tensor(), dense), *grads]


def test_case_03_a_model_of_these_linears_trains_as_on_one_device(world: World) -> None:
    assert world.run(two_linears) == [[True] * 5] * 4


def order_kept() -> list[int]:
    mesh = torch_mesh((2, 2), ("dp", "tp"))
    wrong = []
    for n in (1, 2, 3, 5, 6, 7):
        value = torch.arange(1, 1 + 2 * n).view(n, 2)
        x = sl.reshard(sl.distribute(value, "[n/~dp d]", mesh), "[n/~tp/~dp d]")
        block, back = x.to_local(), sl.reshard(x, "[n d]")
        first = value.chunk(2)
        half = first[dist.get_rank() % 2] if dist.get_rank() % 2 < len(first) else value[:0]
        parts = half.chunk(2)
        due = parts[dist.get_rank() // 2] if dist.get_rank() // 2 < len(parts) else value[:0]
        if not torch.equal(block, due) or not torch.equal(back.to_local(), value):
            wrong.append(n)
    return wrong


def test_case_04_the_order_of_axes_is_kept_on_real_ranks(world: World) -> None:
    assert world.run(order_kept) == [[]] * 4


EMBEDDING = """
mesh m = dp:2 * tp:2
model net on m {
  param weight : [v/~tp d]
  call root (input: [n/dp]) -> [n/dp d]
  fsdp root over dp
}
"""


def embedding(rows: int, columns: int, folder: str) -> tuple[Any, ...]:
    program = sl.loads(EMBEDDING)
    mesh = program.mesh("m").device_mesh("cpu")
    value = torch.arange(rows * columns, dtype=torch.float32).view(rows, columns)

    def placed(weight: torch.Tensor) -> nn.Module:
        net = nn.Embedding(rows, columns)
        net.weight.data.copy_(weight)
        return program.apply(net, mesh)

    net = placed(value)
    whole = sl.reshard(net.weight.detach(), "[v d]").to_local()
    sl.save(program.state_dict(net), folder)
    again = placed(torch.full_like(value, -1))
    sl.load_state(program.state_dict(again), folder)
    block = net.weight.to_local()
    loaded = sl.reshard(again.weight.detach(), "[v d]").to_local()
    one = nn.Embedding(rows, columns)
    sl.load_state(sl.state_dict(one), folder)
    seen = net(torch.tensor([0, rows - 1]).chunk(2)[dist.get_rank() // 2])
    same = all(torch.equal(w, value) for w in (whole, loaded, one.weight.detach()))
    return same, tuple(block.shape), torch.equal(seen.full_tensor(), value[[0, rows - 1]])


def test_case_05_rows_split_by_tp_and_then_by_fsdp_are_the_whole(world: World, tmp_path: Path) -> None:
    assert world.run(embedding, 4, 1, str(tmp_path)) == [(True, (1, 1), True)] * 4


def test_case_06_one_row_leaves_empty_blocks_that_load(world: World, tmp_path: Path) -> None:
    found = world.run(embedding, 1, 17, str(tmp_path))
    assert [(same, seen) for same, _, seen in found] == [(True, True)] * 4
    assert any(0 in shape for _, shape, _ in found)


def test_case_07_seven_rows_over_three_ranks_begin_at_0_3_and_6() -> None:
    split = layout(Mesh("m", (Axis("a", 3),)), "[n/~a d]", (7, 2))
    boxes = [chunk.box for rank in split.mesh.ranks for chunk in chunks_of(split, rank)]
    assert [rows for rows, _ in boxes] == [(0, 3), (3, 6), (6, 7)]
    assert [split.local_shape(rank) for rank in split.mesh.ranks] == [(3, 2), (3, 2), (1, 2)]


def test_case_08_one_axis_does_not_split_two_dims() -> None:
    with pytest.raises(sl.ShardlangError) as caught:
        sl.plan("[8 8] => [8/a 8/a]", mesh="a:4")
    (fault,) = caught.value.diagnostics
    assert fault.code == "SL0203"
    assert "`a`" in fault.message
    assert [label.span.text for label in fault.labels] == ["a"]


def other_shape_of_the_mesh() -> list[bool]:
    line = DeviceMesh("cpu", torch.arange(2), mesh_dim_names=("a",))
    flat = DeviceMesh("cpu", torch.arange(2).view(2, 1), mesh_dim_names=("a", "b"))
    last = DeviceMesh("cpu", torch.tensor([2, 3]), mesh_dim_names=("a",))
    every = torch_mesh((4,), ("a",))
    value = torch.arange(24, dtype=torch.int32).view(8, 3)
    rank = dist.get_rank()
    answers = []
    for here, there, members in ((line, flat, (0, 1)), (flat, line, (0, 1)), (every, last, (2, 3))):
        inside = rank in here.mesh.flatten().tolist()
        x = sl.distribute(value, "[n/a d]", here) if inside else sl.empty("i32[8/a 3]", here)
        moved = sl.reshard(x, "[n/a d]", there)
        if rank in members:
            answers.append(torch.equal(moved.to_local(), value.chunk(2)[members.index(rank)]))
            answers.append(torch.equal(moved.full_tensor(), value))
    return answers


def test_case_09_a_mesh_of_another_shape_or_of_other_ranks_gets_the_bits(world: World) -> None:
    assert world.run(other_shape_of_the_mesh) == [[True] * 4] * 2 + [[True] * 2] * 2


def scalars(attempt: str) -> tuple[str, str]:
    mesh = torch_mesh((4,), ("a",))
    x = torch.tensor(3.0)

    @sl.sharded("(x: [n/a]) -> []", mesh)
    def whole(x: torch.Tensor) -> torch.Tensor:
        return x.sum()

    calls = {
        "distribute": lambda: sl.distribute(x, "[n/a]", mesh),
        "reshard": lambda: sl.reshard(sl.distribute(x, "[]", mesh), "[n/a]"),
        "function": lambda: whole(x),
    }
    try:
        calls[attempt]()
    except sl.ShardlangError as error:
        return error.codes[0], error.diagnostics[0].message
    return "", ""


@pytest.mark.parametrize(
    ("attempt", "name"), [("distribute", "the tensor"), ("reshard", "the tensor"), ("function", "`x`")]
)
def test_case_12_a_scalar_asked_to_split_names_the_tensor_and_the_axis(world: World, attempt: str, name: str) -> None:
    found = world.run(scalars, attempt)
    assert found == [("SL0304", f"{name} is a scalar, and has no dim to split over `a`")] * 4
