"""Norms and clipping of gradients that are spread over a mesh: one number, from each element once."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial

from shardlang.lower.placements import ranks_of
from shardlang.runtime.together import summed_over


@torch.no_grad()
def grad_norm(parameters: Iterable[Tensor]) -> Tensor:
    """The 2-norm of all gradients together, as one plain number that is equal on every rank.

    Every element counts once, however many ranks hold it: of the ranks that hold the same block, the one at
    coordinate 0 counts it. One all-reduce of one float64 over the ranks of each mesh that the
    gradients are on, one for all meshes of the same ranks.
    """
    plain: list[Tensor] = []
    spread: dict[DeviceMesh, list[Tensor]] = {}
    device: torch.device | None = None
    for parameter in parameters:
        grad = parameter.grad
        if grad is None:
            continue
        if not isinstance(grad, DTensor):
            plain.append(grad)
            device = device or grad.device
            continue
        if any(isinstance(p, Partial) for p in grad.placements):
            grad = grad.redistribute(placements=parameter.placements)  # type: ignore[attr-defined]  # a DTensor's own
        block = grad.to_local()
        device = device or block.device
        mine = spread.setdefault(grad.device_mesh, [])
        if _counts(grad):
            mine.append(block)
    total = _squares(plain, device)
    # FSDP over several axes stores on a mesh of its own, in which they are one: the same ranks, and one sum.
    sums: dict[frozenset[int], tuple[DeviceMesh, Tensor]] = {}
    for mesh, blocks in spread.items():
        ranks, squares = frozenset(ranks_of(mesh)), _squares(blocks, device)
        sums[ranks] = (mesh, squares + sums[ranks][1] if ranks in sums else squares)
    for mesh, squares in sums.values():
        total = total + summed_over(mesh, squares, "the norm of all gradients")
    return total.sqrt().float()


@torch.no_grad()
def clip_grad_norm_(parameters: Iterable[Tensor], max_norm: float) -> Tensor:
    """Scales all gradients so that their norm is at most ``max_norm``; returns the norm that they had.

    The norm is that of the whole gradient of the whole model, on any mesh what it is on one device.
    """
    parameters = [p for p in parameters if p.grad is not None]
    norm = grad_norm(parameters)
    factor = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
    for parameter in parameters:
        assert parameter.grad is not None
        block = parameter.grad.to_local() if isinstance(parameter.grad, DTensor) else parameter.grad
        block.mul_(factor.to(block.device, block.dtype))
    return norm


def _counts(grad: DTensor) -> bool:
    """Is this rank the one that counts its block: at coordinate 0 of every mesh axis that the value is whole on?"""
    coordinate = grad.device_mesh.get_coordinate()
    assert coordinate is not None
    return all(at == 0 for at, p in zip(coordinate, grad.placements, strict=True) if p.is_replicate())


def _squares(blocks: list[Tensor], device: torch.device | None) -> Tensor:
    if not blocks:
        return torch.zeros((), dtype=torch.float64, device=device)
    # On a CPU a long float32 sum drifts with the length of the block; on an accelerator it is a tree.
    dtype = torch.float64 if blocks[0].device.type == "cpu" else torch.float32
    norms = torch.stack([torch.linalg.vector_norm(b, dtype=dtype) for b in blocks])
    return norms.double().square().sum()
