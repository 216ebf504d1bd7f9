"""Blocks of results as DTensors, with a record made once for all of a kind; or as handles."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from shardlang.layout import Layout
from shardlang.lower import torch_private
from shardlang.lower.placements import placements_of
from shardlang.plan.plan import dual
from shardlang.runtime.handle import ShardTensor

KEPT = 256
"""How many programs (of other shapes or layouts) are kept of one function; the oldest goes first."""


def forget(programs: dict[Any, Any]) -> None:
    """Bounds a cache of programs."""
    while len(programs) > KEPT:
        del programs[next(iter(programs))]


class ResultKind:
    """What the blocks of one result become: DTensors of a layout, or handles where no placements say it."""

    def __init__(self, layout: Layout, mesh: DeviceMesh, dtype: torch.dtype) -> None:
        self.layout, self.mesh = layout, mesh
        placements = placements_of(layout)
        stride = torch_private.contiguous_stride(layout.shape)
        self.spec: Any = None
        self.gradient: Any = None
        if placements is not None:
            self.spec = torch_private.dtensor_spec(mesh, placements, layout.shape, stride, dtype)
            self.gradient = placements_of(dual(layout))

    def wrap(self, block: torch.Tensor) -> Any:
        """The global tensor of a block."""
        if self.spec is None:
            return ShardTensor(block, self.layout, self.mesh)
        if block.requires_grad and torch.is_grad_enabled():
            return _Wrapped.apply(block, self)  # type: ignore[no-untyped-call]  # torch leaves apply untyped
        return torch_private.dtensor_of(block, self.spec, requires_grad=False)


class _Wrapped(torch.autograd.Function):
    """A block as a DTensor; back, the block of the gradient in the dual layout."""

    @staticmethod
    def forward(ctx: Any, block: torch.Tensor, kind: ResultKind) -> torch.Tensor:
        ctx.kind = kind
        return torch_private.dtensor_of(block.view_as(block), kind.spec, requires_grad=True)

    @staticmethod
    def backward(ctx: Any, grad: DTensor) -> Any:
        if grad.placements != ctx.kind.gradient:
            grad = grad.redistribute(placements=ctx.kind.gradient)
        return torch_private.block_of(grad), None
