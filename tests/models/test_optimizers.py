"""Torch's optimizers on placed parameters, and one that needs whole matrices: the weights of one device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import shardlang as sl
from tests.models import nets
from tests.models.test_law import llama
from tests.world import World

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adamw, fused": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
    "adamw, foreach": lambda p: torch.optim.AdamW(p, lr=1e-2, foreach=True),
    "sgd, momentum": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, nesterov=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-3),
}


def orthogonal(matrix: Tensor) -> Tensor:
    """The nearest matrix with orthonormal rows or columns, by Newton's and Schulz's iteration."""
    x = matrix / (matrix.norm() + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = 1.5 * x - 0.5 * gram @ x
    return x


class WholeMatrices:
    """A step along the orthogonalised gradient: every matrix is needed whole."""

    def __init__(self, parameters: Any) -> None:
        self.matrices = [p for p in parameters if p.dim() == 2]

    @torch.no_grad()
    def step(self) -> None:
        grads = [p.grad for p in self.matrices]
        if hasattr(self.matrices[0], "device_mesh"):
            whole = [g.full_tensor() for g in sl.reshard_many(grads, ["whole"] * len(grads))]
            for p, w in zip(self.matrices, whole, strict=True):
                layout_of_update = sl.distribute(orthogonal(w), "[_ _]", p.device_mesh)
                p.add_(layout_of_update.redistribute(placements=p.placements), alpha=-0.1)
        else:
            for p, g in zip(self.matrices, grads, strict=True):
                p.add_(orthogonal(g), alpha=-0.1)


def trained(model: nn.Module, name: str, place: Callable[[Any], Any]) -> nn.Module:
    parameters = list(model.parameters())
    optimizer = OPTIMIZERS[name](parameters) if name in OPTIMIZERS else WholeMatrices(parameters)
    for step in range(3):
        with sl.global_view():
            total, count = nets.next_token(model, place(nets.tokens(step)))
            (total / count).backward()
        optimizer.step()
        model.zero_grad()
    return model


def both(name: str) -> float:
    """The greatest difference of a weight."""
    program = sl.loads(llama())
    torch.manual_seed(0)
    plain = trained(nets.llama(), name, lambda b: b)
    torch.manual_seed(0)
    placed = program.apply(nets.llama(), program.mesh("m").device_mesh("cpu"))
    trained(placed, name, lambda b: sl.place(placed, b))
    right = dict(plain.named_parameters())
    return max(float((p.detach().full_tensor() - right[n].detach()).abs().max()) for n, p in placed.named_parameters())


@pytest.mark.parametrize("name", [*OPTIMIZERS, "whole matrices"])
def test_an_optimizer_gives_the_weights_of_one_device(world: World, name: str) -> None:
    assert max(world.run(both, name)) < 2e-4
