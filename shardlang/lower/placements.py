"""Layouts and DTensor placements: to and fro, exactly or not at all; device meshes with a mesh's axis names.

A DTensor's placements say, for each mesh dim, ``Shard(d)``, ``Replicate()`` or ``Partial(op)``; dims that split one
tensor dim nest left to right in ``torch.chunk``'s way. A layout has placements when it says the same of every rank.
Other blocks of parameters are carried under the names of ``lower.strided``.
"""

from __future__ import annotations

import math
import weakref
from functools import lru_cache

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Partial, Placement, Replicate, Shard

from shardlang.diagnostics import ShardlangError, sl07_runtime
from shardlang.layout import Cut, Dim, Factor, Layout, Pending, ReduceOp
from shardlang.lower import strided, torch_private
from shardlang.mesh import Axis, Mesh

_OPS: dict[str, ReduceOp] = {"sum": "sum", "avg": "avg", "max": "max", "min": "min"}
_meshes: weakref.WeakKeyDictionary[DeviceMesh, Mesh] = weakref.WeakKeyDictionary()
_ranks: weakref.WeakKeyDictionary[DeviceMesh, tuple[int, ...]] = weakref.WeakKeyDictionary()
_changes = 0
_device_meshes: dict[tuple[Mesh, str], tuple[DeviceMesh, object]] = {}
"""Each with the default process group that it hangs on: a new one makes it stale, on all ranks alike."""


def device_mesh(mesh: Mesh, device_type: str = "cpu") -> DeviceMesh:
    """The ``DeviceMesh`` of a mesh, with the same axis names; one object a mesh and device type.

    All ranks of the launch must ask. Raises ShardlangError where there is no launch (SL0714), or one of fewer ranks
    than the mesh (SL0705).
    """
    if not torch.distributed.is_initialized():
        raise ShardlangError(sl07_runtime.no_process_group(mesh.name))
    world = torch.distributed.get_world_size()
    if mesh.ranks.stop > world:
        raise ShardlangError(sl07_runtime.too_few_ranks(mesh.name, str(mesh), mesh.ranks.stop, world))
    key = (mesh, device_type)
    found, launch = _device_meshes.get(key, (None, None))
    if found is None or launch is not torch.distributed.group.WORLD:
        ranks = torch.tensor(list(mesh.ranks), dtype=torch.int).reshape([a.size for a in mesh.axes])
        found = DeviceMesh(device_type, ranks, mesh_dim_names=tuple(a.name for a in mesh.axes))
        _device_meshes[key] = found, torch.distributed.group.WORLD
        remember(found, mesh)
    return found


def remember(torch_mesh: DeviceMesh, mesh: Mesh) -> None:
    """Says that a ``DeviceMesh``, and each that is equal to it, stands for a mesh (links and sub-axes) from now on."""
    global _changes
    before = _meshes.pop(torch_mesh, mesh)  # lest the entry live as long as an older ``DeviceMesh`` that is equal
    _changes += before != mesh
    _meshes[torch_mesh] = mesh


def changes() -> int:
    """How often a ``DeviceMesh`` has come to stand for another mesh: what was kept for it before then is stale."""
    return _changes


def mesh_of(torch_mesh: DeviceMesh) -> Mesh:
    """The mesh that a ``DeviceMesh`` stands for.

    One that we did not make has axes named as its dims (or d0, d1, ..), and torch's ranks where they follow each other.
    """
    mesh = _meshes.get(torch_mesh)
    if mesh is None:
        names = torch_mesh.mesh_dim_names or tuple(f"d{i}" for i in range(torch_mesh.ndim))
        axes = tuple(Axis(n, s) for n, s in zip(names, torch_mesh.shape, strict=True))
        ranks = ranks_of(torch_mesh)
        mesh = Mesh("mesh", axes, first_rank=ranks[0] if ranks == tuple(range(ranks[0], ranks[0] + len(ranks))) else 0)
        _meshes[torch_mesh] = mesh
    return mesh


def layout_of(mesh: Mesh, placements: tuple[Placement, ...], shape: tuple[int, ...]) -> Layout:
    """The layout that placements give a tensor of this global shape.

    Raises ShardlangError for placements of a kind that no layout has.
    """
    cuts: dict[int, list[tuple[str, int]]] = {}
    pending: list[Pending] = []
    for axis, placement in zip(mesh.axes, placements, strict=True):
        if type(placement) is Partial and placement.reduce_op in _OPS:
            pending.append(Pending(axis.name, _OPS[placement.reduce_op]))
        elif isinstance(placement, Shard) or torch_private.is_strided_shard(placement):
            dim = placement.dim  # type: ignore[attr-defined]  # both kinds have it
            cuts.setdefault(dim % max(len(shape), 1), []).append((axis.name, torch_private.split_factor(placement)))
        elif not isinstance(placement, Replicate):
            raise ShardlangError(sl07_runtime.unknown_placement(axis.name, str(placement)))
    dims = tuple(_said(mesh, size, cuts.get(d, [])) for d, size in enumerate(shape))
    return Layout(mesh, dims, tuple(pending))


