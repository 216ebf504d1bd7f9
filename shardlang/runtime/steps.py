"""Steps made ready for one rank of one team.

Preparing looks at layouts and runs; starting and finishing a prepared step look at tensors only. A step's input is
never written to, and what it returns may share storage with its input only where the step is a ``slice`` or a ``mask``.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from shardlang.plan.steps import FREE, Step
from shardlang.runtime.crossing import Crossing, crossing
from shardlang.runtime.free_steps import local_step
from shardlang.runtime.groups import Team
from shardlang.runtime.transfers import AllGather, AllReduce, Direct, Pieces, ReduceScatter, State

LARGE = 1 << 17
"""Bytes of a piece from which on gloo had better send each by itself than in one buffer (measured on loopback)."""


class Local:
    """A free step."""

    def __init__(self, step: Step, apply: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self.step, self._apply = step, apply

    def start(self, block: torch.Tensor, out: torch.Tensor | None) -> State:
        return self._apply(block)

    def finish(self, state: State) -> torch.Tensor:
        result: torch.Tensor = state
        return result

    def run(self, block: torch.Tensor) -> torch.Tensor:
        return self._apply(block)


Sending = AllGather | AllReduce | Direct | Pieces | ReduceScatter
"""The prepared steps that send."""


def prepare(step: Step, team: Team, rank: int, itemsize: int) -> Local | Sending:
    """Makes a step ready for the mesh's ``rank``. Makes the process group that it needs, if there is none yet.

    ``itemsize`` (bytes of an element) decides how pieces are sent, so all ranks must give the same.
    """
    if step.kind in FREE:
        return Local(step, local_step(step, rank))
    cross = crossing(step, team, rank)
    if step.kind == "all_reduce":
        return AllReduce(cross)
    if cross.group.backend == "gloo" and step.source.block_numel() * itemsize >= cross.group.size * LARGE:
        return Direct(cross)
    if gathers(cross):
        return AllGather(cross)
    # Gloo's own reduce-scatter sends the whole tensor round.
    if step.kind == "reduce_scatter" and cross.even and cross.whole and cross.group.backend != "gloo":
        return ReduceScatter(cross)
    return Pieces(cross)


def gathers(cross: Crossing) -> bool:
    """Is this a gathering of equal blocks, one of each member?"""
    return cross.step.kind == "all_gather" and cross.even and all(p is not None for p in cross.places)
