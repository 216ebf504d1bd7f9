"""``sl.reshard_many``: many tensors, the small ones packed, so that collectives grow with groups, not tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from shardlang.runtime import opaque
from shardlang.runtime.handle import ShardTensor
from shardlang.runtime.packing import move_many
from shardlang.runtime.reshard import dressed, route_of, settled_block
from shardlang.runtime.route import Route
from shardlang.runtime.specs import Spec


def reshard_many(
    tensors: Sequence[torch.Tensor | ShardTensor],
    specs: Sequence[Spec] | Spec,
    mesh: DeviceMesh | None = None,
    sources: Sequence[Spec] | Spec | None = None,
    *,
    alias: bool = False,
    check: bool | None = None,
) -> list[Any]:
    """Each tensor under its spec (or all under one): as ``reshard`` of each, in fewer collectives. Differentiable.

    The results share no storage with the tensors unless ``alias`` allows it, as for those that are in place already.
    All ranks must call with the same tensors in the same order. In a graph of ``torch.compile`` it is one operator,
    unless handles are among them; ``alias`` and ``check`` are not looked at there.
    """
    count = len(tensors)
    wanted = [specs] * count if isinstance(specs, str) or not isinstance(specs, Sequence) else list(specs)
    given = [sources] * count if isinstance(sources, str) or not isinstance(sources, Sequence) else list(sources)
    if torch.compiler.is_compiling() and not any(isinstance(x, ShardTensor) for x in tensors):
        return _compiled(tensors, wanted, mesh, given)
    routes = [
        route_of(x, spec, mesh, source, None, alias) for x, spec, source in zip(tensors, wanted, given, strict=True)
    ]
    bare = [x.block if isinstance(x, ShardTensor) else x for x in tensors]
    if torch.is_grad_enabled() and any(x.requires_grad for x in bare):
        for route, x in zip(routes, bare, strict=True):
            route.demand_said(x.requires_grad)
        results: Sequence[torch.Tensor] = MoveMany.apply(routes, *bare)  # type: ignore[no-untyped-call]  # torch's
    else:
        results = move_many(routes, bare, check)
    return [dressed(route, result) for route, result in zip(routes, results, strict=True)]


def _compiled(tensors: Sequence[Any], specs: list[Spec], mesh: DeviceMesh | None, sources: list[Any]) -> list[Any]:
    """Inside a graph of torch.compile: one operator for all of them, and no break of the graph."""
    blocks, numbers, ends = [], [], []
    for x, spec, source in zip(tensors, specs, sources, strict=True):
        if isinstance(x, DTensor):
            number, end = opaque.settled(x, spec, mesh)
            blocks.append(x.to_local())
        else:
            graded = x.requires_grad and torch.is_grad_enabled()
            number, end = settled_block(spec, source, mesh, x.shape, x.dtype, None, graded), None
            blocks.append(x)
        numbers.append(number)
        ends.append(end)
    wanted = [block.requires_grad for block in blocks]
    # An operator's results all want gradients where one does.
    results = torch.ops.shardlang.travel_many(blocks, numbers, wanted)
    due = [r if wants else r.detach() for r, wants in zip(results, wanted, strict=True)]
    return [
        block if end is None else opaque.as_dtensor(block, x, *end)
        for x, block, end in zip(tensors, due, ends, strict=True)
    ]


class MoveMany(torch.autograd.Function):
    """Many routes on autograd's graph; the gradients go back together, packed as well."""

    @staticmethod
    def forward(ctx: Any, routes: list[Route], *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.routes = routes
        ctx.set_materialize_grads(False)
        moved = move_many(routes, tensors, None, [x.requires_grad for x in tensors])
        ctx.mark_non_differentiable(*[m for m, x in zip(moved, tensors, strict=True) if not x.requires_grad])
        return tuple(moved)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        back, given, at = [], [], []
        for i, grad in enumerate(grads):
            if grad is not None and ctx.needs_input_grad[i + 1]:
                route, factor = ctx.routes[i].back(grad)
                back.append(route)
                given.append(grad if factor == 1 else grad * (factor.numerator / factor.denominator))
                at.append(i)
        results: list[torch.Tensor | None] = [None] * len(grads)
        if back:
            for i, result in zip(at, MoveMany.apply(back, *given), strict=True):  # type: ignore[no-untyped-call]
                results[i] = result
        return None, *results