def _said(mesh: Mesh, size: int, cuts: list[tuple[str, int]]) -> Dim:
    """The dim that placements with split factors say. Torch's are in mesh order."""
    if all(factor == 1 for _, factor in cuts):
        return _dim(mesh, size, [name for name, _ in cuts])
    dim = strided.dim_of(mesh, size, cuts)
    if dim is not None:
        return dim
    order = _in_order(mesh, cuts)
    if order is not None:
        return _dim(mesh, size, order)
    last = max(i for i, (_, factor) in enumerate(cuts) if factor != 1) + 1
    dim = strided.dim_of(mesh, size, cuts[:last])
    if dim is None:
        name, factor = cuts[last - 1]
        raise ShardlangError(sl07_runtime.unknown_placement(name, f"_StridedShard(split_factor={factor})"))
    # Pieces that lie apart, cut as if they lay together: a cut of the flattened local dim.
    flat = _dim(mesh, size // math.prod(mesh.axis(a).size for a in dim.axes()), [name for name, _ in cuts[last:]]).flat
    return Dim(dim.factors, flat)


def _in_order(mesh: Mesh, cuts: list[tuple[str, int]]) -> list[str] | None:
    """Axes major to minor: one with a split factor cuts the parts that later axes, of that many ranks, made first.

    ``None`` where a factor is no such number of ranks.
    """
    order: list[str] = []
    for name, factor in reversed(cuts):
        at = 0
        while factor > 1:
            if at == len(order) or factor % mesh.axis(order[at]).size:
                return None
            factor //= mesh.axis(order[at]).size
            at += 1
        order.insert(at, name)
    return order


def _dim(mesh: Mesh, size: int, axes: list[str]) -> Dim:
    ways = math.prod(mesh.axis(a).size for a in axes)
    return Dim((Factor(size),), tuple(Cut(a, uneven=bool(size % ways)) for a in axes))


@lru_cache(maxsize=1 << 12)
def placements_of(layout: Layout) -> tuple[Placement, ...] | None:
    """The placements that say exactly what a layout says, a mesh axis each; ``None`` where torch has none."""
    mesh = layout.mesh
    owed = {leaf: p.op for p in layout.pending for leaf in mesh.expand(p.axis)}
    where = {leaf: d for d, dim in enumerate(layout.dims) for name in dim.axes() for leaf in mesh.expand(name)}
    placements: list[Placement] = []
    for axis in mesh.axes:
        leaves = [leaf for leaf in mesh.expand(axis.name) if mesh.axis(leaf).size > 1] or [axis.name]
        dims = {where.get(leaf) for leaf in leaves}
        ops = {owed.get(leaf) for leaf in leaves}
        if len(dims) > 1 or len(ops) > 1:
            return None
        dim, op = dims.pop(), ops.pop()
        owes = op is not None and axis.size > 1  # torch's operators refuse a sum over one rank as they do any other
        placements.append(Shard(dim) if dim is not None else Partial(op) if owes else Replicate())
    result = tuple(placements)
    return result if layout_of(mesh, result, layout.shape).equivalent(layout) else None


@lru_cache(maxsize=1 << 12)
def carried(layout: Layout) -> tuple[Placement, ...]:
    """Placements under which a DTensor carries a parameter of any layout, and from which ``layout_of`` knows it again.

    Torch's own where they say it; else its strided ones, which say every even block; else (an uneven cut after those of
    factors) numbers, with which operators that act on each element alone go on, and all that moves elements raises.
    ``layout`` is on leaf axes.
    """
    exact = placements_of(layout)
    if exact is not None:
        return exact
    found: dict[str, Placement] = {p.axis: Partial(p.op) for p in layout.pending if layout.mesh.axis(p.axis).size > 1}
    for d, dim in enumerate(layout.dims):
        for axis, factor in strided.factors_of(layout.mesh, dim).items():
            found[axis] = Shard(d) if factor == 1 else torch_private.strided_shard(d, factor)
    return tuple(found.get(a.name, Replicate()) for a in layout.mesh.axes)


def ranks_of(torch_mesh: DeviceMesh) -> tuple[int, ...]:
    """Torch's ranks of a device mesh, row-major. Kept: under torch.compile's fake tensors they could not be read."""
    ranks = _ranks.get(torch_mesh)
    if ranks is None:
        ranks = _ranks[torch_mesh] = tuple(int(r) for r in torch_mesh.mesh.flatten().tolist())
    return ranks


__all__ = ["carried", "changes", "device_mesh", "layout_of", "mesh_of", "placements_of", "ranks_of", "remember"]
