"""The private parts of torch that shardlang touches, each with its reason and the versions it was seen in; those
that tracing touches are in ``torch_tracing``."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import lru_cache
from itertools import repeat
from operator import attrgetter
from typing import Any

import torch

_naming = threading.Lock()


def named_group(name: str, ranks: list[int], timeout: timedelta, backend: str | None) -> Any:
    """A process group of some ranks, made by them alone, under a name that they all give.

    ``new_group(use_local_synchronization=True)`` names a group after its ranks and after how many groups this process
    is in (``_hash_ranks_to_str``). Ranks that are in different numbers of groups, as on meshes that share some ranks
    only, would wait for each other under different names for ever. Nor is such a group counted among those that torch
    numbers, as torch 2.14 would: ranks outside of it would give torch's next group another number, and wait for ever
    too. Seen in torch 2.11 to 2.14.
    """
    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    private: Any = distributed_c10d
    with _naming:
        original, counted = private._hash_ranks_to_str, private._world.group_count
        private._hash_ranks_to_str = lambda _: name
        try:
            return dist.new_group(
                ranks, timeout=timeout, backend=backend, use_local_synchronization=True, group_desc="shardlang"
            )
        finally:
            private._hash_ranks_to_str = original
            private._world.group_count = counted


def is_strided_shard(placement: Any) -> bool:
    """Is this the placement by which FSDP2 says that tensor parallelism cut the dim first?

    ``_StridedShard`` has no public name. Seen in torch 2.11 to 2.13.
    """
    from torch.distributed.tensor.placement_types import _StridedShard

    return isinstance(placement, _StridedShard)


def split_factor(placement: Any) -> int:
    """Into how many parts later mesh dims cut the dim before this placement does; 1 for an ordinary ``Shard``.

    Seen in torch 2.11 to 2.13.
    """
    return int(placement.split_factor) if is_strided_shard(placement) else 1


def strided_shard(dim: int, factor: int) -> Any:
    """The placement of a dim that is first cut in ``factor`` pieces, and each of these over the mesh dim.

    With a factor below zero it is a mark that torch carries along and cannot read. Seen in torch 2.11 to 2.13.
    """
    from torch.distributed.tensor.placement_types import _StridedShard

    return _StridedShard(dim, split_factor=factor)


def dtensor_spec(mesh: Any, placements: tuple[Any, ...], shape: Any, stride: Any, dtype: torch.dtype) -> Any:
    """The record that a DTensor keeps of itself; made once and shared by all DTensors that it describes.

    ``DTensor.from_local`` makes it anew at each call, and enters autograd with a backward of its own. Seen in torch
    2.11 to 2.13.
    """
    from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

    meta = TensorMeta(torch.Size(shape), tuple(stride), dtype)
    return DTensorSpec(mesh, placements, tensor_meta=meta)


def dtensor_of(local: torch.Tensor, spec: Any, requires_grad: bool) -> torch.Tensor:
    """A DTensor of a local block and its record, without autograd.

    ``__new__`` does it all; ``__init__`` only asks torch.compile to keep out, for longer than the rest takes. Seen in
    torch 2.11 to 2.13.
    """
    kind = _dtensor_class()
    made: torch.Tensor = kind.__new__(kind, local, spec, requires_grad=requires_grad)
    return made


@lru_cache(maxsize=1)
def _dtensor_class() -> Any:
    from torch.distributed.tensor import DTensor

    return DTensor


def spec_of(tensor: Any) -> Any:
    """The record that a DTensor keeps of itself (``_spec``); hashable. Seen in torch 2.11 to 2.13."""
    return tensor._spec


def block_of(tensor: Any) -> torch.Tensor:
    """A DTensor's local block itself, outside autograd (``_local_tensor``). Seen in torch 2.11 to 2.13.

    Of a block that casts itself on its way into FSDP's gather, what it casts (torchao keeps it as ``_tensor``).
    """
    block: torch.Tensor = tensor._local_tensor
    if type(block) is not torch.Tensor and hasattr(block, "fsdp_pre_all_gather"):
        block = getattr(block, "_tensor", block)
    return block


class _Plain:
    """Stands for the record of what is no DTensor."""

    _hash = 0


PLAIN: Any = _Plain()
_spec, _hash, _block = attrgetter("_spec"), attrgetter("_hash"), attrgetter("_local_tensor")


def specs_of(values: Sequence[Any]) -> list[Any]:
    """The records of DTensors, ``PLAIN`` for other values, without a step of Python for each. Seen in torch 2.13."""
    try:
        return list(map(_spec, values))
    except AttributeError:
        return list(map(getattr, values, repeat("_spec"), repeat(PLAIN)))


def hashes_of(specs: Sequence[Any]) -> list[int | None]:
    """The hashes that records keep of themselves; ``None`` where none was asked for since one was made or changed.

    A record takes its hash back when a part of it is set (``DTensorSpec.__setattr__``). Seen in torch 2.11 to 2.13.
    """
    return list(map(_hash, specs))


def blocks_of(tensors: Sequence[Any]) -> list[torch.Tensor]:
    """``block_of`` for DTensors only, without a step of Python for each where no block casts itself."""
    blocks: list[torch.Tensor] = list(map(_block, tensors))
    return blocks if set(map(type, blocks)) <= {torch.Tensor} else list(map(block_of, tensors))


def applied(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """``function.apply`` without the look for functorch's wrappers in its arguments, at two thirds of its time.

    ``Function.apply`` makes sure that no transform of functorch is at work and then calls what this is. Where one
    is, this is not to be used: see ``transformed``. Seen in torch 2.11 to 2.13.
    """
    base: Any = torch._C._FunctionBase
    found: Callable[..., Any] = vars(base)["apply"].__get__(None, function)
    return found


def transformed() -> bool:
    """Is a transform of functorch (``vmap``, ``grad``) at work? Seen in torch 2.11 to 2.13."""
    return torch._C._are_functorch_transforms_active()


def settle_masks(local: torch.Tensor, placements: tuple[Any, ...]) -> tuple[torch.Tensor, tuple[Any, ...]]:
    """An embedding over a split vocabulary leaves rows to be zeroed before they are summed; zeroes them now.

    DTensor keeps that as a placement of its own (``_MaskPartial``, with the rows in ``mask_buffer``). Returns the
    block and placements in which it is an ordinary ``Partial``. Seen in torch 2.11 to 2.13.
    """
    from torch.distributed.tensor import Partial

    settled = list(placements)
    for i, placement in enumerate(placements):
        buffer = getattr(placement, "mask_buffer", None)
        if buffer is not None:
            settled[i] = Partial(placement.reduce_op)
            rows = buffer.data
            if rows is not None:  # else the axis has one rank, which has all rows
                local = local.masked_fill(rows.reshape(*rows.shape, *[1] * (local.dim() - rows.dim())), 0)
                buffer.release_mask()
    return local, tuple(settled)


def default_store() -> Any:
    """The store of the default process group, for a word to the other ranks when a collective has failed.

    Torch hands it out under a private name only. Seen in torch 2.11 to 2.13.
    """
    from torch.distributed.distributed_c10d import _get_default_store

    return _get_default_store()


def group_named(name: str) -> Any:
    """The process group that a functional collective names (``_resolve_process_group``). Seen in torch 2.11 to 2.13."""
    from torch.distributed import distributed_c10d

    resolve: Any = distributed_c10d._resolve_process_group  # type: ignore[attr-defined]  # private, not exported
    return resolve(name)


def fake_store() -> Any:
    """The store of a process group without peers; makes c10d's collectives accept tensors without storage as well.

    Only torch's testing package has the store and only its tools package the meta kernels. Seen in torch 2.11 to 2.13.
    """
    import torch.distributed._tools.fake_collectives  # noqa: F401  # registers the kernels
    from torch.testing._internal.distributed.fake_pg import FakeStore

    return FakeStore()


def storage_info(file: str, offset: int, length: int) -> Any:
    """Where an item of a checkpoint lies, as its metadata says it (``_StorageInfo``). Seen in torch 2.11 to 2.13."""
    from torch.distributed.checkpoint.filesystem import _StorageInfo

    return _StorageInfo(file, offset, length)


def checkpoint_version() -> str:
    """The version that torch writes into a checkpoint's metadata. Seen in torch 2.11 to 2.13."""
    from torch.distributed.checkpoint import filesystem

    return str(getattr(filesystem, "CURRENT_DCP_VERSION", "1.0.0"))


