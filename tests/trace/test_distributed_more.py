"""Functions on real processes: local blocks, dropout, layouts that DTensor has no words for, other meshes."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

import shardlang as sl
from shardlang.diagnostics import ShardlangError
from shardlang.lower.placements import device_mesh
from shardlang.mesh import Axis, Mesh
from tests.world import World

MESH = Mesh("pod", (Axis("dp", 2), Axis("tp", 2)))


def blocks_in_and_out() -> list[bool]:
    mesh = device_mesh(MESH)

    @sl.local_map("(x: [b/dp d], w: [d f/tp] grad {+dp}) -> [b/dp f/tp]", mesh)
    def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        assert x.shape == (2, 6)
        assert w.shape == (6, 4)
        return x @ w

    torch.manual_seed(1)
    x, w = torch.randn(4, 6).double(), torch.randn(6, 8).double()
    wanted = [t.clone().requires_grad_() for t in (x, w)]
    ours = [
        distribute_tensor(x, mesh, [Replicate(), Replicate()]).requires_grad_(),
        distribute_tensor(w, mesh, [Replicate(), Shard(1)]).requires_grad_(),
    ]
    y = product(*ours)
    assert y.placements == (Shard(0), Shard(1))
    z = wanted[0] @ wanted[1]
    y.sum().full_tensor().backward()
    z.sum().backward()
    weight = ours[1].grad
    assert isinstance(weight, DTensor)
    return [bool(torch.allclose(y.full_tensor(), z)), bool(torch.allclose(weight.full_tensor(), wanted[1].grad))]


def test_local_map_takes_and_gives_blocks(world: World) -> None:
    assert world.run(blocks_in_and_out) == [[True, True]] * 4


def dropped(spec: str) -> list[Any]:
    mesh = device_mesh(MESH)
    sl.manual_seed(5)

    @sl.sharded(f"(x: {spec}) -> {spec}", mesh)
    def drop(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(x, 0.5)

    x = distribute_tensor(torch.ones(4, 6), mesh, [Replicate(), Replicate()])
    first, second = drop(x).full_tensor(), drop(x).full_tensor()
    return [first.tolist(), bool((first != second).any())]


def test_dropout_is_the_same_on_every_rank_and_split_and_anew_in_each_call(world: World) -> None:
    rows = world.run(dropped, "[b/dp d]")
    columns = world.run(dropped, "[b d/tp]")
    assert all(r == rows[0] for r in rows)
    assert columns[0] == rows[0]
    assert rows[0][1]


def strided() -> list[Any]:
    mesh = device_mesh(MESH)

    @sl.sharded("(x: [b/dp d], w: [(3 4/tp 2) d]) -> [b/dp (3 4/tp 2)]", mesh)
    def fused(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, w)

    torch.manual_seed(2)
    x, w = torch.randn(4, 6).double(), torch.randn(24, 6).double()
    y = fused(
        distribute_tensor(x, mesh, [Replicate(), Replicate()]), distribute_tensor(w, mesh, [Replicate(), Replicate()])
    )
    return [type(y).__name__, bool(torch.allclose(y.full_tensor(), x @ w.T))]


def test_a_result_that_no_placements_say_is_a_handle(world: World) -> None:
    assert world.run(strided) == [["ShardTensor", True]] * 4


def pending_argument() -> list[bool]:
    mesh = device_mesh(MESH)

    @sl.sharded("(x: [b d]{+tp}) -> [b/tp d]", mesh)
    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * 2 + 1

    part = torch.full((4, 6), float(dist.get_rank() % 2 + 1)).double()
    x = DTensor.from_local(part, mesh, [Replicate(), Partial()], run_check=False).requires_grad_()
    y = scaled(x)
    y.to_local().sum().backward()
    return [bool((y.full_tensor() == 7).all()), bool((x.grad.to_local() == 2).all())]


def test_a_pending_argument_passes_linear_operators(world: World) -> None:
    assert world.run(pending_argument) == [[True, True]] * 4


def on_another_mesh() -> str:
    @sl.sharded("(x: [b/tp d]) -> [b/tp d]", device_mesh(MESH))
    def same(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    x = distribute_tensor(torch.ones(4, 6), init_device_mesh("cpu", (4,), mesh_dim_names=("tp",)), [Shard(0)])
    try:
        same(x)
    except ShardlangError as error:
        return error.codes[0]
    return "nothing"


def test_an_argument_on_another_mesh_is_an_error(world: World) -> None:
    assert world.run(on_another_mesh) == ["SL0528"] * 4
