"""Arguments of a ``@sharded`` function: what a program depends on of each, and the block that it gets of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from attrs import frozen
from torch.distributed.tensor import DTensor

from shardlang.check import Sizes
from shardlang.check.bind import bind
from shardlang.check.program import Arg
from shardlang.diagnostics import ShardlangError, sl05_functions
from shardlang.layout import Layout
from shardlang.lower import torch_private
from shardlang.lower.placements import layout_of, mesh_of
from shardlang.mesh import Mesh
from shardlang.runtime.handle import ShardTensor
from shardlang.runtime.results import ArgumentKind, enter
from shardlang.source import Span
from shardlang.trace.capture import TensorType
from shardlang.trace.compile import Argument


@frozen(eq=False)
class Placed:
    """A tensor of which only shape, dtype and layout count."""

    tensor: torch.Tensor
    layout: Layout

    @property
    def shape(self) -> torch.Size:
        return self.tensor.shape

    @property
    def dtype(self) -> torch.dtype:
        return self.tensor.dtype


Tensor = torch.Tensor | ShardTensor
TENSORS = (torch.Tensor, ShardTensor)


def key_of(tensor: Tensor) -> Any:
    """What a program depends on of a tensor; hashable."""
    if isinstance(tensor, DTensor):
        return torch_private.spec_of(tensor)
    if isinstance(tensor, ShardTensor):
        return tensor.layout, tensor.dtype
    return tensor.shape, tensor.dtype, tensor.device


def block_of(tensor: Tensor, kind: ArgumentKind | None) -> torch.Tensor:
    """The block of a tensor, on autograd's graph."""
    if kind is not None:
        assert isinstance(tensor, DTensor)
        return kind.block(tensor)
    return tensor.block if isinstance(tensor, ShardTensor) else tensor


def blocks_of(tensors: Sequence[Tensor], kinds: Sequence[ArgumentKind | None]) -> list[Any]:
    """The blocks of tensors, on autograd's graph where it records."""
    if not torch.is_grad_enabled():
        try:
            return torch_private.blocks_of(tensors)
        except AttributeError:
            return [block_without_grad(t) for t in tensors]
    if torch.compiler.is_compiling() or torch_private.transformed():
        return [block_of(t, k) for t, k in zip(tensors, kinds, strict=True)]
    return [
        block_without_grad(t) if k is None or not t.requires_grad else enter(t, k)
        for t, k in zip(tensors, kinds, strict=True)
    ]


def block_without_grad(tensor: Tensor) -> torch.Tensor:
    if isinstance(tensor, DTensor):
        return torch_private.block_of(tensor)
    return tensor.block if isinstance(tensor, ShardTensor) else tensor


def layout_in(tensor: Tensor | Placed, mesh: Mesh, function: str, name: str, span: Span | None) -> Layout:
    """The layout that a tensor comes in. Raises SL0528 where it lives on another mesh than the function."""
    if isinstance(tensor, DTensor | ShardTensor) and mesh_of(tensor.device_mesh) != mesh:
        given = str(mesh_of(tensor.device_mesh))
        raise ShardlangError(sl05_functions.other_mesh(function, name, given, str(mesh), span))
    if isinstance(tensor, DTensor):
        return layout_of(mesh, tensor.placements, tuple(tensor.shape))
    if isinstance(tensor, ShardTensor | Placed):
        return tensor.layout
    return Layout.whole(mesh, tuple(tensor.shape))


def argument_of(
    arg: Arg, tensor: Tensor | Placed, declared: Layout, sizes: Sizes, mesh: Mesh, function: str
) -> Argument:
    """An argument that the signature names."""
    shape = tuple(tensor.shape)
    layout = layout_in(tensor, mesh, function, arg.name, arg.span)
    gradient = None
    if arg.spec is not None and arg.spec.grad is not None:
        gradient = bind(arg.spec.grad, shape, mesh, sizes, name=f"the gradient of {arg.name}")
    return Argument(arg.name, TensorType(shape, tensor.dtype), layout, declared, gradient, arg.span)


def argument_unnamed(name: str, tensor: Tensor | Placed, mesh: Mesh, function: str) -> Argument:
    """A tensor that a function closes over, in the layout that it has."""
    layout = layout_in(tensor, mesh, function, name, None)
    return Argument(name, TensorType(tuple(tensor.shape), tensor.dtype), layout)
