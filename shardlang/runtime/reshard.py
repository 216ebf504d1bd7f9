"""``sl.reshard``: a tensor in another layout, by the cheapest plan; differentiable, twice and more."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement

from shardlang.check.program import TensorSpec
from shardlang.diagnostics import ShardlangError, sl07_runtime
from shardlang.layout import Layout
from shardlang.lower import torch_private
from shardlang.lower.placements import changes, mesh_of, placements_of
from shardlang.lower.placements import layout_of as layout_at
from shardlang.mesh import Mesh
from shardlang.runtime import opaque
from shardlang.runtime.distributed import Running
from shardlang.runtime.handle import ShardTensor
from shardlang.runtime.route import Kind, Route, travel
from shardlang.runtime.specs import Spec, global_shape, gradient_layout, layout_for, str_of, team_of, tensor_spec
from shardlang.trace import capture

_KEPT = 4096
_NO_GRAPH = "`out=` does not enter autograd's graph: use torch.no_grad(), or leave it out"
_routes: OrderedDict[Any, Route] = OrderedDict()


class Transfer:
    """A reshard under way (``async_op=True``). ``wait`` gives the result; the source must not change before."""

    def __init__(self, route: Route, running: Running) -> None:
        self._route, self._running = route, running

    def wait(self) -> Any:
        with torch.no_grad():
            return dressed(self._route, self._route.wrap(self._running.wait(), False))


class Arrived:
    """A reshard in a graph of ``torch.compile``, where the compiler decides what runs while it is under way."""

    def __init__(self, result: torch.Tensor) -> None:
        self._result = result

    def wait(self) -> torch.Tensor:
        return self._result


def reshard(
    x: torch.Tensor | ShardTensor,
    spec: Spec,
    mesh: DeviceMesh | None = None,
    source: Spec | None = None,
    *,
    shape: tuple[int, ...] | None = None,
    out: Any = None,
    async_op: bool = False,
    alias: bool = False,
    check: bool | None = None,
) -> Any:
    """The same tensor under ``spec``.

    A DTensor (or a handle) gives a DTensor, or a ``ShardTensor`` where no placements say the layout; ``mesh`` takes it
    to another mesh. A plain tensor is this rank's block under ``source`` on ``mesh``, and gives the block under
    ``spec``; ``shape`` is the whole tensor's, where the block and ``source`` do not say it. As it leaves the global
    view, ``spec`` must say the gradient (``[n d] grad [n d]``, or ``grad {+tp}`` where ranks use their copies
    differently) of a block that is whole over an axis only then. All ranks of the meshes must call, in the same order.

    The result shares no storage with ``x`` unless ``alias`` allows it. ``out`` (a tensor like the result, or its local
    block) receives it. With ``async_op`` a ``Transfer`` is returned while the first transfer is under way; neither of
    the two enters autograd's graph. ``check``: whether ranks agree before the first use (see ``agreement``).

    Raises ShardlangError: whatever is wrong in a spec; SL0701 to SL0703, SL0707, SL0709 to SL0711, SL0717; SL04
    where there is no plan.
    """
    if capture.intercepts() and isinstance(x, torch.Tensor) and not isinstance(x, DTensor):
        return capture.mark(x, spec)
    if torch.compiler.is_compiling() and not isinstance(x, ShardTensor):
        return _compiled(x, spec, mesh, source, shape, out, async_op)
    if isinstance(x, DTensor) and not async_op and out is None and check is None:
        known = _routes.get((spec, torch_private.spec_of(x), mesh, alias, changes()))
        if known is not None and known.made == "dtensor":
            return travel(x, known)
    route = route_of(x, spec, mesh, source, shape, alias)
    tensor = x.block if isinstance(x, ShardTensor) else x
    if async_op:
        with torch.no_grad():
            return Transfer(route, route.start(tensor, _room(out, route), check))
    if out is not None or check is not None:
        if out is not None and tensor.requires_grad and torch.is_grad_enabled():
            raise RuntimeError(_NO_GRAPH)
        with torch.no_grad():
            result = route.wrap(route.start(tensor, _room(out, route), check).wait(), False)
        return out if out is not None else dressed(route, result)
    route.demand_said(tensor.requires_grad)
    return dressed(route, travel(tensor, route))


def _compiled(
    x: Any,
    spec: Spec,
    mesh: DeviceMesh | None,
    source: Spec | None,
    shape: tuple[int, ...] | None,
    out: Any,
    async_op: bool,
) -> Any:
    """Inside a graph of torch.compile: one operator, and no break of the graph. ``alias``, ``check`` do not count."""
    graded = torch.is_grad_enabled() and x.requires_grad and not async_op
    if graded and out is not None:
        raise RuntimeError(_NO_GRAPH)
    with torch.set_grad_enabled(graded):
        if isinstance(x, DTensor):
            number, end = opaque.settled(x, spec, mesh)
            block = opaque.travel_compiled(x.to_local(), number)
            result: torch.Tensor = opaque.as_dtensor(block, x, *end)
        else:
            number = settled_block(spec, source, mesh, x.shape, x.dtype, shape, graded)
            result = block = opaque.travel_compiled(x, number)
        if out is not None:
            result = _filled(out, block, spec, tuple(result.placements) if isinstance(result, DTensor) else None)
    return Arrived(result) if async_op else result


def _filled(
    out: torch.Tensor, block: torch.Tensor, spec: Spec, placements: tuple[Placement, ...] | None
) -> torch.Tensor:
    """``out`` with a block in it, in a compiled graph. ``placements``: the result's, where it has them."""
    if not isinstance(out, DTensor):
        if out.shape != block.shape or out.dtype != block.dtype:
            raise ShardlangError(sl07_runtime.out_differs(str_of(spec), _words(out), _words(block)))
        return out.copy_(block)
    mesh, theirs = out.device_mesh, tuple(out.placements)
    room = out.to_local()
    if room.shape != block.shape or out.dtype != block.dtype or placements not in (None, theirs):
        raise ShardlangError(sl07_runtime.out_differs(str_of(spec), _words(room, theirs), _words(block, placements)))
    return out.copy_(DTensor.from_local(block, mesh, theirs, run_check=False, shape=out.shape, stride=out.stride()))


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]  # torch leaves it untyped
def settled_block(
    spec: Spec,
    source: Spec | None,
    mesh: Any,
    local: torch.Size,
    dtype: torch.dtype,
    shape: tuple[int, ...] | None,
    wanted: bool,
) -> int:
    """The number of the route of a bare block of a shape and dtype, of which a gradient is ``wanted`` or not."""
    block = torch.empty(local, dtype=dtype, device="meta")
    route = route_of(block, spec, torch_private.real_mesh(mesh), source, shape, False)
    route.demand_said(wanted)
    return opaque.number_of(route)


