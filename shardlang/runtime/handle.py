"""A tensor on a mesh whose layout no DTensor placements say: another order of axes, fused factors, flat cuts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from attrs import frozen
from torch.distributed.device_mesh import DeviceMesh

from shardlang.layout import Layout
from shardlang.mesh import Mesh

if TYPE_CHECKING:
    from shardlang.runtime.specs import Spec


@frozen(eq=False)
class ShardTensor:
    """What ``reshard`` gives where torch has no DTensor for a layout. It is read, moved on and differentiated.

    ``block`` is this rank's block, on autograd's graph; the layout says which one. Arithmetic is for DTensors and for
    functions: reshard it, or take ``to_local``.
    """

    block: torch.Tensor
    layout: Layout
    device_mesh: DeviceMesh

    @property
    def shape(self) -> torch.Size:
        """The global shape."""
        return torch.Size(self.layout.shape)

    @property
    def dtype(self) -> torch.dtype:
        return self.block.dtype

    @property
    def device(self) -> torch.device:
        return self.block.device

    @property
    def requires_grad(self) -> bool:
        return self.block.requires_grad

    @property
    def mesh(self) -> Mesh:
        return self.layout.mesh

    def to_local(self) -> torch.Tensor:
        """This rank's block. Its gradient is taken as the layout's own: split alike, whole where the value is."""
        return self.block

    def to_dtensor(self) -> torch.Tensor:
        """The same value as a DTensor, where placements say its layout; else ShardlangError (SL0706)."""
        from shardlang.runtime.route import Route, travel

        meshes = self.device_mesh, self.device_mesh
        return travel(
            self.block, Route(self.layout, self.layout, meshes, self.dtype, ("handle", "dtensor"), alias=True)
        )

    def full_tensor(self) -> torch.Tensor:
        """The whole tensor, pending reductions applied, on every rank."""
        from shardlang.runtime.reshard import reshard

        local: torch.Tensor = reshard(self, Layout.whole(self.layout.mesh, self.layout.shape)).to_local()
        return local

    def reshard(self, spec: Spec) -> torch.Tensor | ShardTensor:
        """The same tensor in another layout: ``sl.reshard(self, spec)``."""
        from shardlang.runtime.reshard import reshard

        moved: torch.Tensor | ShardTensor = reshard(self, spec)
        return moved

    def __repr__(self) -> str:
        return f"ShardTensor({self.layout}, {str(self.dtype).removeprefix('torch.')}, local {tuple(self.block.shape)})"
