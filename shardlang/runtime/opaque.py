"""Reshards inside ``torch.compile``: an operator that the compiler does not look into, on local blocks.

Which route is meant is settled while the graph is made, from placements and shapes; it goes into the graph as a number.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement

from shardlang.diagnostics import ShardlangError, sl07_runtime
from shardlang.lower import torch_private
from shardlang.lower.placements import changes, layout_of, mesh_of, placements_of, ranks_of
from shardlang.runtime.packing import move_many
from shardlang.runtime.reduce import scaled
from shardlang.runtime.route import Route
from shardlang.runtime.specs import Spec, layout_for

_numbered: list[Route] = []
_number_of: dict[Any, int] = {}
_back_of: dict[int, int] = {}


def settled(x: DTensor, spec: Spec, mesh: DeviceMesh | None) -> tuple[int, tuple[DeviceMesh, tuple[Placement, ...]]]:
    """The number of the route of a DTensor to ``spec``, and on which mesh and under which placements it ends."""
    there = x.device_mesh if mesh is None else mesh
    number, placements = _settled(spec, x.device_mesh, there, x.placements, x.shape, x.dtype)
    return number, (there, placements)


def as_dtensor(block: torch.Tensor, x: DTensor, mesh: DeviceMesh, placements: tuple[Placement, ...]) -> DTensor:
    """A block that has travelled, as the DTensor of the shape of ``x`` that it is of."""
    stride = torch_private.contiguous_stride(x.shape)
    return DTensor.from_local(block, mesh, placements, run_check=False, shape=x.shape, stride=stride)


def travel_compiled(block: torch.Tensor, number: int) -> torch.Tensor:
    """A bare block along a numbered route."""
    result: torch.Tensor = torch.ops.shardlang.travel(block, number)
    return result


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]  # torch leaves it untyped
def _settled(
    spec: Spec,
    here: Any,
    there: Any,
    placements: tuple[Placement, ...],
    shape: torch.Size,
    dtype: torch.dtype,
) -> tuple[int, tuple[Placement, ...]]:
    """The number of the route and the placements that the result has."""
    meshes = torch_private.real_mesh(here), torch_private.real_mesh(there)
    key = (spec, meshes, placements, shape, dtype, changes())
    source = layout_of(mesh_of(meshes[0]), tuple(placements), tuple(shape))
    target = layout_for(spec, tuple(shape), mesh_of(meshes[1]), dtype)
    found = placements_of(target)
    if found is None:
        raise ShardlangError(sl07_runtime.not_a_dtensor(str(target)))
    if key not in _number_of:
        # Blocks of global values: no average counts its parts.
        _number_of[key] = _add(Route(source, target, meshes, dtype, ("handle", "handle")))
    return _number_of[key], found


def number_of(route: Route) -> int:
    """The number of a route of bare blocks."""
    for number, known in enumerate(_numbered):
        if known is route:
            return number
    return _add(route)


def _add(route: Route) -> int:
    # The compiler asks for shapes under fake tensors, when ranks of a mesh cannot be read any more.
    for mesh in route.meshes:
        ranks_of(mesh)
    _numbered.append(route)
    return len(_numbered) - 1


@torch.library.custom_op("shardlang::travel", mutates_args=())
def _travel(block: torch.Tensor, number: int) -> torch.Tensor:
    route = _numbered[number]
    return route.wrap(route.plan().run(block, alias=False), False)


def _like(block: torch.Tensor, number: int) -> torch.Tensor:
    """Without a value, what comes of a block."""
    target = _numbered[number].target
    rank = _numbered[number].plan().team.logical(dist.get_rank())
    return block.new_empty(target.local_shape(rank) if rank in target.mesh.ranks else (0,))


_travel.register_fake(_like)


@torch.library.custom_op("shardlang::travel_many", mutates_args=())
def _travel_many(blocks: list[torch.Tensor], numbers: list[int], wanted: list[bool]) -> list[torch.Tensor]:
    """``wanted``: of which blocks a gradient is."""
    moved = move_many([_numbered[n] for n in numbers], blocks)
    # An operator's results share no storage with its inputs or each other, as those that were packed do.
    given = {torch_private.storage_key(block) for block in blocks}
    alone = [m.untyped_storage().nbytes() == m.nbytes and torch_private.storage_key(m) not in given for m in moved]
    return [m if fine else m.clone() for m, fine in zip(moved, alone, strict=True)]


@_travel_many.register_fake
def _(blocks: list[torch.Tensor], numbers: list[int], wanted: list[bool]) -> list[torch.Tensor]:
    return [_like(block, number) for block, number in zip(blocks, numbers, strict=True)]


def _back(number: int, grad: torch.Tensor) -> tuple[int, Fraction]:
    """The number of the route of a gradient, and what to multiply it by."""
    route, factor = _numbered[number].back(grad)
    if number not in _back_of:
        _back_of[number] = _add(route)
    return _back_of[number], factor


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.number = inputs[1]


def _backward(ctx: Any, grad: torch.Tensor) -> Any:
    number, factor = _back(ctx.number, grad)
    grad = torch.ops.shardlang.travel(grad.contiguous(), number)
    return (grad if factor == 1 else scaled(grad, factor)), None


def _setup_many(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    _, ctx.numbers, ctx.wanted = inputs
    ctx.set_materialize_grads(False)


def _backward_many(ctx: Any, grads: list[torch.Tensor | None]) -> Any:
    results: list[torch.Tensor | None] = [None] * len(grads)
    came = {
        i: g.contiguous() for i, (g, due) in enumerate(zip(grads, ctx.wanted, strict=True)) if due and g is not None
    }
    if not came:
        return results, None, None
    ways = [_back(ctx.numbers[i], grad) for i, grad in came.items()]
    numbers = [number for number, _ in ways]
    moved = torch.ops.shardlang.travel_many(list(came.values()), numbers, [True] * len(came))
    for i, grad, (_, factor) in zip(came, moved, ways, strict=True):
        results[i] = grad if factor == 1 else scaled(grad, factor)
    return results, None, None


_travel.register_autograd(_backward, setup_context=_setup)
_travel_many.register_autograd(_backward_many, setup_context=_setup_many)