def dressed(route: Route, result: torch.Tensor) -> Any:
    """A local result of a handle's kind as the handle."""
    return ShardTensor(result, route.target, route.meshes[1]) if route.made == "handle" else result


def _room(out: Any, route: Route) -> torch.Tensor | None:
    """The block of ``out``. Raises SL0717 where it is not like the result of a route."""
    if out is None:
        return None
    target, rank = route.target, route.plan().team.logical(dist.get_rank())
    block: torch.Tensor = out.block if isinstance(out, ShardTensor) else out
    said: Any = None
    alike = True
    if isinstance(out, DTensor):
        block, said = torch_private.block_of(out), tuple(out.placements)
        same = tuple(out.shape) == target.shape and route.spec is not None and said == tuple(route.spec.placements)
        alike = same or layout_of(out) == target
    elif isinstance(out, ShardTensor):
        alike = out.layout == target
    due = target.local_shape(rank) if rank in target.mesh.ranks else (0,)
    if not alike or tuple(block.shape) != due or block.dtype != route.dtype:
        wanted = block.new_empty(due, dtype=route.dtype, device="meta")
        placements = None if route.spec is None else tuple(route.spec.placements)
        raise ShardlangError(sl07_runtime.out_differs(str(target), _words(block, said), _words(wanted, placements)))
    return block


def _words(block: torch.Tensor, placements: Any = None) -> str:
    """What a block is, for messages."""
    under = "" if placements is None else f" under {', '.join(map(str, placements))}"
    return f"a block of {tuple(block.shape)} {str(block.dtype).removeprefix('torch.')}{under}"


def route_of(
    x: torch.Tensor | ShardTensor,
    spec: Spec,
    mesh: DeviceMesh | None,
    source: Spec | None,
    shape: tuple[int, ...] | None,
    alias: bool,
) -> Route:
    """The route of a call, from the cache where there was one like it."""
    key: Any
    if isinstance(x, DTensor):
        key = (spec, torch_private.spec_of(x), mesh, alias, changes())
    elif isinstance(x, ShardTensor):
        key = (spec, x.layout, x.device_mesh, x.dtype, mesh, alias, changes())
    else:
        key = (spec, source, mesh, x.shape, x.dtype, shape, alias, changes())
    found = _routes.get(key)
    if found is None:
        found = _made(x, spec, mesh, source, shape, alias)
        if isinstance(x, DTensor | ShardTensor) or shape is not None or not _asks(found):
            _routes[key] = found
            if len(_routes) > _KEPT:
                _routes.popitem(last=False)
    return found


