"""A Llama on DTensors and FSDP2, written by hand against torch: what a lowered model's step is held against.

The plan is that of ``tests/models/test_law.py``: tensor parallel inside a block, the sequence split between blocks,
rows of the vocabulary split at both ends, FSDP over ``dp``. Activations are DTensors throughout, as in the lowered
model, and every crossing is a ``redistribute`` in the place where the file's ``call`` lines have one.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import DataParallelMeshDims, FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from examples.llama.model import Attention, Llama, rotate

ROWS, COLUMNS, WHOLE = (Replicate(), Shard(0)), (Replicate(), Shard(1)), (Replicate(), Replicate())
SPLIT, INSIDE = (Shard(0), Shard(1)), (Shard(0), Replicate())
CUT = {"tok_embeddings": ROWS, "wq": ROWS, "wk": ROWS, "wv": ROWS, "wo": COLUMNS, "w1": ROWS, "w3": ROWS}
CUT |= {"w2": COLUMNS, "output": ROWS}


def attention(self: Attention, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """``Attention.forward`` with the heads' own part on local blocks, for which DTensor has no rule on a CPU."""
    q, k, v = (w(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
    q, k = rotate(q, cos, sin), rotate(k, cos, sin)
    blocks = [t.to_local() for t in (q, k, v)]
    out = F.scaled_dot_product_attention(*blocks, is_causal=True, enable_gqa=True)
    whole = DTensor.from_local(out, q.device_mesh, q.placements, run_check=False)
    return self.wo(whole.transpose(1, 2).flatten(2))


class _Losses(torch.autograd.Function):
    """The sum of the cross entropies of a rank's rows, of which it has some of the classes."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, group: Any) -> Tensor:
        start = dist.get_rank(group) * logits.shape[-1]
        top = logits.amax(-1)
        dist.all_reduce(top, op=dist.ReduceOp.MAX, group=group)
        shifted = logits - top.unsqueeze(-1)
        mine = (target >= start) & (target < start + logits.shape[-1])
        index = torch.where(mine, target - start, 0).unsqueeze(-1)
        powers = shifted.exp()
        sums = torch.stack((powers.sum(-1), torch.where(mine, shifted.gather(-1, index).squeeze(-1), 0.0)))
        dist.all_reduce(sums, group=group)
        ctx.save_for_backward(powers.div_(sums[0].unsqueeze(-1)), index, mine)
        return (sums[0].log() - sums[1]).sum()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        probabilities, index, mine = ctx.saved_tensors
        inner = probabilities * grad
        inner.scatter_add_(-1, index, torch.where(mine, -grad, 0.0).unsqueeze(-1))
        return inner, None, None


def loss(model: nn.Module, tokens: DTensor, target: DTensor, count: int) -> DTensor:
    """The mean over the whole batch, still to be summed over ``dp``."""
    logits = model(tokens).flatten(0, 1)
    mesh = logits.device_mesh
    total = _Losses.apply(logits.to_local(), target.to_local().flatten(), mesh.get_group("tp"))  # type: ignore[no-untyped-call]
    return DTensor.from_local(total, mesh, (Partial(), Replicate()), run_check=False) / count


def placed(model: Llama, mesh: Any) -> nn.Module:
    """The model, its parameters cut, its modules given their crossings, its groups made."""
    for name, module in model.named_modules():
        cut: tuple[Placement, ...] = CUT.get(name.rpartition(".")[2], WHOLE)
        for key, parameter in list(module.named_parameters(recurse=False)):
            block = parameter.detach()
            for axis, placement in enumerate(cut):
                if isinstance(placement, Shard):
                    block = block.chunk(mesh.size(axis), placement.dim)[mesh.get_local_rank(axis)].contiguous()
            module.register_parameter(key, nn.Parameter(DTensor.from_local(block, mesh, cut, run_check=False)))
        for key, buffer in list(module.named_buffers(recurse=False)):
            module.register_buffer(key, DTensor.from_local(buffer, mesh, WHOLE, run_check=False), persistent=False)
    for layer in model.layers:
        layer.attention.forward = attention.__get__(layer.attention)
        for inner in (layer.attention, layer.feed_forward):
            _crossings(inner, INSIDE, SPLIT)
    _crossings(model.tok_embeddings, None, SPLIT)
    _crossings(model.output, INSIDE, None)
    dims = DataParallelMeshDims(shard="dp")
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, dp_mesh_dims=dims)
    fully_shard(model, mesh=mesh, dp_mesh_dims=dims, reshard_after_forward=False)
    for part in (*model.layers, model):
        assert isinstance(part, FSDPModule)
        part.set_gradient_divide_factor(1.0)
        part.set_force_sum_reduction_for_comms(True)
    return model


def _crossings(module: nn.Module, before: tuple[Placement, ...] | None, after: tuple[Placement, ...] | None) -> None:
    if before is not None:
        module.register_forward_pre_hook(lambda _, args: (args[0].redistribute(placements=before), *args[1:]))
    if after is not None:
        module.register_forward_hook(lambda _, __, out: out.redistribute(placements=after))
