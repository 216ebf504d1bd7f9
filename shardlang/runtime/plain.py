"""What a file written by ``shardlang compile --emit python`` does: the same as ``apply``, in torch's words alone.

The text of this module stands in every such file, behind tables that say what a ``.shard`` file declares, with the
functions that it imports from us written out. It takes torch's own steps: DTensor's redistributions at the boundaries
of calls, one ``fully_shard`` a group.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.fsdp
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.experimental import implicit_replication
from torch.utils.checkpoint import checkpoint
from torch.utils.weak import WeakTensorKeyDictionary

from shardlang.lower.attention import register
from shardlang.lower.torch_private import reshard_to_part
from shardlang.runtime.gradients import clip_grad_norm_

Split = Mapping[str, Placement]
"""The mesh axes over which a tensor is not whole. A negative dim counts from the last."""

MODEL = ""
MESH: dict[str, int] = {}
PARAMETERS: dict[str, Split] = {}
FROZEN: Sequence[str] = ()
CALLS: dict[str, tuple[dict[str, Split], list[tuple[str, Split | None]]]] = {}
CHECKPOINT: Sequence[str] = ()
COMPILE: Sequence[tuple[str, str]] = ()
ALONE: Sequence[str] = ()
GROUPS: list[tuple[str, dict[str, Any]]] = []

UNSAID: dict[str, Any] = {
    "shard": None,
    "replicate": None,
    "reshard": True,
    "param": None,
    "reduce": None,
    "output": None,
    "prefetch": 0,
    "offload": False,
    "dims": {},
}
"""What a group does where its options do not say: ``dims`` are those by which parameters are stored, where not 0."""


def device_mesh(device_type: str = "cpu") -> DeviceMesh:
    """The mesh of the launch, on which everything below is."""
    return init_device_mesh(device_type, tuple(MESH.values()), mesh_dim_names=tuple(MESH))


def parallelize(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """The model, in place: its parameters cut to this rank, its calls given their layouts, its groups made.

    Every rank gives the same whole model. Use it inside ``implicit_replication()``, where plain tensors are whole.
    """
    register()
    place_parameters(model, mesh)
    for path, (inputs, outputs) in CALLS.items():
        for name, module in model.named_modules():
            if matches(path, name):
                declare_call(module, mesh, inputs, outputs)
    for name, module in list(model.named_modules()):
        for path, backend in COMPILE:
            if matches(path, name):
                module.forward = torch.compile(module.forward, backend=backend, dynamic=False)
        if any(matches(path, name) for path in CHECKPOINT):
            recompute(module)
    make_groups(model, mesh)
    return model


def matches(path: str, name: str) -> bool:
    """Is this the name, or the name with ``*`` in the place of numbers?"""
    return path == name or ("*" in path and path == numberless(name))


def numberless(name: str) -> str:
    return ".".join("*" if part.isdecimal() else part for part in name.split("."))


def placements(mesh: DeviceMesh, split: Split, dims: int) -> list[Placement]:
    """A placement for each axis of the mesh."""
    found: list[Placement] = []
    for axis in mesh.mesh_dim_names or ():
        placement = split.get(axis, Replicate())
        if isinstance(placement, Shard) and placement.dim < 0:
            placement = Shard(placement.dim + dims)
        found.append(placement)
    return found


def place_parameters(model: nn.Module, mesh: DeviceMesh) -> None:
    """Each parameter becomes a DTensor, once however many names it has; buffers are whole."""
    placed: dict[nn.Parameter, nn.Parameter] = {}
    for name, parameter in list(model.named_parameters(remove_duplicate=False)):
        if parameter not in placed:
            split = PARAMETERS.get(name, PARAMETERS.get(numberless(name), {}))
            whole = parameter.detach().to(mesh.device_type)
            local = distribute_tensor(whole, mesh, placements(mesh, split, whole.dim()), src_data_rank=None)
            frozen = name in FROZEN or numberless(name) in FROZEN
            placed[parameter] = nn.Parameter(local, requires_grad=parameter.requires_grad and not frozen)
        owner, _, last = name.rpartition(".")
        model.get_submodule(owner)._parameters[last] = placed[parameter]
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None:
                everywhere = placements(mesh, {}, buffer.dim())
                module._buffers[name] = DTensor.from_local(
                    buffer.to(mesh.device_type), mesh, everywhere, run_check=False
                )


def declare_call(
    module: nn.Module, mesh: DeviceMesh, inputs: Mapping[str, Split], outputs: Sequence[tuple[str, Split | None]]
) -> None:
    """Arguments enter and results leave in the layouts that a ``call`` line declares. A plain tensor is the rank's
    own block; what the line does not name passes untouched."""
    signature = inspect.signature(module.forward)

    def enter(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        names = list(signature.parameters)
        moved = [cross(a, mesh, inputs.get(names[i])) if i < len(names) else a for i, a in enumerate(args)]
        return tuple(moved), {name: cross(a, mesh, inputs.get(name)) for name, a in kwargs.items()}

    def leave(_: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        if isinstance(output, Tensor):
            return cross(output, mesh, outputs[0][1]) if outputs else output
        if isinstance(output, Mapping):
            for name, split in outputs:
                if name in output:
                    output[name] = cross(output[name], mesh, split)  # type: ignore[index]  # outputs are dicts
            return output
        if isinstance(output, tuple | list):
            moved = [cross(v, mesh, split) for v, (_, split) in zip(output, outputs, strict=False)]
            moved += output[len(moved) :]
            return type(output)(*moved) if hasattr(output, "_fields") else type(output)(moved)
        return output

    module.register_forward_pre_hook(enter, with_kwargs=True)
    module.register_forward_hook(leave, with_kwargs=True)


def cross(value: Any, mesh: DeviceMesh, split: Split | None) -> Any:
    """A tensor in another layout; anything else, and what no line names, as it is."""
    if split is None or not isinstance(value, Tensor):
        return value
    wanted = placements(mesh, split, value.dim())
    if isinstance(value, DTensor):
        return value.redistribute(mesh, wanted)
    return DTensor.from_local(value, mesh, wanted, run_check=False)


def recompute(module: nn.Module) -> None:
    """Keeps the module's inputs only, and computes again in the backward pass."""
    inner = module.forward

    def contexts() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
        return nullcontext(), nullcontext()

    @wraps(inner)
    def forward(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(inner, *args, use_reentrant=False, context_fn=contexts, **kwargs)

    module.forward = forward


def make_groups(model: nn.Module, mesh: DeviceMesh) -> None:
    """``fully_shard``, bottom up. Gradients are summed and never divided: they are those of the global loss.

    Parameters of ``ALONE`` have no parts and stay out.
    """
    mesh_dims = getattr(torch.distributed.fsdp, "DataParallelMeshDims", None)
    if GROUPS and mesh_dims is None:
        raise RuntimeError(f"FSDP on a mesh of other axes too needs a newer torch than {torch.__version__}")
    grouped: dict[str, dict[str, Any]] = {}
    for path, options in GROUPS:
        grouped |= {name: {**UNSAID, **options} for name, _ in model.named_modules() if matches(path, name)}
    order = sorted(grouped, key=lambda name: -(name.count(".") + 1 if name else 0))
    left_out = {p for n, p in model.named_parameters() if n in ALONE or numberless(n) in ALONE}
    for name in order:
        options, part = grouped[name], model.get_submodule(name)
        dims = {part.get_parameter(p): dim for p, dim in options["dims"].items()}
        fully_shard(
            part,
            mesh=mesh,
            dp_mesh_dims=mesh_dims and mesh_dims(shard=options["shard"], replicate=options["replicate"]),
            reshard_after_forward=options["reshard"] is not False,
            shard_placement_fn=(lambda p, dims=dims: Shard(dims.get(p, 0))) if dims else None,
            mp_policy=MixedPrecisionPolicy(options["param"], options["reduce"], options["output"]),
            offload_policy=(
                CPUOffloadPolicy(pin_memory=mesh.device_type != "cpu") if options["offload"] else OffloadPolicy()
            ),
            ignored_params={p for p in part.parameters() if p in left_out} or None,
        )
        if not isinstance(options["reshard"], bool):
            reshard_to_part(part, part_mesh(mesh, options["shard"], options["reshard"]))
        assert isinstance(part, FSDPModule)
        part.set_gradient_divide_factor(1.0)
        part.set_force_sum_reduction_for_comms(True)
        owe_whole_gradients(part, {*(options["shard"] or ()), *(options["replicate"] or ())})
    prefetch_ahead(model, grouped)
    for name, parameter in model.named_parameters():
        owner = name.rpartition(".")[0]
        alone = not any(g == "" or owner == g or owner.startswith(g + ".") for g in grouped)
        if parameter.requires_grad and (alone or parameter in left_out):
            parameter.register_post_accumulate_grad_hook(settle_gradient)


def part_mesh(mesh: DeviceMesh, shard: Sequence[str], ranks: int) -> DeviceMesh:
    """The mesh's ranks as rows of ``ranks`` neighbours on the axes that store parts."""
    names = mesh.mesh_dim_names or ()
    last = [i for i, n in enumerate(names) if n in shard]
    order = [i for i in range(mesh.ndim) if i not in last] + last
    return DeviceMesh(mesh.device_type, mesh.mesh.permute(order).reshape(-1, ranks))


def settle_gradient(parameter: Tensor) -> None:
    """Brings the gradient of a parameter that no group reduces to the parameter's own layout."""
    grad = parameter.grad
    if isinstance(grad, DTensor) and isinstance(parameter, DTensor) and grad.placements != parameter.placements:
        parameter.grad = grad.redistribute(placements=parameter.placements)


def owe_whole_gradients(part: nn.Module, axes: set[str]) -> None:
    """FSDP sums what all ranks have for a gradient, and takes it that each has a share of its own. A gradient that
    comes whole on every rank is made pending, so that the sum is the gradient and not a multiple of it."""
    hooked = WeakTensorKeyDictionary()

    def share(grad: Tensor) -> Tensor:
        assert isinstance(grad, DTensor)
        names = grad.device_mesh.mesh_dim_names or ()
        owed = [
            Partial() if name in axes and p.is_replicate() else p
            for name, p in zip(names, grad.placements, strict=True)
        ]
        return grad.redistribute(placements=owed) if list(grad.placements) != owed else grad

    def watch(*_: Any) -> None:
        for parameter in part.parameters():
            if parameter.requires_grad and isinstance(parameter, DTensor) and parameter not in hooked:
                parameter.register_hook(share)  # type: ignore[no-untyped-call]  # torch does not annotate it
                hooked[parameter] = True

    part.register_forward_pre_hook(watch)


def prefetch_ahead(model: nn.Module, grouped: Mapping[str, Mapping[str, Any]]) -> None:
    """Groups are gathered before they are needed, in the order in which modules stand in the model."""
    order = [(name, part) for name, part in model.named_modules() if name and name in grouped]
    parts: list[Any] = [part for _, part in order]
    for i, (name, part) in enumerate(order):
        count = grouped[name]["prefetch"]
        if count:
            assert isinstance(part, FSDPModule)
            part.set_modules_to_forward_prefetch(parts[i + 1 : i + 1 + count])
            part.set_modules_to_backward_prefetch(parts[max(0, i - count) : i][::-1])


def place_batch(batch: Any, mesh: DeviceMesh) -> Any:
    """The global batch, of which every rank has all, cut to the ranks as the call of the model itself says.

    A tensor is known by its name in a mapping, or by its place in a tuple. One that the call does not name is cut
    alike where it has the shape of one that it names, else whole.
    """
    inputs = CALLS[""][0] if "" in CALLS else {}
    if isinstance(batch, Tensor):
        return place_batch((batch,), mesh)[0]
    if isinstance(batch, tuple | list):
        named = dict(zip(inputs, batch, strict=False)) | {str(i): v for i, v in enumerate(batch) if i >= len(inputs)}
        return type(batch)(place_batch(named, mesh).values())
    if not isinstance(batch, Mapping):
        return batch
    shapes = {tuple(batch[n].shape): split for n, split in inputs.items() if isinstance(batch.get(n), Tensor)}
    placed: dict[str, Any] = {}
    for name, value in batch.items():
        placed[name] = value
        if isinstance(value, Tensor):
            split = inputs.get(name, shapes.get(tuple(value.shape), {}))
            on = value.to(mesh.device_type)
            placed[name] = distribute_tensor(on, mesh, placements(mesh, split, on.dim()), src_data_rank=None)
    return placed


def ranks_of(mesh: DeviceMesh) -> tuple[int, ...]:
    """The ranks of a mesh, row by row. The norm of gradients asks for them here, and for sums."""
    return tuple(int(rank) for rank in mesh.mesh.flatten().tolist())


def summed_over(mesh: DeviceMesh, x: Tensor, what: str) -> Tensor:
    """The sum of ``x``, which is ``what``, over all ranks of a mesh, in place: over one axis after another."""
    for axis in range(mesh.ndim):
        dist.all_reduce(x, group=mesh.get_group(axis))
    return x


def training_step(
    model: nn.Module, batch: Any, loss: Callable[[nn.Module, Any], tuple[Tensor, Any]], max_norm: float = 1.0
) -> tuple[Tensor, Tensor]:
    """The loss over the whole batch, and the norm of its gradient before clipping; both equal on every rank."""
    with implicit_replication():
        total, count = loss(model, batch)
        mean = total / (count.full_tensor() if isinstance(count, DTensor) else count)
        mean.backward()
    norm = clip_grad_norm_(model.parameters(), max_norm)
    value = mean.detach()
    return value.full_tensor() if isinstance(value, DTensor) else value, norm


def main() -> None:
    """Trains under ``torchrun --nproc-per-node N FILE [STEPS]``; the first rank prints each loss and norm as JSON."""
    sys.path.insert(0, os.getcwd())
    module, _, function = MODEL.partition(":")
    home = importlib.import_module(module)
    device_type = "cuda" if torch.cuda.is_available() else "cpu"
    if device_type == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if device_type == "cuda" else "gloo")
    mesh = device_mesh(device_type)
    torch.manual_seed(0)
    model = parallelize(getattr(home, function)(), mesh)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3, weight_decay=0.1)
    for step in range(int(sys.argv[1]) if len(sys.argv) > 1 else 20):
        value, norm = training_step(model, place_batch(home.batch(step), mesh), home.loss)
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0:
            print(json.dumps({"step": step, "loss": float(value), "grad_norm": float(norm)}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
