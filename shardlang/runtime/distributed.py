"""Plans on ``torch.distributed``: the steps of ``plan.steps`` by explicit collectives, gloo on CPU and NCCL on CUDA.

A plan is prepared once for each team and kept. Nothing here is differentiable: see ``reshard``.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
import torch.distributed as dist

from shardlang.diagnostics import Diagnostic, ShardlangError, sl07_runtime
from shardlang.lower import torch_private
from shardlang.plan.plan import Plan
from shardlang.plan.steps import FREE
from shardlang.runtime import agreement, faults, groups, turns, watch
from shardlang.runtime.faults import guarded
from shardlang.runtime.groups import Team
from shardlang.runtime.steps import Local, Sending, prepare
from shardlang.runtime.transfers import State

_KEPT = 4096
"""How many prepared plans are kept; the least recently used goes first."""


def run_plan(
    plan: Plan,
    block: torch.Tensor,
    *,
    team: Team | None = None,
    out: torch.Tensor | None = None,
    check: bool | None = None,
) -> torch.Tensor:
    """Carries out a plan: from this rank's local block under the source to that under the target.

    A rank outside the source's mesh gives an empty tensor of the dtype; one outside the target's gets an empty one, and
    does nothing at all where it is in neither.
    The result shares no storage with ``block``; it is ``out`` where that is given. ``check``: whether ranks agree on
    the plan before its first use (by default as ``agreement.mode`` says).

    Raises ShardlangError where the block does not fit, ranks do not agree, or one does not come.
    """
    return ready(plan, team or Team()).start(block, out, check).wait()


def start_plan(
    plan: Plan,
    block: torch.Tensor,
    *,
    team: Team | None = None,
    out: torch.Tensor | None = None,
    check: bool | None = None,
) -> Running:
    """Starts a plan and returns while its first transfer is under way; ``block`` must not change before ``wait``."""
    return ready(plan, team or Team()).start(block, out, check)


def ready(plan: Plan, team: Team) -> ReadyPlan:
    """The plan, prepared for this rank; from the cache where it was before."""
    key = (plan.hash, team)
    found = _prepared.get(key)
    if found is None or found.token is not groups.token():
        found = _prepared[key] = ReadyPlan(plan, team)
        if len(_prepared) > _KEPT:
            _prepared.popitem(last=False)
    return found


class ReadyPlan:
    """A plan and this rank's part in it. Process groups are made at the first start, by all ranks alike."""

    def __init__(self, plan: Plan, team: Team) -> None:
        self.plan, self.team = plan, team
        self.token = groups.token()
        self.rank = team.logical(dist.get_rank())
        source, target = plan.source, plan.target
        self.shape = source.local_shape(self.rank) if self.rank in source.mesh.ranks else None
        members = {*source.mesh.ranks, *target.mesh.ranks}
        self.ranks = tuple(sorted(team.physical(m) for m in members))
        self.involved = dist.get_rank() in self.ranks
        self._steps: list[Local | Sending] | None = None
        # Kept for good: were one rank to forget an agreement, it would wait for the others at the next use.
        self.agreed = _agreed.setdefault((self.token, plan.hash, team), set())
        # Only where every step hands its input on can the result be the input.
        self._same = all(step.kind in ("slice", "mask") for step in plan.steps)
        self._sliced = bool(plan.steps) and plan.steps[-1].kind == "slice"
        self._fresh = not self._same and not self._sliced
        self._size = None if self.shape is None or not self.involved else torch.Size(self.shape)
        sends = self.involved and len(self.ranks) > 1 and any(step.kind not in FREE for step in plan.steps)
        self.line = turns.line_of(self.ranks) if sends else None
        """The turns of its ranks, of which each use is one; ``None`` where nothing is sent: ranks need not all come."""
        if sends:
            watch.ensure()

    @property
    def key(self) -> str:
        """As the subject of a turn."""
        return self.plan.hash

    def __str__(self) -> str:
        return f"{self.plan.dtype} {self.plan.source} => {self.plan.target}"

    def start(self, block: torch.Tensor, out: torch.Tensor | None, check: bool | None, alias: bool = False) -> Running:
        """See ``start_plan``."""
        if not self.involved:
            return Running(self, [], block.new_empty(0), out, True)
        if block.dtype not in self.agreed or check:
            if agreement.wanted(check):
                agreement.agree([self], [block])
            if agreement.mode() != "always":
                self.agreed.add(block.dtype)
        self.demand_fit(block)
        return Running(self, self.steps(), block, out, alias)

    def run(self, block: torch.Tensor, alias: bool = False) -> torch.Tensor:
        """From start to end, as ``start`` and ``wait``: the shortest way where all was agreed on before."""
        steps = self._steps
        if steps is None or block.dtype not in self.agreed or block.shape != self._size:
            return self.start(block, None, None, alias).wait()
        result = block
        at = 0
        line = self.line
        if line is not None:
            turns.begin(line, self)
        try:
            for step in steps:
                result = step.run(result)
                at += 1
        except RuntimeError as error:
            turns.leave()
            raise faults.lost(self, at, error) from error
        finally:
            if line is not None:
                turns.leave()
        return result if self._fresh and result.is_contiguous() else self.settle(result, block, None, alias)

    def fits(self, block: torch.Tensor) -> bool:
        """Is this rank's block of the source's size, and on its mesh's devices? (A rank outside the source's mesh may
        bring anything, and a tensor without values is on no device.)"""
        return self.shape is None or (
            tuple(block.shape) == self.shape and block.device.type in (self.team.device, "meta")
        )

    def demand_fit(self, block: torch.Tensor) -> None:
        """Raises SL0703 where this rank's block is not of the source's size, SL0716 where it is on another device."""
        if not self.fits(block):
            raise ShardlangError(self.misfit(tuple(block.shape), block.device.type, dist.get_rank()))

    def misfit(self, found: tuple[int, ...], device: str, rank: int) -> Diagnostic:
        """What is wrong with the block that one of torch's ranks brings, which does not fit."""
        due = self.plan.source.local_shape(self.team.logical(rank))
        if found != due:
            return sl07_runtime.block_of_wrong_size(str(self.plan.source), found, due, rank)
        return sl07_runtime.device_differs(str(self.plan.source), device, self.team.device, rank)

    def steps(self) -> list[Local | Sending]:
        """The plan's steps, prepared when they are first asked for, by all ranks alike."""
        if self._steps is None:
            self._steps = []
            for index, step in enumerate(self.plan.steps):
                with guarded(self, index):
                    self._steps.append(prepare(step, self.team, self.rank, self.plan.itemsize))
        return self._steps

    def settle(self, result: torch.Tensor, block: torch.Tensor, out: torch.Tensor | None, alias: bool) -> torch.Tensor:
        """The result in ``out``, or at least contiguous and, unless ``alias``, in storage of its own."""
        if out is not None:
            return out if result is out else out.copy_(result)
        if self._same and not alias and torch_private.storage_key(result) == torch_private.storage_key(block):
            return result.clone(memory_format=torch.contiguous_format)
        if self._sliced and not alias and result.untyped_storage().nbytes() != result.nbytes:
            return result.clone(memory_format=torch.contiguous_format)
        return result.contiguous()


