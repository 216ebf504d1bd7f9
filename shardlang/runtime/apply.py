"""A model placed, called and grouped as declared: tensor parallelism, activation checkpointing, FSDP, in this order."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial, wraps
from typing import Any

import torch
import torch.distributed.fsdp
from attrs import evolve
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.utils.checkpoint import checkpoint
from torch.utils.weak import WeakTensorKeyDictionary

from shardlang.check.model import check_model
from shardlang.check.program import Model
from shardlang.diagnostics import ShardlangError, sl06_calls
from shardlang.dtypes import DTYPES
from shardlang.layout import Layout
from shardlang.lower import attention, torch_private
from shardlang.lower.facts import facts_of
from shardlang.lower.model import Group, LoweredModel, Parameter, keeps_part, lower_model
from shardlang.lower.placements import carried, device_mesh, layout_of, mesh_of, ranks_of
from shardlang.runtime import blocks, calls, compiled_calls, float8, torch_compile
from shardlang.runtime.applied import Applied, remember
from shardlang.runtime.calls import Boundary, Call, RunPlan, cross_without_grad
from shardlang.runtime.distributed import run_plan
from shardlang.runtime.global_view import global_view
from shardlang.runtime.groups import Team
from shardlang.runtime.inner_calls import Apart
from shardlang.runtime.stored_layouts import cut_for_storage

mesh_dims = getattr(torch.distributed.fsdp, "DataParallelMeshDims", None)
"""Tells ``fully_shard`` which axes of a mesh are its own; torch 2.11 has no such thing."""


def apply(declared: Model, module: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """The module, changed in place. ``mesh`` has the axes of the declared mesh; all of its ranks must call this.

    Every rank gives the same whole module (or a ``deferred`` one, to be materialized after) and keeps its own blocks;
    nothing is sent.
    Raises ShardlangError for everything that ``check`` would report, and where the mesh is another one.
    """
    lowered = lower_model(check_model(declared, facts_of(module)))
    given, wanted = mesh_of(mesh), declared.mesh
    if [(a.name, a.size) for a in given.axes] != [(a.name, a.size) for a in wanted.axes]:
        raise ShardlangError(sl06_calls.mesh_differs(declared.name, str(wanted), str(given)))
    if wanted.splits:
        mesh = device_mesh(lowered.mesh, mesh.device_type)
    team = Team(mesh.device_type, lowered.mesh.first_rank, ranks_of(mesh))
    tensors = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    sources = {name: tensor for name, tensor in tensors if tensor.is_meta}
    boundary = place(lowered, module, mesh, partial(run_plan, team=team))
    group(lowered, module, mesh)
    remember(module, Applied(lowered, mesh, boundary, sources))
    return module


def place(
    lowered: LoweredModel, module: nn.Module, mesh: DeviceMesh, run: RunPlan, watched: Iterable[str] = ()
) -> Boundary:
    """All but FSDP: parameters and buffers become DTensors, calls get their boundaries, modules are checkpointed.

    ``watched`` modules are called as they are, for whoever put hooks on them.
    """
    attention.register()
    boundary = Boundary(lowered.declared, lowered.mesh, mesh, run, lowered.sizes, lowered.rules)
    for parameter in lowered.parameters:
        _place_parameter(parameter, module, mesh)
    _place_buffers(module, mesh)
    float8.install(lowered, module, mesh)
    made = {path: calls.install(module.get_submodule(path), path, line, boundary) for path, line in lowered.calls}
    compilers = torch_compile.compilers(lowered)
    programs: set[str] = set()
    for path, line in lowered.calls:
        apart = modules_apart(path, lowered, watched)
        if not line.eager and all(p in made for p in apart) and not _in_float8(path, lowered):
            inner = [_as_called(p, module, made[p], lowered) for p in apart]
            own = _owed_to_fsdp(path, lowered)
            compiler = torch_compile.compiler_for(path, compilers)
            compiled_calls.install(module.get_submodule(path), path, boundary, own, made[path], inner, compiler)
            programs.add(path)
    for path, compiler in compilers.items():
        if path not in programs:
            parts = [module.get_submodule(p) for p in {*modules_apart(path, lowered, watched), *_inside(path, made)}]
            torch_compile.compile_forward(module.get_submodule(path), compiler, parts)
    for path in lowered.checkpoint:
        _checkpoint(module.get_submodule(path))
    _view_globally(module)
    reduce_gradients(lowered, module, boundary)
    return boundary


def reduce_gradients(lowered: LoweredModel, module: nn.Module, boundary: Boundary) -> None:
    """Has the gradients of parameters that FSDP leaves alone reduced, each as soon as it is there."""
    for parameter in lowered.alone:
        if parameter.trainable:
            _reduce_gradient(module.get_parameter(parameter.name), parameter.layout, boundary)


def modules_apart(path: str, lowered: LoweredModel, watched: Iterable[str] = ()) -> list[str]:
    """The outermost modules inside one that have to be called as they are: they need hooks of their own, or DTensor's
    dispatch."""
    inside = f"{path}." if path else ""
    eager = [p for p, line in lowered.calls if line.eager]
    compiled = (p for p, _ in lowered.compile)
    others = {*eager, *(g.module for g in lowered.groups), *lowered.checkpoint, *compiled, *watched}
    found = sorted((p for p in others if p.startswith(inside) and p != path), key=len)
    return [p for i, p in enumerate(found) if not any(p.startswith(f"{o}.") for o in found[:i])]


def _in_float8(path: str, lowered: LoweredModel) -> bool:
    """Are there layers of float8 in a module? Their products are torchao's, which no trace looks into."""
    return any(n.startswith(f"{path}." if path else "") for g in lowered.groups for n in g.float8)


