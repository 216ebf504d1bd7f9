"""Routes: a crossing from one layout to another made ready for tensors of one kind, and its gradient.

A tensor comes as a DTensor, as a handle of ours, or as a bare local block, and leaves as one of them. DTensors and
handles are global values: the gradient of a value does not depend on the parts that stand for it. A bare block is
itself: each part of a pending average counts ``1/n`` in it, and its gradient has the layout that ``grad`` says.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache
from typing import Any, Literal

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate

from shardlang.diagnostics import ShardlangError, sl04_plans, sl07_runtime
from shardlang.layout import Layout
from shardlang.lower import torch_private
from shardlang.lower.placements import layout_of, mesh_of, placements_of
from shardlang.plan.plan import dual
from shardlang.plan.search import plan_transition
from shardlang.runtime import groups
from shardlang.runtime.distributed import ReadyPlan, Running, ready
from shardlang.runtime.specs import dtype_name, team_of

Kind = Literal["dtensor", "handle", "block"]


class Route:
    """From ``source`` on one device mesh to ``target`` on another, or on the same.

    ``grad_in`` is the layout in which the gradient of a bare block or handle comes, ``grad_out`` the one in which the
    gradient of the source leaves. ``known`` are the placements under which a DTensor came, and those under which one is
    to leave, where its layout has none of its own: a gradient goes back under those of the value.
    """

    def __init__(
        self,
        source: Layout,
        target: Layout,
        meshes: tuple[DeviceMesh, DeviceMesh],
        dtype: torch.dtype,
        kinds: tuple[Kind, Kind],
        grads: tuple[Layout | None, Layout | None] = (None, None),
        alias: bool = False,
        known: tuple[tuple[Placement, ...] | None, tuple[Placement, ...] | None] = (None, None),
    ) -> None:
        self.source, self.target, self.meshes, self.dtype = source, target, meshes, dtype
        self.given, self.made = kinds
        self.grad_in = grads[0] or dual(target)
        self.grad_out = grads[1] or dual(source)
        self.alias = alias
        self._known = known[0]
        self.unsaid: tuple[str, ...] = ()
        """Axes over which a bare block becomes whole on the way, with no word on the gradient: none may be wanted."""
        self._ready: ReadyPlan | None = None
        self._back: dict[object, Route] = {}
        self.spec: Any = None
        if self.made == "dtensor":
            placements = placements_of(target) or known[1]
            if placements is None:
                raise ShardlangError(sl07_runtime.not_a_dtensor(str(target)))
            self.spec = torch_private.dtensor_spec(meshes[1], placements, target.shape, _strides(target.shape), dtype)
        devices = {m.device_type for m in meshes}
        self._to = meshes[1].device_type if len(devices) > 1 else None
        averaged = _averaged(target) if self.made == "block" else 1, _averaged(source) if self.given == "block" else 1
        self._factor = Fraction(*averaged)

    def demand_said(self, requires_grad: bool) -> None:
        """Raises SL0711 where a gradient is wanted of a value that leaves whole and does not say what its is."""
        if self.unsaid and requires_grad and torch.is_grad_enabled():
            raise ShardlangError(sl07_runtime.local_without_grad(str(self.target), self.unsaid, asked=False))

    def plan(self) -> ReadyPlan:
        """The plan, prepared; made when it is first needed, so that a route can be had without ranks agreeing on it."""
        found = self._ready
        if found is None or found.token is not groups.token():
            plan = plan_transition(self.source, self.target, dtype_name(self.dtype))
            found = self._ready = ready(plan, team_of(*dict.fromkeys(self.meshes)))
        return found

    def move(self, x: torch.Tensor) -> torch.Tensor:
        """The tensor under the target, outside autograd."""
        block = torch_private.block_of(x) if self.given == "dtensor" else x
        if block.requires_grad and torch.is_grad_enabled():
            with torch.no_grad():
                return self.wrap(self.plan().run(block, self.alias), False)
        return self.wrap(self.plan().run(block, self.alias), False)

    def start(self, x: torch.Tensor, out: torch.Tensor | None = None, check: bool | None = None) -> Running:
        """Starts the crossing of the local block of ``x``."""
        block = torch_private.block_of(x) if self.given == "dtensor" else x
        return self.plan().start(block, out, check, self.alias)

    def wrap(self, block: torch.Tensor, requires_grad: bool) -> torch.Tensor:
        """The local result as what it is to leave as."""
        if self._to is not None:
            block = block.to(self._to)
        if self.spec is None:
            return block
        return torch_private.dtensor_of(block, self.spec, requires_grad)

    def back(self, grad: torch.Tensor) -> tuple[Route, Fraction]:
        """The route of the gradient, from the layout that it comes in, and what to multiply it by."""
        for side in (self.source, self.target):
            for owed in side.owed():
                if owed.op in ("max", "min") and "block" in (self.given, self.made):
                    raise ShardlangError(sl04_plans.no_dual(owed.axis, owed.op, str(side)))
        made = isinstance(grad, DTensor)
        key = torch_private.spec_of(grad) if made else None
        found = self._back.get(key)
        if found is None:
            came = _layout(grad) if made else self.grad_in
            mesh = grad.device_mesh if isinstance(grad, DTensor) else self.meshes[1]
            if not made and self.made == "dtensor":
                raise TypeError("the gradient of a DTensor is one")
            kinds: tuple[Kind, Kind] = ("dtensor" if made else self.made), self.given
            back = None if self._known is None else tuple(Replicate() if p.is_partial() else p for p in self._known)
            meshes = mesh, self.meshes[0]
            found = Route(came, self.grad_out, meshes, grad.dtype, kinds, alias=True, known=(None, back))
            self._back[key] = found
        return found, self._factor


class Move(torch.autograd.Function):
    """A route on autograd's graph; its backward is the route of the gradient, on the graph too."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, route: Route) -> torch.Tensor:
        ctx.route = route
        ctx.set_materialize_grads(False)
        block = torch_private.block_of(x) if route.given == "dtensor" else x
        return route.wrap(route.plan().run(block, route.alias), True)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor | None) -> Any:
        if grad is None:
            return None, None
        route, factor = ctx.route.back(grad)
        if factor != 1:
            grad = grad * (factor.numerator / factor.denominator)
        return travel(grad, route), None


def travel(x: torch.Tensor, route: Route) -> torch.Tensor:
    """Takes a tensor along a route; differentiable where it needs a gradient."""
    if x.requires_grad and torch.is_grad_enabled():
        result: torch.Tensor = Move.apply(x, route)  # type: ignore[no-untyped-call]  # torch has no types for it
        return result
    return route.move(x)


def _layout(x: torch.Tensor) -> Layout:
    """The layout of a DTensor."""
    assert isinstance(x, DTensor)
    return layout_of(mesh_of(x.device_mesh), tuple(x.placements), tuple(x.shape))


def _averaged(layout: Layout) -> int:
    return math.prod(layout.mesh.axis(p.axis).size for p in layout.owed() if p.op == "avg")


@lru_cache(maxsize=1 << 10)
def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, inner = [], 1
    for size in reversed(shape):
        strides.append(inner)
        inner *= max(size, 1)
    return tuple(reversed(strides))


__all__ = ["Kind", "Move", "Route", "travel"]