class Running:
    """A plan on its way. ``wait`` brings the result."""

    def __init__(
        self, plan: ReadyPlan, steps: list[Local | Sending], block: torch.Tensor, out: torch.Tensor | None, alias: bool
    ) -> None:
        self._plan, self._steps, self._block, self._out, self._alias = plan, steps, block, out, alias
        self._at = 0
        self._state: State = block
        self._result: torch.Tensor | None = None
        self._turn = None if plan.line is None else turns.begin(plan.line, plan)
        try:
            if steps:
                self._start(block)
        finally:
            turns.leave()

    def wait(self) -> torch.Tensor:
        """Ends the transfer under way and does the remaining steps; once more, it gives the same result."""
        if self._result is not None:
            return self._result
        result: torch.Tensor = self._state
        last = len(self._steps) - 1
        try:
            while self._at <= last:
                turns.enter(self._turn)
                with guarded(self._plan, self._at):
                    result = self._steps[self._at].finish(self._state)
                self._at += 1
                if self._at <= last:
                    self._start(result)
        finally:
            turns.leave()
        self._state = None
        self._result = self._plan.settle(result, self._block, self._out, self._alias)
        return self._result

    def _start(self, block: torch.Tensor) -> None:
        out = self._out if self._at == len(self._steps) - 1 else None
        with guarded(self._plan, self._at):
            self._state = self._steps[self._at].start(block, out)


_agreed: dict[tuple[object, str, Team], set[torch.dtype]] = {}
_prepared: OrderedDict[tuple[str, Team], ReadyPlan] = OrderedDict()
