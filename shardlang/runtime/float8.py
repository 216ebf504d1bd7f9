"""``all_gather float8``: linear layers whose weights FSDP gathers as float8, through torchao.

torchao's layer takes the place of torch's; its weight is stored as before, and casts itself on its way into FSDP's
gather, with one scale for all parts (an all-reduce of one number a weight). Products are of float8 too. The layer runs
on this rank's blocks, as it does without a mesh: a scale is of the block that a product is of.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from shardlang.diagnostics import ShardlangError, sl06_calls
from shardlang.lower import torch_private
from shardlang.lower.model import LoweredModel
from shardlang.runtime.reshard import placed


def install(lowered: LoweredModel, module: nn.Module, mesh: DeviceMesh) -> None:
    """Puts torchao's layers in the places of linear ones. Their parameters are placed already.

    Raises ShardlangError (SL0662) where torchao is not installed.
    """
    wanted = [(group, name) for group in lowered.groups for name in group.float8]
    if not wanted:
        return
    try:
        from torchao.float8 import Float8LinearConfig
        from torchao.float8.float8_linear import Float8Linear
    except ImportError as error:
        raise ShardlangError(sl06_calls.float8_without_torchao(lowered.name, str(error))) from None
    config = Float8LinearConfig(emulate=not _has_float8(mesh))
    for _, name in wanted:
        path = name.rpartition(".")[0]
        owner, _, last = path.rpartition(".")
        linear = module.get_submodule(path)
        assert isinstance(linear, nn.Linear)
        made = Float8Linear.from_float(linear, config)
        made.weight = _casting(module.get_parameter(name), made)
        _run_on_blocks(made)
        setattr(module.get_submodule(owner), last, made)


def _has_float8(mesh: DeviceMesh) -> bool:
    """Does the device multiply float8 itself?"""
    return mesh.device_type == "cuda" and torch.cuda.get_device_capability() >= (8, 9)


def _casting(weight: nn.Parameter, layer: Any) -> nn.Parameter:
    """The weight with a block that casts itself when FSDP gathers it."""
    from torchao.float8.fsdp_utils import WeightWithDynamicFloat8CastTensor

    dtype = layer.config.cast_config_weight.target_dtype
    block = WeightWithDynamicFloat8CastTensor(torch_private.block_of(weight), layer.linear_mm_config, dtype)
    return torch_private.parameter_of(block, torch_private.spec_of(weight), weight.requires_grad)


def casting_like(block: Tensor, other: Tensor) -> Tensor:
    """A block that casts itself as ``other`` does; the block itself where that does not."""
    if not hasattr(other, "fsdp_pre_all_gather"):
        return block
    made: Tensor = type(other)(block, other._linear_mm_config, other._dtype)  # type: ignore[attr-defined]  # torchao's
    return made


def _run_on_blocks(layer: nn.Module) -> None:
    """Lets a layer of whole weights see blocks alone. Its input is split by leading dims; the gradients of its weights
    are then parts of a sum."""
    twin = copy.copy(layer)
    for name, value in vars(layer).items():
        if name.startswith(("_forward", "_backward")) and isinstance(value, OrderedDict):
            twin.__dict__[name] = OrderedDict()

    def forward(x: Tensor) -> Tensor:
        if not isinstance(x, DTensor):
            return torch.func.functional_call(twin, dict(layer.named_parameters()), (x,))  # type: ignore[no-any-return]
        last = x.dim() - 1
        placements: list[Placement] = [
            p if isinstance(p, Shard) and p.dim != last else Replicate() for p in x.placements
        ]
        x = placed(x, placements)
        sums = [Replicate() if p.is_replicate() else Partial() for p in placements]
        held = {n: p.to_local(grad_placements=sums) for n, p in layer.named_parameters() if isinstance(p, DTensor)}
        block = torch.func.functional_call(twin, held, (x.to_local(grad_placements=placements),))
        shape = torch.Size((*x.shape[:-1], block.shape[-1]))
        stride = torch_private.contiguous_stride(shape)
        return DTensor.from_local(block, x.device_mesh, placements, run_check=False, shape=shape, stride=stride)

    layer.forward = forward


__all__ = ["casting_like", "install"]
