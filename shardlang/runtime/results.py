"""Blocks of results as DTensors, and of arguments that are DTensors; with a record made once for all of a kind.

``DTensor.from_local`` and ``to_local`` make theirs anew at each call, which takes longer than a small operator.
"""

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
from shardlang.runtime.reshard import placed

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
            return _Wrapped.apply(block, self.spec, self.gradient)  # type: ignore[no-untyped-call]  # torch leaves it so
        return torch_private.dtensor_of(block, self.spec, requires_grad=False)


class ArgumentKind:
    """What the block of one DTensor argument gives back: gradients of a layout, or of placements. ``own`` are the
    placements of the argument itself."""

    def __init__(
        self,
        placements: tuple[Any, ...],
        mesh: DeviceMesh,
        shape: torch.Size,
        dtype: torch.dtype,
        own: tuple[Any, ...],
    ) -> None:
        self.placements, self.mesh, self.shape, self.dtype, self.own = placements, mesh, shape, dtype, own
        self.stride = torch_private.contiguous_stride(shape)
        self.spec = self._spec(dtype)

    def block(self, tensor: DTensor) -> torch.Tensor:
        """The block, on autograd's graph."""
        if torch.compiler.is_compiling():
            return tensor.to_local(grad_placements=self.placements)
        if not tensor.requires_grad:
            return torch_private.block_of(tensor)
        block: torch.Tensor = _Block.apply(tensor, self)  # type: ignore[no-untyped-call]  # nor this one
        return block

    def record(self, dtype: torch.dtype) -> Any:
        """The record of a gradient."""
        return self.spec if dtype == self.dtype else self._spec(dtype)

    def _spec(self, dtype: torch.dtype) -> Any:
        return torch_private.dtensor_spec(self.mesh, self.placements, self.shape, self.stride, dtype)


class _Block(torch.autograd.Function):
    """The block of a DTensor; back, the gradient of the block as a DTensor."""

    @staticmethod
    def forward(ctx: Any, tensor: DTensor, kind: ArgumentKind) -> torch.Tensor:
        ctx.kind = kind
        block = torch_private.block_of(tensor)
        return block.view_as(block)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        kind: ArgumentKind = ctx.kind
        grad = grad.contiguous()
        if torch.is_grad_enabled() and grad.requires_grad:
            # A second derivative: what comes back of it is in the argument's own layout.
            return _Wrapped.apply(grad, kind.record(grad.dtype), kind.own), None  # type: ignore[no-untyped-call]
        return torch_private.dtensor_of(grad, kind.record(grad.dtype), requires_grad=False), None


class _Wrapped(torch.autograd.Function):
    """A block as a DTensor of a record; back, the block of the gradient in ``back``'s placements."""

    @staticmethod
    def forward(ctx: Any, block: torch.Tensor, spec: Any, back: tuple[Any, ...]) -> torch.Tensor:
        ctx.spec, ctx.back = spec, back
        return torch_private.dtensor_of(block.view_as(block), spec, requires_grad=True)

    @staticmethod
    def backward(ctx: Any, grad: DTensor) -> Any:
        if grad.placements != ctx.back:
            grad = placed(grad, ctx.back)
        if torch.is_grad_enabled() and grad.requires_grad:
            spec = ctx.spec
            return ArgumentKind(spec.placements, spec.mesh, grad.shape, grad.dtype, ctx.back).block(grad), None, None
        return torch_private.block_of(grad), None, None


enter = torch_private.applied(_Block)
"""``_Block.apply``, where no transform of functorch is at work."""
