"""Cross entropy over classes that are split: torch's value and gradient, in every floating dtype."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import shardlang as sl
from tests.world import World, torch_mesh

CLASSES, ROWS = 10, 6


def of_split_classes(dtype: str, reduction: str) -> tuple[torch.Tensor, torch.Tensor]:
    mesh = torch_mesh((2, 2), ("dp", "tp"))
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(ROWS, CLASSES, generator=generator).to(getattr(torch, dtype))
    target = torch.tensor([0, 9, 4, -100, 5, 3])
    split = sl.distribute(logits, "[n/dp c/~tp]", mesh).requires_grad_()
    loss = sl.cross_entropy(split, sl.distribute(target, "[n/dp]", mesh), reduction=reduction)
    loss.sum().backward()
    assert split.grad is not None
    return loss.full_tensor().detach(), split.grad.full_tensor()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
@pytest.mark.parametrize("reduction", ["sum", "mean", "none"])
def test_value_and_gradient_are_those_of_one_device(world: World, dtype: str, reduction: str) -> None:
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(ROWS, CLASSES, generator=generator).to(getattr(torch, dtype)).requires_grad_()
    target = torch.tensor([0, 9, 4, -100, 5, 3])
    right = F.cross_entropy(logits.float() if logits.itemsize == 2 else logits, target, reduction=reduction)
    (gradient,) = torch.autograd.grad(right.sum(), logits)
    half = logits.itemsize == 2
    for loss, grad in world.run(of_split_classes, dtype, reduction):
        assert grad.dtype == logits.dtype
        assert torch.allclose(loss.double(), right.double(), rtol=1e-2 if half else 1e-6)
        assert torch.allclose(
            grad.double(), gradient.double(), rtol=1e-2 if half else 1e-5, atol=1e-3 if half else 1e-7
        )