def storage_key(x: torch.Tensor) -> int:
    """Tells storages apart, those on the meta device too, which have no address. Seen in torch 2.11 to 2.13."""
    key: int = x.untyped_storage()._cdata
    return key


def contiguous_stride(shape: Any) -> tuple[int, ...]:
    """The strides of a contiguous tensor. Torch has it as ``torch._prims_common.make_contiguous_strides_for``."""
    stride, strides = 1, []
    for size in reversed(tuple(shape)):
        strides.append(stride)
        stride *= max(int(size), 1)
    return tuple(reversed(strides))


def reshard_to_part(module: Any, part_mesh: Any) -> None:
    """After its forward pass an FSDP module keeps its parameters in parts over ``part_mesh``'s second dim.

    ``fully_shard(reshard_after_forward=N)`` refuses DTensors, though what it then keeps are flat buffers, and the
    parameter that stands for them meanwhile is never computed with. Seen in torch 2.13.
    """
    from torch.distributed.fsdp._fully_shard._fsdp_common import HSDPMeshInfo

    info = HSDPMeshInfo(part_mesh, shard_mesh_dim=1, replicate_mesh_dim=0)
    for group in module._get_fsdp_state()._fsdp_param_groups:
        group.post_forward_mesh_info = info
        for parameter in group.fsdp_params:
            parameter.post_forward_mesh_info = info
            whole = torch.empty(parameter._orig_size, device="meta")
            parameter._init_sharded_post_forward_param_metadata(whole)
            parameter.to_sharded_post_forward = _as_if_plain(parameter, parameter.to_sharded_post_forward)