def _inside(path: str, names: Iterable[str]) -> list[str]:
    """Those of some modules that are inside one."""
    return [n for n in names if n != path and n.startswith(f"{path}." if path else "")]


def _as_called(path: str, module: nn.Module, call: Call, lowered: LoweredModel) -> Apart:
    """A module that is called as it is, with the dtypes that its FSDP group gives it."""
    group = next((g for g in lowered.groups if g.module == path), None)
    parameters, results = (group.param_dtype, group.output_dtype) if group is not None else (None, None)
    return Apart(module.get_submodule(path), call, _dtype(parameters), _dtype(results))


def _owed_to_fsdp(path: str, lowered: LoweredModel) -> dict[str, frozenset[str]]:
    """The axes over which FSDP adds up the gradients of a module's parameters, by their names in it."""
    own: dict[str, frozenset[str]] = {}
    for one in lowered.groups:
        for parameter in one.parameters:
            for name in parameter.names:
                if name.startswith(f"{path}." if path else ""):
                    own[_within(name, path)] = frozenset({*one.shard, *one.replicate})
    return own


def _place_parameter(parameter: Parameter, module: nn.Module, mesh: DeviceMesh) -> None:
    whole = module.get_parameter(parameter.name).detach()
    block = own_block(whole, parameter.layout, mesh)
    placed = torch_private.parameter_of(block, record_of(parameter, mesh, block.dtype), parameter.trainable)
    for name in parameter.names:
        owner, _, last = name.rpartition(".")
        module.get_submodule(owner)._parameters[last] = placed


def own_block(whole: Tensor, layout: Layout, mesh: DeviceMesh) -> Tensor:
    """This rank's block of a tensor that every rank holds whole, on the mesh's device, in storage of its own."""
    coordinate = mesh.get_coordinate()
    assert coordinate is not None
    rank = layout.mesh.rank_at({a.name: at for a, at in zip(layout.mesh.axes, coordinate, strict=True)})
    if whole.is_meta:
        return torch.empty(layout.local_shape(rank), dtype=whole.dtype, device="meta")
    everything = tuple(((0, n),) if n else () for n in layout.shape)
    part = blocks.select(tuple(whole.shape), blocks.window(everything, layout.runs(rank)))
    device = torch.device(mesh.device_type) if mesh.device_type != whole.device.type else whole.device
    return blocks.read(whole, part).to(device, copy=True, memory_format=torch.contiguous_format)


def as_dtensor(block: Tensor, parameter: Parameter, mesh: DeviceMesh) -> Tensor:
    return torch_private.dtensor_of(block, record_of(parameter, mesh, block.dtype), requires_grad=False)


def record_of(parameter: Parameter, mesh: DeviceMesh, dtype: torch.dtype) -> Any:
    """What the DTensor of a parameter says of itself before FSDP stores it in parts."""
    stride = torch_private.contiguous_stride(parameter.shape)
    return torch_private.dtensor_spec(mesh, parameter.placements, parameter.shape, stride, dtype)


