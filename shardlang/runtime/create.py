"""Tensors on a mesh, made in three ways: from a global tensor, from local blocks, and by factories.

Each gives a DTensor, or a ``ShardTensor`` where no placements say the layout. Random factories give the same values on
any mesh, for the same seed (see ``generate``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from shardlang.check.bind import bind
from shardlang.check.program import TensorSpec
from shardlang.check.sizes import evaluate, free_names
from shardlang.diagnostics import ShardlangError, sl03_layouts, sl07_runtime
from shardlang.layout import Layout, Runs
from shardlang.lower.placements import mesh_of, placements_of
from shardlang.mesh import Axis, Mesh
from shardlang.plan.search import plan_transition
from shardlang.runtime import generate
from shardlang.runtime.distributed import run_plan
from shardlang.runtime.handle import ShardTensor
from shardlang.runtime.route import Kind, Route, travel
from shardlang.runtime.seeds import next_seed
from shardlang.runtime.specs import (
    DTYPE_OF,
    Spec,
    dtype_name,
    global_shape,
    gradient_layout,
    layout_for,
    str_of,
    team_of,
    tensor_spec,
)  # fmt: skip

Maker = Callable[[tuple[Runs, ...], tuple[int, ...], torch.dtype], torch.Tensor]
"""Makes a block (its runs) of a tensor of a global shape."""


def distribute(x: torch.Tensor, spec: Spec, mesh: DeviceMesh, *, source_rank: int | None = None) -> Any:
    """A global tensor under ``spec`` on ``mesh``.

    Without ``source_rank`` every rank has the tensor (equal on all) and keeps its block: nothing is sent, and the
    gradient is whole. With it that rank's tensor counts, and each rank is sent its block; the others' tensors give
    shape and dtype only, and no gradient flows.

    Raises ShardlangError: whatever is wrong in the spec, SL0705, SL0710.
    """
    ours = mesh_of(mesh)
    target = layout_for(spec, tuple(x.shape), ours, x.dtype)
    if source_rank is None:
        whole = Layout.whole(ours, tuple(x.shape))
        route = Route(whole, target, (mesh, mesh), x.dtype, ("block", _kind(target)))
        return _dressed(travel(x, route), route)
    team = team_of(mesh)
    one = Mesh("source", (Axis("source", 1),), first_rank=team.logical(source_rank))
    plan = plan_transition(Layout.whole(one, tuple(x.shape)), target, dtype_name(x.dtype))
    mine = x if dist.get_rank() == source_rank else x.new_empty(0, device=mesh.device_type)
    return _built(run_plan(plan, mine.detach(), team=team), target, mesh)


def from_local(
    block: torch.Tensor, spec: Spec, mesh: DeviceMesh, *, shape: tuple[int, ...] | None = None, check: bool = True
) -> Any:
    """The tensor of which every rank has its block under ``spec``; shares storage with ``block``; differentiable.

    ``shape`` is the whole tensor's. Without it the ranks tell each other their blocks' shapes; ``check=False`` leaves
    that out where every split is even. The gradient of a block has the layout that the spec's ``grad`` says.

    Raises ShardlangError: SL0712 (on every rank) for blocks that make no tensor, SL0703 for one that does not fit
    ``shape``, SL0710, and whatever is wrong in the spec.
    """
    ours = mesh_of(mesh)
    whole = shape or global_shape(spec, tuple(block.shape), ours, team_of(mesh), ask=check)
    target = layout_for(spec, whole, ours, block.dtype)
    rank = team_of(mesh).logical(dist.get_rank())
    due = target.local_shape(rank)
    if tuple(block.shape) != due:
        raise ShardlangError(sl07_runtime.block_of_wrong_size(str_of(spec), tuple(block.shape), due, dist.get_rank()))
    grads = None, gradient_layout(spec, whole, ours)
    route = Route(target, target, (mesh, mesh), block.dtype, ("block", _kind(target)), grads, alias=True)
    return _dressed(travel(block, route), route)


def zeros(spec: Spec, mesh: DeviceMesh, **options: Any) -> Any:
    """A tensor of zeros under ``spec``. See ``full`` for the options."""
    return full(spec, 0, mesh, **options)


def ones(spec: Spec, mesh: DeviceMesh, **options: Any) -> Any:
    """A tensor of ones under ``spec``. See ``full`` for the options."""
    return full(spec, 1, mesh, **options)


def full(spec: Spec, value: float | bool, mesh: DeviceMesh, **options: Any) -> Any:
    """A tensor of ``value`` under ``spec``.

    Sizes stand in the spec, or come from ``sizes={"d": 8}`` or ``shape=``; the dtype from the spec, ``dtype=`` or f32.
    ``requires_grad=`` as in torch. A pending value's parts reduce to ``value``.

    Raises ShardlangError: SL0305 for a size that nothing determines, and whatever is wrong in the spec.
    """

    def make(runs: tuple[Runs, ...], shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.full(_sizes(runs), value, dtype=dtype)

    return _made(spec, mesh, make, **options)


def empty(spec: Spec, mesh: DeviceMesh, **options: Any) -> Any:
    """A tensor of any values under ``spec``. See ``full`` for the options."""

    def make(runs: tuple[Runs, ...], shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(_sizes(runs), dtype=dtype)

    return _made(spec, mesh, make, **options)


def rand(spec: Spec, mesh: DeviceMesh, *, seed: int | None = None, **options: Any) -> Any:
    """Uniform numbers in [0, 1) by seed and global index. Without ``seed``: the next of ``manual_seed``'s stream."""
    chosen = next_seed() if seed is None else seed

    def make(runs: tuple[Runs, ...], shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return generate.uniform(runs, shape, chosen, dtype)

    return _made(spec, mesh, make, **options)


def randn(spec: Spec, mesh: DeviceMesh, *, seed: int | None = None, **options: Any) -> Any:
    """Normal numbers by seed and global index. Without ``seed``: the next of ``manual_seed``'s stream."""
    chosen = next_seed() if seed is None else seed

    def make(runs: tuple[Runs, ...], shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return generate.normal(runs, shape, chosen, dtype)

    return _made(spec, mesh, make, **options)


def _made(
    spec: Spec,
    mesh: DeviceMesh,
    make: Maker,
    *,
    shape: tuple[int, ...] | None = None,
    sizes: Mapping[str, int] = {},
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    requires_grad: bool = False,
) -> Any:
    ours = mesh_of(mesh)
    target, kind = _target(spec, ours, shape, sizes, dtype)
    rank = team_of(mesh).logical(dist.get_rank())
    held = Layout(ours, target.dims)
    inside = rank in ours.ranks
    block = make(held.runs(rank), target.shape, kind) if inside else torch.empty(0, dtype=kind)
    block = block.to(device or mesh.device_type)
    if target.owed():
        block = run_plan(plan_transition(held, target, dtype_name(kind)), block, team=team_of(mesh), check=False)
    return _built(block, target, mesh, requires_grad)


def _target(
    spec: Spec, mesh: Mesh, shape: tuple[int, ...] | None, sizes: Mapping[str, int], dtype: torch.dtype | None
) -> tuple[Layout, torch.dtype]:
    """The layout and dtype of a tensor that is to be made."""
    if isinstance(spec, Layout):
        return spec, dtype or torch.float32
    checked = tensor_spec(spec, mesh) if isinstance(spec, str) else spec
    kind = dtype or (DTYPE_OF[checked.dtype] if checked.dtype else torch.float32)
    if checked.dtype is not None and dtype_name(kind) != checked.dtype:
        raise ShardlangError(sl07_runtime.dtype_differs(str_of(spec), checked.dtype, dtype_name(kind)))
    whole = _shape(checked, sizes) if shape is None else shape
    return bind(checked, whole, mesh, dict(sizes), name="the tensor"), kind


def _shape(spec: TensorSpec, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The global shape that a spec says by itself. Raises SL0305 where it does not."""
    if spec.dims is None:
        raise ShardlangError(sl03_layouts.size_undetermined(spec.span, "the tensor", [], {}))
    shape: list[int] = []
    for dim in spec.dims:
        known = [None if f.size is None else evaluate(f.size, sizes) for f in dim.factors]
        if dim.rest or None in known:
            names = [n for f in dim.factors if f.size for n in free_names(f.size) if n not in sizes]
            span = dim.span or spec.span
            raise ShardlangError(sl03_layouts.size_undetermined(span, "the tensor", list(dict.fromkeys(names)), {}))
        shape.append(math.prod(n for n in known if n is not None))
    return tuple(shape)


def _sizes(runs: tuple[Runs, ...]) -> tuple[int, ...]:
    return tuple(sum(b - a for a, b in r) for r in runs)


def _kind(target: Layout) -> Kind:
    return "handle" if placements_of(target) is None else "dtensor"


def _built(block: torch.Tensor, target: Layout, mesh: DeviceMesh, requires_grad: bool = False) -> Any:
    """A block, outside autograd, as the tensor that it is a block of."""
    kind = _kind(target)
    if kind == "handle":
        return ShardTensor(block.requires_grad_(requires_grad), target, mesh)
    route = Route(target, target, (mesh, mesh), block.dtype, ("block", kind))
    return route.wrap(block, False).requires_grad_(requires_grad)


def _dressed(result: torch.Tensor, route: Route) -> Any:
    return ShardTensor(result, route.target, route.meshes[1]) if route.made == "handle" else result


__all__ = ["distribute", "empty", "from_local", "full", "ones", "rand", "randn", "zeros"]