def _as_if_plain(parameter: Any, method: Callable[[], None]) -> Callable[[], None]:
    def call() -> None:
        parameter.is_dtensor = False
        try:
            method()
        finally:
            parameter.is_dtensor = True

    return call


def parameter_of(local: torch.Tensor, spec: Any, requires_grad: bool) -> torch.nn.Parameter:
    """A parameter of a local block and its record, whose mesh is the very one of ``spec``.

    ``nn.Parameter`` detaches what it is given, and torch gives that the record of the first DTensor that was detached
    with an equal one: its mesh is equal as well, yet FSDP demands the same object. Seen in torch 2.13.
    """
    made = torch.nn.Parameter(dtensor_of(local, spec, requires_grad=False), requires_grad=requires_grad)
    if spec_of(made).mesh is not spec.mesh:
        made._spec = spec  # type: ignore[attr-defined]  # a DTensor's
    return made


def store_as(module: Any, owner: Any, name: str, spec: Any) -> None:
    """Gives a parameter that an FSDP module stores in parts another record (``spec``) of which elements these are.

    ``fully_shard`` writes placements that are true where tensor parallelism cut a dim evenly, in one stretch; it does
    not look at others. ``owner`` is the module that has the parameter, as ``name``. Seen in torch 2.13.
    """
    for group in module._get_fsdp_state()._fsdp_param_groups:
        for parameter in group.fsdp_params:
            info = parameter._module_info
            if info.module is owner and info.param_name == name:
                held = parameter.sharded_param
                parameter._sharding_spec, parameter._spmd_placements = spec, spec.placements
                parameter.sharded_param = parameter_of(held._local_tensor, spec, held.requires_grad)
                parameter._setattr_on_modules(parameter.sharded_param)


def functional(name: str) -> Any:
    """A collective that gives a new tensor and that ``torch.compile`` looks into; it is there after ``wait_tensor``.

    The operators (``_c10d_functional``) have no public name that takes a group by its name. Seen in torch 2.11 to 2.13.
    """
    return getattr(torch.ops._c10d_functional, name).default


def gather_stacked(group: Any, result: torch.Tensor, block: torch.Tensor) -> None:
    """All-gathers equal blocks into ``result``, one under the other, and waits.

    The group's own method (``_allgather_base``): the public function around it logs and checks for as long as a small
    gather itself takes. Seen in torch 2.11 to 2.13.
    """
    group._allgather_base(result, block).wait()


def send(group: Any, given: torch.Tensor, to: int, tag: int) -> Any:
    """Starts to send a tensor to a member of a group, by its place there; the work to wait for.

    The group's own method, as is that of ``receive``: a model's weights are many messages, and the public function
    around it looks a group up for each. Seen in torch 2.11 to 2.13.
    """
    return group.send([given], to, tag)


def receive(group: Any, room: torch.Tensor, source: int, tag: int) -> Any:
    """Starts to fill a tensor with what a member of a group sends; the work to wait for."""
    return group.recv([room], source, tag)


def dtensor_transitions(
    sizes: tuple[int, ...], shape: tuple[int, ...], source: list[Any], target: list[Any], *, least_cost: bool
) -> list[tuple[int, Any, Any]]:
    """The (mesh dim, placement before, placement after) steps by which DTensor would redistribute a tensor.

    ``least_cost`` asks its graph-based planner, else its default one does it. There is no public way to ask for a plan
    without ranks: it stands on a process group that sends nothing (``fake``), which must not be beside a real one.
    Seen in torch 2.13.
    """

    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import _redistribute
    from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
    from torch.testing._internal.distributed.fake_pg import FakeStore

    world = math.prod(sizes)
    if dist.is_initialized() and dist.get_world_size() != world:
        dist.destroy_process_group()
    if not dist.is_initialized():
        dist.init_process_group("fake", rank=0, world_size=world, store=FakeStore())
    mesh = _plain_mesh(sizes)
    assert isinstance(mesh, DeviceMesh)
    strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    meta = TensorMeta(torch.Size(shape), tuple(strides), torch.float32)
    before, after = (DTensorSpec(mesh, tuple(p), tensor_meta=meta) for p in (source, target))
    made = _redistribute._gen_transform_infos_non_cached(before, after, use_graph_based_transform=least_cost)
    return [(step.mesh_dim, *step.src_dst_placements) for step in made]


@lru_cache(maxsize=8)
def _plain_mesh(sizes: tuple[int, ...]) -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", sizes)


def real_mesh(mesh: Any) -> Any:
    """A ``DeviceMesh`` as such: to a function that torch.compile runs while it traces, it comes wrapped.

    The wrapper (``FakeScriptObject``) keeps it as ``real_obj``. Seen in torch 2.13.
    """
    return getattr(mesh, "real_obj", mesh)


def is_empty(tensor: torch.Tensor) -> bool:
    """Is a tensor, or a DTensor's block, on the meta device? (A DTensor's own ``is_meta`` is not its block's.)"""
    return bool(getattr(tensor, "_local_tensor", tensor).is_meta)
