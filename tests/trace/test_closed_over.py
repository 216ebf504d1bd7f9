"""Parameters that a function closes over are arguments that no signature names."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import shardlang as sl
from shardlang.diagnostics import ShardlangError
from shardlang.lower.placements import device_mesh
from shardlang.mesh import Axis, Mesh
from tests.world import World

MESH = Mesh("pod", (Axis("dp", 2), Axis("tp", 2)))
GLOBAL = nn.Parameter(torch.arange(6.0).double())


def close(a: Any, b: Any) -> bool:
    return bool(torch.allclose(a, b, rtol=1e-9, atol=1e-9))


def closed() -> list[bool]:
    mesh = device_mesh(MESH)
    torch.manual_seed(1)
    whole, layer = torch.randn(8, 6).double(), nn.Linear(6, 4).double()
    split = nn.Parameter(distribute_tensor(torch.randn(6, 6).double(), mesh, [Replicate(), Shard(1)]))
    plain_layer, plain = nn.Linear(6, 4).double(), split.full_tensor().detach().requires_grad_()
    plain_layer.load_state_dict(layer.state_dict())
    GLOBAL.grad = None

    @sl.sharded("(x: [b/dp d]) -> [b/dp f]", mesh)
    def net(x: torch.Tensor) -> torch.Tensor:
        return layer(sl.reshard(x @ split, "[b/dp d]") * GLOBAL)

    x = distribute_tensor(whole, mesh, [Shard(0), Replicate()])
    y = net(x)
    weights = torch.arange(y.numel(), dtype=torch.float64).view(8, 4)
    (y * distribute_tensor(weights, mesh, y.placements)).sum().full_tensor().backward()
    other = GLOBAL.detach().clone().requires_grad_()
    due = plain_layer((whole @ plain) * other)
    (due * weights).sum().backward()
    assert isinstance(split.grad, DTensor)
    same = [
        close(y.full_tensor(), due),
        close(split.grad.full_tensor(), plain.grad),
        split.grad.placements == split.placements,
        close(layer.weight.grad, plain_layer.weight.grad),
        close(layer.bias.grad, plain_layer.bias.grad),
        close(GLOBAL.grad, other.grad),
    ]
    with torch.no_grad():
        for model in (layer, plain_layer):
            model.bias += 5
    same.append(close(net(x).full_tensor(), due.detach() + 5))
    return same


def test_parameters_in_a_closure_or_global_get_their_gradients_and_count_anew(world: World) -> None:
    assert world.run(closed) == [[True] * 7] * 4


def test_a_plain_tensor_in_a_closure_is_refused() -> None:
    table = torch.ones(6)

    @sl.sharded("(x: [b d]) -> [b d]", MESH)
    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * table

    with pytest.raises(ShardlangError) as caught:
        scaled.program_for(torch.empty(4, 6))
    assert caught.value.codes == ("SL0511",)


def test_a_closed_over_parameter_on_another_mesh_is_an_error(world: World) -> None:
    assert world.run(on_another_mesh) == ["SL0528"] * 4


def on_another_mesh() -> str:
    from tests.world import torch_mesh

    weight = nn.Parameter(distribute_tensor(torch.ones(6, 6), torch_mesh((4,), ("tp",)), [Replicate()]))

    @sl.sharded("(x: [b/dp d]) -> [b/dp d]", device_mesh(MESH))
    def net(x: torch.Tensor) -> torch.Tensor:
        return x @ weight

    try:
        net(torch.ones(4, 6))
    except ShardlangError as error:
        return error.codes[0]
    return "nothing"
