"""What is remembered of a model that was placed: how, where, and what its tensors were before."""

from __future__ import annotations

from collections.abc import Mapping
from weakref import WeakKeyDictionary

from attrs import frozen
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from shardlang.layout import Runs, chunk, take_runs
from shardlang.lower.model import LoweredModel
from shardlang.runtime.calls import Boundary


@frozen(eq=False)
class Applied:
    """``mesh`` is torch's, of the lowered model's leaf axes. ``sources`` are the model's own tensors, by name, where
    they were on the meta device."""

    lowered: LoweredModel
    mesh: DeviceMesh
    boundary: Boundary
    sources: Mapping[str, Tensor]


_applied: WeakKeyDictionary[nn.Module, Applied] = WeakKeyDictionary()


def remember(module: nn.Module, applied: Applied) -> None:
    _applied[module] = applied


def applied_to(module: nn.Module) -> Applied | None:
    """How a model was placed; ``None`` for one that was not."""
    return _applied.get(module)


def stored_runs(applied: Applied | None, name: str, shape: tuple[int, ...]) -> tuple[Runs, ...]:
    """Which elements of a parameter or buffer this rank stores: its block, and of that FSDP's part."""
    everything: tuple[Runs, ...] = tuple(((0, n),) if n else () for n in shape)
    if applied is None:
        return everything
    lowered = applied.lowered
    parameter = next((p for p in lowered.parameters if name in p.names), None)
    if parameter is None:
        return everything
    coordinate = applied.mesh.get_coordinate()
    assert coordinate is not None
    at = {a.name: c for a, c in zip(lowered.mesh.axes, coordinate, strict=True)}
    runs = list(parameter.layout.runs(lowered.mesh.rank_at(at)))
    for group in lowered.groups:
        if parameter.name in group.dims:
            dim, ways, index = group.dims[parameter.name], 1, 0
            for axis in group.shard:
                size = lowered.mesh.axis(axis).size
                ways, index = ways * size, index * size + at[axis]
            total = sum(b - a for a, b in runs[dim])
            runs[dim] = take_runs(runs[dim], *chunk(total, ways, index))
    return tuple(runs)