def _place_buffers(module: nn.Module, mesh: DeviceMesh) -> None:
    """Buffers are whole on every rank."""
    for part in module.modules():
        for name, buffer in part._buffers.items():
            if buffer is not None and not isinstance(buffer, DTensor):
                local = buffer if buffer.is_meta else buffer.to(mesh.device_type)
                part._buffers[name] = DTensor.from_local(local, mesh, [Replicate()] * mesh.ndim, run_check=False)


def _checkpoint(module: nn.Module) -> None:
    """Keeps the module's inputs only, and computes again in the backward pass."""
    inner = module.forward

    def contexts() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
        return nullcontext(), global_view()

    @wraps(inner)
    def forward(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(inner, *args, use_reentrant=False, context_fn=contexts, **kwargs)

    module.forward = forward


def _view_globally(module: nn.Module) -> None:
    """Calls of the model are in the global view, whoever makes them."""
    open_views: list[ExitStack] = []

    def enter(*_: Any) -> None:
        stack = ExitStack()
        stack.enter_context(global_view())
        open_views.append(stack)

    def leave(*_: Any) -> None:
        if open_views:
            open_views.pop().close()

    module.register_forward_pre_hook(enter, prepend=True)
    module.register_forward_hook(leave, always_call=True)


def _reduce_gradient(parameter: nn.Parameter, layout: Layout, boundary: Boundary) -> None:
    """Brings the gradient to the parameter's own layout as soon as it is there."""

    def reduce(p: Tensor) -> None:
        grad = p.grad
        if isinstance(grad, DTensor) and isinstance(p, DTensor) and grad.placements != p.placements:
            p.grad = cross_without_grad(grad, layout, boundary)

    parameter.register_post_accumulate_grad_hook(reduce)


def group(lowered: LoweredModel, module: nn.Module, mesh: DeviceMesh) -> None:
    """``fully_shard``, bottom up. Gradients are summed and never divided: they are those of the global loss.

    Raises ShardlangError (SL0639) under a torch whose ``fully_shard`` takes no mesh of other axes than its own.
    """
    if lowered.groups and mesh_dims is None:
        raise ShardlangError(sl06_calls.fsdp_on_whole_mesh(lowered.name, torch.__version__))
    left_out = {module.get_parameter(p.name) for p in lowered.alone}
    for one in lowered.groups:
        part = module.get_submodule(one.module)
        inside = {p for p in part.parameters() if p in left_out}
        arguments = fully_shard_arguments(one, part, mesh)
        fully_shard(part, ignored_params=inside or None, **arguments)
        for parameter in one.parameters:
            _say_what_is_stored(parameter, one, part)
        if one.parameters and keeps_part(one, lowered.mesh):
            torch_private.reshard_to_part(part, _part_mesh(one, mesh))
    for one in lowered.groups:
        part = module.get_submodule(one.module)
        assert isinstance(part, FSDPModule)
        part.set_gradient_divide_factor(1.0)
        part.set_force_sum_reduction_for_comms(True)
        if one.parameters:
            _owe_whole_gradients(one, part)
    _prefetch(lowered.groups, module)


def _say_what_is_stored(parameter: Parameter, one: Group, part: nn.Module) -> None:
    """Corrects what FSDP says of the part of a parameter that it stores, where that is not the part that it has."""
    owner, _, last = _within(parameter.name, one.module).rpartition(".")
    home = part.get_submodule(owner)
    stored = home.get_parameter(last)
    assert isinstance(stored, DTensor)
    mesh = mesh_of(stored.device_mesh)
    names = [a.name for a in mesh.axes]
    # Torch stores over one axis: several are one, of a name of its own, in the mesh of the stored part.
    known = {a.name for a in parameter.layout.mesh.axes}
    axes = one.shard if len(one.shard) < 2 else [n for n in names if n not in known]
    layout = cut_for_storage(evolve(parameter.layout, mesh=mesh), one.dims[parameter.name], tuple(axes))
    try:
        said: Layout | None = layout_of(mesh, stored.placements, parameter.shape)
    except ShardlangError:
        said = None
    if said is None or not said.equivalent(layout):
        spec = torch_private.spec_of(stored)
        meta = spec.tensor_meta
        made = torch_private.dtensor_spec(stored.device_mesh, carried(layout), meta.shape, meta.stride, meta.dtype)
        torch_private.store_as(part, home, last, made)


def _part_mesh(one: Group, mesh: DeviceMesh) -> DeviceMesh:
    """The mesh's ranks as rows of as many neighbours on the storing axes as a group keeps its parts over."""
    names = mesh.mesh_dim_names or ()
    last = [i for i, n in enumerate(names) if n in one.shard]
    order = [i for i in range(mesh.ndim) if i not in last] + last
    return DeviceMesh(mesh.device_type, mesh.mesh.permute(order).reshape(-1, int(one.reshard)))


def _owe_whole_gradients(one: Group, part: nn.Module) -> None:
    """FSDP sums what all ranks have for a gradient, and takes it that each has a share of its own.

    Where nothing in the computation is split over FSDP's axes (a batch too small to be), a gradient comes whole on
    every rank; it is made pending then, so that the sum is the gradient and not a multiple of it. The gathered
    parameter that autograd sees is there only while the module runs, so that the hook is put on it then.
    """
    own = {*one.shard, *one.replicate}
    hooked = WeakTensorKeyDictionary()

    def share(grad: Tensor) -> Tensor:
        assert isinstance(grad, DTensor)
        names = grad.device_mesh.mesh_dim_names or ()
        if not any(n in own and p.is_replicate() for n, p in zip(names, grad.placements, strict=True)):
            return grad
        coordinate = grad.device_mesh.get_coordinate()
        assert coordinate is not None
        whole = [
            i for i, (n, p) in enumerate(zip(names, grad.placements, strict=True)) if n in own and p.is_replicate()
        ]
        block = torch_private.block_of(grad)
        if any(coordinate[i] for i in whole):
            block = torch.zeros_like(block)
        placements = tuple(Partial() if i in whole else p for i, p in enumerate(grad.placements))
        spec = torch_private.dtensor_spec(grad.device_mesh, placements, grad.shape, grad.stride(), grad.dtype)
        return torch_private.dtensor_of(block, spec, requires_grad=False)

    def watch(*_: Any) -> None:
        for parameter in one.parameters:
            gathered = part.get_parameter(_within(parameter.name, one.module))
            if gathered.requires_grad and gathered not in hooked:
                gathered.register_hook(share)
                hooked[gathered] = True

    part.register_forward_pre_hook(watch)


def fully_shard_arguments(one: Group, part: nn.Module, mesh: DeviceMesh) -> dict[str, Any]:
    """The keyword arguments of ``fully_shard`` that say what a group says."""
    dims = {part.get_parameter(_within(p.name, one.module)): one.dims[p.name] for p in one.parameters}
    odd = any(dims.values())
    return {
        "mesh": mesh,
        "dp_mesh_dims": mesh_dims and mesh_dims(shard=one.shard or None, replicate=one.replicate or None),
        "reshard_after_forward": one.reshard is not False,
        "shard_placement_fn": (lambda p: Shard(dims[p])) if odd else None,
        "mp_policy": MixedPrecisionPolicy(
            param_dtype=_dtype(one.param_dtype),
            reduce_dtype=_dtype(one.reduce_dtype),
            output_dtype=_dtype(one.output_dtype),
        ),
        "offload_policy": CPUOffloadPolicy(pin_memory=mesh.device_type != "cpu") if one.offload else OffloadPolicy(),
    }


def _within(name: str, module: str) -> str:
    return name[len(module) + 1 :] if module else name


def _dtype(name: str | None) -> torch.dtype | None:
    return None if name is None else getattr(torch, DTYPES[name].torch_name)


def _prefetch(groups: Iterable[Group], module: nn.Module) -> None:
    """Each group fetches the next ones of the same line's depth, in the order in which modules stand in the model."""
    of = {g.module: g for g in groups if g.module}
    order = [(name, part) for name, part in module.named_modules() if name in of]
    parts = [part for _, part in order]
    for i, (name, part) in enumerate(order):
        count = of[name].prefetch
        if count:
            assert isinstance(part, FSDPModule)
            part.set_modules_to_forward_prefetch(parts[i + 1 : i + 1 + count])
            part.set_modules_to_backward_prefetch(parts[max(0, i - count) : i][::-1])
