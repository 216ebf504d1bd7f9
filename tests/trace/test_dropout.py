"""Dropout: one mask by seed and global index, and the same one when a checkpointed part is computed again."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor
from torch.utils.checkpoint import checkpoint

import shardlang as sl
from shardlang.lower.placements import device_mesh
from shardlang.mesh import Axis, Mesh
from shardlang.runtime.global_view import global_view
from tests.world import World

MESH = Mesh("pod", (Axis("dp", 2), Axis("tp", 2)))


def recomputed(reentrant: bool) -> list[bool]:
    mesh = device_mesh(MESH)

    @sl.sharded("(x: [b/dp d/tp]) -> [b/dp d/tp]", mesh)
    def drop(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x * x, 0.5)

    x = distribute_tensor(torch.arange(1.0, 25.0).view(4, 6), mesh, [Replicate(), Replicate()])
    x = x.detach().requires_grad_()
    torch.manual_seed(torch.distributed.get_rank())  # torch's generators may differ between ranks
    first = checkpoint(drop, x, use_reentrant=reentrant)
    second = checkpoint(drop, x, use_reentrant=reentrant)
    (first.sum() + second.sum()).full_tensor().backward()
    # d/dx of a dropped x * x is the mask times 2 x, and the mask is what came, over x * x.
    due = (first.full_tensor() + second.full_tensor()) * 2 / x.full_tensor()
    differ = bool((first.full_tensor() != second.full_tensor()).any())
    return [bool(torch.allclose(x.grad.full_tensor(), due.detach())), differ]


def test_a_checkpointed_function_sees_its_mask_again(world: World) -> None:
    assert world.run(recomputed, False) == [[True, True]] * 4


def test_a_reentrant_checkpoint_sees_its_mask_again(world: World) -> None:
    assert world.run(recomputed, True) == [[True, True]] * 4


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(6, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(self.up(x).square(), 0.5)


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x) @ torch.ones(8, 6)
        return x


TEXT = """
mesh pod = dp:2 * tp:2
model two on pod {
  param layers.*.up.weight : [f/tp d]
  param layers.*.up.bias : [f/tp]
  call root (x: [b/dp d]) -> [b/dp d]
  call layers.* (x: [b/dp d]) -> [b/dp f/tp]
  CHECKPOINT
}
"""


def gradients(text: str) -> dict[str, Any]:
    """The gradients of a model of dropped layers, from the same seeds."""
    program = sl.loads(text)
    torch.manual_seed(0)
    model = Two()
    placed = program.apply(model, program.mesh("pod").device_mesh("cpu"))
    sl.manual_seed(3)
    block = torch.arange(12.0).view(2, 6) + torch.distributed.get_rank() // 2
    with global_view():
        placed(block).sum().backward()
    grads = {}
    for name, parameter in placed.named_parameters():
        assert isinstance(parameter.grad, DTensor)
        grads[name] = parameter.grad.full_tensor().tolist()
    return grads


def both_ways() -> bool:
    kept = gradients(TEXT.replace("CHECKPOINT", ""))
    again = gradients(TEXT.replace("CHECKPOINT", "checkpoint layers.*"))
    return kept == again and any(any(row) for row in kept["layers.0.up.weight"])


def test_a_checkpointed_layer_of_a_model_has_the_gradients_of_one_that_is_not(world: World) -> None:
    assert world.run(both_ways) == [True] * 4
