"""What a model takes of a rank's memory, by formula: no tensor is made, no process started.

Counted is what the declaration fixes: stored parameters, their gradients, the optimizer's states (AdamW's two, in the
parameter's dtype), and what FSDP gathers and reduces at once. Activations depend on the batch and are not counted, so
that a step takes at least this.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from attrs import frozen

from shardlang.check.groups import FsdpGroup
from shardlang.check.model import ModelLayouts, ParameterLayout
from shardlang.dtypes import DTYPES
from shardlang.mesh import Mesh

OPTIMIZER_STATES = 2
"""AdamW keeps a mean and a variance of each element."""


@frozen
class Memory:
    """Bytes on the worst rank. ``gathered`` are whole groups and gradients on their way through FSDP, at most."""

    parameters: int
    gradients: int
    optimizer: int
    gathered: int
    ungrouped: int = 0
    """Of all these, the part of parameters that no ``fsdp`` line stores in parts."""
    forward: int = 0
    """What is gathered at most while the forward pass runs."""

    @property
    def total(self) -> int:
        return self.parameters + self.gradients + self.optimizer + self.gathered


def predict(layouts: ModelLayouts) -> Memory:
    """The memory of a training step before activations, per rank."""
    by_group = {name: group for group in layouts.groups for name in group.parameters}
    stored = trained = ungrouped = 0
    for parameter in layouts.unique_parameters():
        group = by_group.get(parameter.name)
        size = stored_bytes(parameter, group, layouts.mesh)
        if group is not None and group.line.offload:
            continue
        stored += size
        states = 1 + OPTIMIZER_STATES if is_trained(parameter) else 0
        trained += size if states else 0
        if group is None:
            ungrouped += size * (1 + states)
    forward, backward = _gathered([g for g in layouts.groups if g.parameters], layouts)
    return Memory(stored, trained, OPTIMIZER_STATES * trained, max(forward, backward), ungrouped, forward)


def is_trained(parameter: ParameterLayout) -> bool:
    known = DTYPES.get(parameter.dtype)
    return not parameter.frozen and known is not None and known.kind in ("float", "complex")


def itemsize(dtype: str) -> int:
    """Bytes an element; one for a dtype that specs have no name for."""
    return DTYPES[dtype].itemsize if dtype in DTYPES else 1


def _ways(group: FsdpGroup, mesh: Mesh) -> int:
    return math.prod(mesh.axis(a).size for a in group.line.over)


def stored_bytes(parameter: ParameterLayout, group: FsdpGroup | None, mesh: Mesh) -> int:
    """Bytes of the largest stored part of a parameter: its block, cut by FSDP along dim 0 and padded."""
    block = list(parameter.layout.local_shape(mesh.first_rank))
    if group is not None and block:
        block[0] = -(-block[0] // _ways(group, mesh))
    return math.prod(block) * itemsize(parameter.dtype)


def group_bytes(group: FsdpGroup, layouts: ModelLayouts, *, gradients: bool = False) -> int:
    """Bytes of a group's parameters as it gathers them, or of their gradients as it reduces them."""
    line = group.line
    total = 0
    for name in group.parameters:
        parameter = layouts.parameters[name]
        floating = parameter.dtype in DTYPES and DTYPES[parameter.dtype].kind == "float"
        dtype = (line.param_dtype or parameter.dtype) if floating else parameter.dtype
        if gradients:
            dtype = line.reduce_dtype or dtype
        if not gradients or is_trained(parameter):
            narrow = line.float8 and not gradients and name in layouts.linear
            total += parameter.layout.block_numel() * (1 if narrow else itemsize(dtype))
    return total


def _gathered(groups: list[FsdpGroup], layouts: ModelLayouts) -> tuple[int, int]:
    """What FSDP holds at most beside what is stored, in the forward and in the backward pass.

    A group of several ranks is gathered into a buffer and copied out of it; one of a single rank is copied. In the
    forward pass there are the groups that stay, one that does not, and the buffers of this one and of those fetched
    ahead. In the backward pass there are, besides, the gradients of a group as computed and those of the group before
    as they are reduced; one group is fetched ahead by default. Groups that stay go one by one as gradients come.
    """

    def sizes(chosen: Iterable[FsdpGroup], gradients: bool = False) -> list[int]:
        return sorted((group_bytes(g, layouts, gradients=gradients) for g in chosen), reverse=True)

    shared = [g for g in groups if _ways(g, layouts.mesh) > 1]
    kept = sum(sizes(g for g in groups if g.line.reshard is False))
    passing = sizes(g for g in groups if g.line.reshard is not False)
    ahead = max((g.line.prefetch for g in shared), default=0)
    one = sum(passing[:1])
    forward = kept + one + sum(sizes(shared)[: 1 + ahead])
    computed = max((_computed_bytes(g, layouts) for g in groups), default=0)
    reduced = sum(sizes(shared, gradients=True)[:1]) if len(groups) > 1 else 0
    if not passing:
        return forward, kept + max(computed, reduced)
    fetched = sizes(g for g in shared if g.line.reshard is not False)[1 : 1 + max(1, ahead)]
    return forward, kept + one + sum(fetched) + computed + (reduced if len(passing) > 1 else 0)


def _computed_bytes(group: FsdpGroup, layouts: ModelLayouts) -> int:
    """Bytes of a group's gradients before they are reduced: in the dtype that it computes in."""
    line = group.line
    trained = [p for p in map(layouts.parameters.__getitem__, group.parameters) if is_trained(p)]
    return sum(p.layout.block_numel() * itemsize(line.param_dtype or p.dtype) for p in trained)
