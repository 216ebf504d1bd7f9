"""An optimizer that needs whole matrices: momentum made orthogonal (Muon), on weights that lie in parts on a mesh.

State is placed like the parameters. In a step the directions of all matrices are brought together by one packed plan
(``sl.reshard_many``), each rank makes them orthogonal, and each keeps its own block of the result, for which nothing is
sent. On plain tensors it is the same optimizer, on one device.

Use it for the weights of a model's linear layers; embeddings, norms and the head are for AdamW:

    matrices = [p for n, p in model.named_parameters() if p.dim() == 2 and n.startswith("layers.")]
    optimizer = Muon(matrices, lr=0.02)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

import shardlang as sl


def orthogonal(matrix: Tensor, rounds: int = 6) -> Tensor:
    """The nearest matrix with orthonormal rows (or columns, if it is tall), by some rounds of Newton and Schulz."""
    x = matrix / (matrix.norm() + 1e-7)
    for _ in range(rounds):
        x = 1.5 * x - 0.5 * (x @ x.mT) @ x if x.shape[0] <= x.shape[1] else 1.5 * x - 0.5 * x @ (x.mT @ x)
    return x


class Muon(torch.optim.Optimizer):
    """Steps along orthogonalised momentum, by ``lr`` times the root of the greater side over the lesser.

    ``parameters`` have two dims. A DTensor's gradient must be one too, on the same mesh.
    """

    def __init__(self, parameters: Iterable[Tensor], lr: float = 0.02, momentum: float = 0.95) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # no closure is taken
        for group in self.param_groups:
            trained = [p for p in group["params"] if p.grad is not None]
            directions = [self._direction(p, group["momentum"]) for p in trained]
            updates = [orthogonal(d) for d in whole(directions)]
            for p, update in zip(trained, parts(updates, trained), strict=True):
                own = p.to_local() if isinstance(p, DTensor) else p
                own.add_(update, alpha=-group["lr"] * max(1.0, p.shape[0] / p.shape[1]) ** 0.5)

    def _direction(self, parameter: Tensor, momentum: float) -> Tensor:
        state = self.state[parameter]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(parameter)
        state["momentum"].mul_(momentum).add_(parameter.grad)
        return parameter.grad.add(state["momentum"], alpha=momentum)


def whole(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Each tensor whole, on every rank: of DTensors in a few collectives, however many they are."""
    if not any(isinstance(t, DTensor) for t in tensors):
        return list(tensors)
    return [t.to_local() for t in sl.reshard_many(tensors, "whole")]


def parts(tensors: Sequence[Tensor], like: Sequence[Tensor]) -> list[Tensor]:
    """Of whole tensors the block of each that this rank has of another; nothing is sent."""
    if not any(isinstance(t, DTensor) for t in like):
        return list(tensors)
    meshes = [t.device_mesh for t in like]
    here = [sl.distribute(t, "whole", mesh) for t, mesh in zip(tensors, meshes, strict=True)]
    return [t.to_local() for t in sl.reshard_many(here, [sl.layout_of(t) for t in like])]
