"""What FSDP sends in a training step, from the groups alone.

Each group gathers its parameters before its module runs, and once more before the backward pass where it let go of
them; it sums the gradients of its trained parameters into the stored parts, and these once more over the axes that
repeat them. Parts are padded to equal size. Bytes are those of a rank.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from attrs import frozen

from shardlang.dtypes import DTYPES
from shardlang.lower.model import Group, LoweredModel, Parameter, keeps_part, stored_numel


@frozen
class Traffic:
    """One collective of a rank; bytes received and sent are equal."""

    kind: str
    axes: tuple[str, ...]
    bytes: int


def fsdp_traffic(lowered: LoweredModel) -> tuple[Traffic, ...]:
    """All that FSDP sends in one step in which every module runs once, forward and backward."""
    return tuple(t for g in lowered.groups for t in group_traffic(g, lowered))


def group_traffic(group: Group, lowered: LoweredModel) -> Iterable[Traffic]:
    """What one group sends."""
    if not group.parameters:
        return
    ranks = axes_size(lowered, group.shard)
    copies = axes_size(lowered, group.replicate)
    if ranks > 1:
        part = sum(gathered_bytes(p, group, ranks) for p in group.parameters)
        yield Traffic("all_gather", group.shard, part * (ranks - 1))
        again = group.reshard is not False and not keeps_part(group, lowered.mesh)
        for parameter in (p for p in group.parameters if p.name in group.float8):
            scale = 2 * (parameter.itemsize - parameter.itemsize // ranks)
            yield from [Traffic("all_reduce", group.shard, scale)] * (2 if again else 1)
        if keeps_part(group, lowered.mesh):
            if group.reshard > 1:
                each = part * ranks // group.reshard
                yield Traffic("all_gather", (f"{'/'.join(group.shard)}:{group.reshard}",), each * (group.reshard - 1))
        elif group.reshard is not False:
            yield Traffic("all_gather", group.shard, part * (ranks - 1))
    trained = [p for p in group.parameters if p.trainable]
    if not trained:
        return
    part = sum(stored_numel(p, group.dims[p.name], ranks) * reduced_itemsize(p, group) for p in trained)
    if ranks > 1:
        yield Traffic("reduce_scatter", group.shard, part * (ranks - 1))
    if copies > 1:
        yield Traffic("all_reduce", group.replicate, 2 * (part - part // copies))


def axes_size(lowered: LoweredModel, axes: Iterable[str]) -> int:
    return math.prod(lowered.mesh.axis(a).size for a in axes)


def gathered_bytes(parameter: Parameter, group: Group, ranks: int) -> int:
    """Bytes of a rank's part of a parameter as it is gathered."""
    floating = DTYPES[parameter.dtype].kind in ("float", "complex")
    if parameter.name in group.float8:
        return stored_numel(parameter, group.dims[parameter.name], ranks)
    dtype = group.param_dtype if group.param_dtype is not None and floating else parameter.dtype
    return stored_numel(parameter, group.dims[parameter.name], ranks) * DTYPES[dtype].itemsize


def reduced_itemsize(parameter: Parameter, group: Group) -> int:
    """Bytes of an element of a gradient as it is summed over ranks."""
    return DTYPES[group.reduce_dtype or group.param_dtype or parameter.dtype].itemsize
