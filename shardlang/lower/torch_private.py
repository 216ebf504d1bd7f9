"""The private parts of torch that shardlang touches, each with its reason and the versions it was seen in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx


def trace_graph(function: Callable[..., Any], arguments: list[torch.Tensor], on_node: Callable[[fx.Node], None]) -> Any:
    """``make_fx`` before dispatch, with ``on_node`` called for each node as the user's code makes it.

    ``make_fx`` keeps stack traces for frames called ``forward`` only; the tracer that runs is reached through
    ``get_proxy_mode``. Seen in torch 2.11 to 2.13.
    """
    from torch.fx.experimental.proxy_tensor import get_proxy_mode, make_fx

    def watched(*values: torch.Tensor) -> Any:
        mode = get_proxy_mode()
        assert mode is not None
        tracer: Any = mode.tracer
        create = tracer.create_node

        def create_node(*args: Any, **kwargs: Any) -> fx.Node:
            node: fx.Node = create(*args, **kwargs)
            on_node(node)
            return node

        tracer.create_node = create_node
        try:
            return function(*values)
        finally:
            del tracer.create_node

    return make_fx(watched, pre_dispatch=True, tracing_mode="real")(*arguments)


def fake_mode() -> Any:
    """A mode in which tensors have shapes and no storage; tensors from outside are let in, to be told apart later.

    Seen in torch 2.11 to 2.13.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode(allow_non_fake_inputs=True)


def data_dependent_errors() -> tuple[type[Exception], type[Exception]]:
    """What a fake tensor raises for ``.item()`` and the like, and for results whose shape depends on values.

    Seen in torch 2.11 to 2.13.
    """
    from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

    return DataDependentOutputException, DynamicOutputShapeException


def retire_group(group: Any) -> None:
    """Destroys a process group and keeps its name taken.

    A group made by ``new_group(use_local_synchronization=True)`` is named after its ranks; a later one of the same
    ranks would meet the first one's addresses in the store. ``new_group`` passes over names that are in use
    (``_world.pg_names``), so the name stays there, of a ``_Retired``. Seen in torch 2.11 to 2.13.
    """
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import _world

    name = _world.pg_names.get(group)
    dist.destroy_process_group(group)
    if name is not None:
        retired: Any = _Retired()
        _world.pg_names[retired] = name


class _Retired:
    """Keeps a name taken; ``destroy_process_group`` of the default group shuts down whatever has one."""

    def shutdown(self) -> None:
        """There is nothing left to shut down."""


def is_stale(mesh: Any) -> bool:
    """Do the process groups of a ``DeviceMesh`` belong to a default group that is no more?

    A mesh keeps the names of its groups (``_dim_group_names``), which are looked up when they are used. Seen in torch
    2.11 to 2.13.
    """
    try:
        return any(mesh.get_group(i) is None for i in range(mesh.ndim))
    except (RuntimeError, ValueError, KeyError):
        return True


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


def dtensor_spec(mesh: Any, placements: tuple[Any, ...], shape: Any, stride: Any, dtype: torch.dtype) -> Any:
    """The record that a DTensor keeps of itself; made once and shared by all DTensors that it describes.

    ``DTensor.from_local`` makes it anew at each call, and enters autograd with a backward of its own. Seen in torch
    2.11 to 2.13.
    """
    from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

    meta = TensorMeta(torch.Size(shape), tuple(stride), dtype)
    return DTensorSpec(mesh, placements, tensor_meta=meta)


def dtensor_of(local: torch.Tensor, spec: Any, requires_grad: bool) -> torch.Tensor:
    """A DTensor of a local block and its record, without autograd. Seen in torch 2.11 to 2.13."""
    from torch.distributed.tensor import DTensor

    made: torch.Tensor = DTensor(local, spec, requires_grad=requires_grad)
    return made


def spec_of(tensor: Any) -> Any:
    """The record that a DTensor keeps of itself (``_spec``); hashable. Seen in torch 2.11 to 2.13."""
    return tensor._spec


def block_of(tensor: Any) -> torch.Tensor:
    """A DTensor's local block itself, outside autograd (``_local_tensor``). Seen in torch 2.11 to 2.13."""
    block: torch.Tensor = tensor._local_tensor
    return block


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


def is_composite(op: torch._ops.OpOverload) -> bool:
    """Does torch make this operator of others, also under autograd? Seen in torch 2.11 to 2.13."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "CompositeImplicitAutograd")


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
