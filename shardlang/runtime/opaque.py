"""Reshards inside ``torch.compile``: an operator that the compiler does not look into, on local blocks.

Which route is meant is settled while the graph is made, from placements and shapes; it goes into the graph as a number.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement

from shardlang.diagnostics import ShardlangError, sl07_runtime
from shardlang.lower import torch_private
from shardlang.lower.placements import layout_of, mesh_of, placements_of, ranks_of
from shardlang.runtime.reduce import scaled
from shardlang.runtime.route import Route
from shardlang.runtime.specs import Spec, layout_for

_numbered: list[Route] = []
_number_of: dict[Any, int] = {}
_back_of: dict[int, int] = {}


def reshard_compiled(x: DTensor, spec: Spec, mesh: DeviceMesh | None) -> DTensor:
    """What ``reshard`` of a DTensor is in a compiled graph. Raises SL0706 where no placements say the layout."""
    there = x.device_mesh if mesh is None else mesh
    number, placements = _settled(spec, x.device_mesh, there, x.placements, x.shape, x.dtype)
    block = torch.ops.shardlang.travel(x.to_local(), number)
    return DTensor.from_local(block, there, placements, run_check=False, shape=x.shape, stride=_strides(x.shape))


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
    key = (spec, meshes, placements, shape, dtype)
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


@_travel.register_fake
def _(block: torch.Tensor, number: int) -> torch.Tensor:
    target = _numbered[number].target
    rank = _numbered[number].plan().team.logical(dist.get_rank())
    return block.new_empty(target.local_shape(rank) if rank in target.mesh.ranks else (0,))


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.number = inputs[1]


def _backward(ctx: Any, grad: torch.Tensor) -> Any:
    number = ctx.number
    route, factor = _numbered[number].back(grad)
    if number not in _back_of:
        _back_of[number] = _add(route)
    grad = torch.ops.shardlang.travel(grad.contiguous(), _back_of[number])
    return (grad if factor == 1 else scaled(grad, factor)), None


_travel.register_autograd(_backward, setup_context=_setup)


def _strides(shape: torch.Size) -> tuple[int, ...]:
    strides, inner = [], 1
    for size in reversed(shape):
        strides.append(inner)
        inner *= max(size, 1)
    return tuple(reversed(strides))