def _asks(route: Route) -> bool:
    """Was the shape of the whole asked of the other ranks? Then it may be another one next time."""
    return any(c.uneven for d in route.source.dims for c in d.flat)


def _made(
    x: torch.Tensor | ShardTensor,
    spec: Spec,
    mesh: DeviceMesh | None,
    source: Spec | None,
    shape: tuple[int, ...] | None,
    alias: bool,
) -> Route:
    if isinstance(x, DTensor | ShardTensor):
        here = x.device_mesh
        there = mesh or here
        if isinstance(x, ShardTensor):
            start = x.layout
        else:
            start = layout_at(mesh_of(here), tuple(x.placements), tuple(x.shape))
        target = layout_for(spec, tuple(x.shape), mesh_of(there), x.dtype)
        made: Kind = "handle" if placements_of(target) is None else "dtensor"
        given: Kind = "handle" if isinstance(x, ShardTensor) else "dtensor"
        came = None if isinstance(x, ShardTensor) else tuple(x.placements)
        return Route(start, target, (here, there), x.dtype, (given, made), alias=alias, known=(came, None))
    if mesh is None:
        raise ShardlangError(sl07_runtime.no_mesh(str_of(spec)))
    if source is None:
        raise ShardlangError(sl07_runtime.no_source(tuple(x.shape)))
    ours = mesh_of(mesh)
    whole = shape or global_shape(source, tuple(x.shape), ours, team_of(mesh), ask=False)
    start, target = layout_for(source, whole, ours, x.dtype), layout_for(spec, whole, ours, x.dtype)
    grads = gradient_layout(spec, whole, ours), gradient_layout(source, whole, ours)
    route = Route(start, target, (mesh, mesh), x.dtype, ("block", "block"), grads, alias)
    if not _says_gradient(spec, ours):
        route.unsaid = tuple(a for a in target.whole_axes() if a not in start.whole_axes() and ours.axis(a).size > 1)
    return route


def _says_gradient(spec: Spec, mesh: Mesh) -> bool:
    checked = tensor_spec(spec, mesh) if isinstance(spec, str) else spec
    return isinstance(checked, TensorSpec) and checked.grad is not None


def placed(x: DTensor, placements: Sequence[Placement]) -> DTensor:
    """A DTensor under other placements of its mesh: what its own ``redistribute`` gives, by a plan of ours."""
    wanted = tuple(placements)
    if wanted == tuple(x.placements):
        return x
    moved: DTensor = reshard(x, layout_at(mesh_of(x.device_mesh), wanted, tuple(x.shape)))
    return moved


def layout_of(x: DTensor | ShardTensor) -> Layout:
    """The layout of a tensor on a mesh."""
    if isinstance(x, ShardTensor):
        return x.layout
    return layout_at(mesh_of(x.device_mesh), tuple(x.placements), tuple(x.shape))


def local(x: DTensor | ShardTensor, grad: Spec | None = None) -> torch.Tensor:
    """This rank's block, as an ordinary tensor: the value leaves the global view.

    ``grad`` is the layout of the gradient that comes back: ``"[n]{+dp}"`` where ranks use a whole value differently,
    ``"[n]"`` where all do the same with it. The block shares storage with ``x``.

    Raises ShardlangError (SL0711) where the value is whole over some axis and ``grad`` is not given, unless no gradient
    is wanted.
    """
    here = layout_of(x)
    free = here.whole_axes()
    tensor = x.block if isinstance(x, ShardTensor) else x
    wanted = tensor.requires_grad and torch.is_grad_enabled()
    if grad is None and free and wanted:
        raise ShardlangError(sl07_runtime.local_without_grad(str(here), free))
    comes = None if grad is None else layout_for(grad, here.shape, here.mesh)
    kind: Kind = "handle" if isinstance(x, ShardTensor) else "dtensor"
    meshes = (x.device_mesh, x.device_mesh)
    return travel(tensor, Route(here, here, meshes, tensor.dtype, (kind, "block"), (comes, None), alias=True))
