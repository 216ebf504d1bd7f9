"""Many tensors along their routes at once, the small ones packed: the engine of ``reshard_many``.

What is packed with what is planned (``plan.bundle``): small steps of one kind, group and dtype share flat buffers of
bounded size; large ones go by themselves, a few under way at a time.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from typing import Any

import torch
from attrs import evolve, frozen
from torch.distributed.tensor import DTensor

from shardlang.lower import torch_private
from shardlang.plan.bundle import plan_bundle
from shardlang.plan.plan import Plan
from shardlang.runtime import agreement, collectives, faults, turns
from shardlang.runtime.blocks import read_into
from shardlang.runtime.crossing import Crossing, assembled, in_line
from shardlang.runtime.distributed import ReadyPlan
from shardlang.runtime.faults import guarded
from shardlang.runtime.reduce import combine, scaled
from shardlang.runtime.route import Route
from shardlang.runtime.steps import Local, Sending, gathers
from shardlang.runtime.transfers import AllReduce

_KEPT = 256
"""Packings that are kept."""
UNDER_WAY = 4
"""How many large steps are under way at a time."""
AHEAD = 2
"""How many later steps are sent before a step is received.

Where the receiver is ready, gloo writes from the thread that sends, and its own one meanwhile spins; where it is not,
its own one writes (measured on loopback)."""


def move_many(
    routes: Sequence[Route],
    tensors: Sequence[torch.Tensor],
    check: bool | None = None,
    graded: Sequence[bool] | None = None,
) -> list[torch.Tensor]:
    """The tensors along their routes, outside autograd."""
    with torch.no_grad():
        blocks = [torch_private.block_of(x) if isinstance(x, DTensor) else x for x in tensors]
        plans = [route.plan() for route in routes]
        _agree(plans, blocks, check)
        with _turn(plans):
            moved = _run([(plan, block) for plan, block in zip(plans, blocks, strict=True)])
        settled = [p.settle(m, b, None, r.alias) for r, p, m, b in zip(routes, plans, moved, blocks, strict=True)]
        flags = graded or [False] * len(routes)
        return [route.wrap(block, flag) for route, block, flag in zip(routes, settled, flags, strict=True)]


@frozen
class _Bundle:
    """Many plans as the subject of one turn of their ranks."""

    plans: list[ReadyPlan]

    @property
    def key(self) -> str:
        return hashlib.sha256("\n".join(plan.plan.hash for plan in self.plans).encode()).hexdigest()

    def __str__(self) -> str:
        return f"{len(self.plans)} tensors, the first {self.plans[0]} ({self.key[:8]})"


@contextmanager
def _turn(plans: Sequence[ReadyPlan]) -> Iterator[None]:
    """One turn of the ranks of each mesh, whose plans these are."""
    by_ranks: dict[tuple[int, ...], list[ReadyPlan]] = {}
    for plan in plans:
        if plan.line is not None:
            by_ranks.setdefault(plan.ranks, []).append(plan)
    for ranks, some in by_ranks.items():
        turns.begin(turns.line_of(ranks), _Bundle(some))
    try:
        yield
    finally:
        turns.leave()


_agreed: set[tuple[object, tuple[tuple[str, torch.dtype], ...]]] = set()


def _agree(plans: Sequence[ReadyPlan], blocks: Sequence[torch.Tensor], check: bool | None) -> None:
    """Ranks agree once on the whole bundle: those of each mesh on its part of it, in order of first use."""
    by_ranks: dict[tuple[int, ...], list[int]] = {}
    for i, plan in enumerate(plans):
        if plan.involved:
            by_ranks.setdefault(plan.ranks, []).append(i)
    for members in by_ranks.values():
        key = (plans[members[0]].token, tuple([(plans[i].plan.hash, blocks[i].dtype) for i in members]))
        if key not in _agreed or check:
            if agreement.wanted(check):
                agreement.agree([plans[i] for i in members], [blocks[i] for i in members])
            if agreement.mode() != "always":
                _agreed.add(key)
        for i in members:
            plans[i].demand_fit(blocks[i])


def _run(todo: Sequence[tuple[ReadyPlan, torch.Tensor]]) -> list[torch.Tensor]:
    """Takes every block through its plan's steps, the first steps of all, then the second ones."""
    now = [block for _, block in todo]
    steps = [plan.steps() if plan.involved else [] for plan, _ in todo]
    for depth, packs in enumerate(_packs([plan.plan for plan, _ in todo])):
        for i, own in enumerate(steps):
            step = own[depth] if depth < len(own) else None
            if isinstance(step, Local):
                now[i] = step.run(now[i])
        alone: list[int] = []
        for pack in packs:
            members = [i for i in pack if steps[i]]
            if len(pack) == 1:
                alone += members
                continue
            for bucket in _of_one_group(members, depth, steps):
                with guarded(todo[bucket[0]][0], depth):
                    results = _packed([_sending(steps[i][depth]) for i in bucket], [now[i] for i in bucket])
                for i, result in zip(bucket, results, strict=True):
                    now[i] = result
        _one_by_one(alone, depth, todo, steps, now)
    return now


_planned: dict[tuple[str, ...], tuple[tuple[tuple[int, ...], ...], ...]] = {}


def _packs(plans: Sequence[Plan]) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """For each depth of steps, the tensors of each collective."""
    key = tuple(plan.hash for plan in plans)
    found = _planned.get(key)
    if found is None:
        bundle = plan_bundle([(p.source, p.target, p.dtype) for p in plans])
        depths = max((len(p.steps) for p in plans), default=0)
        found = tuple(
            tuple(tuple(i for i, _ in c.members) for c in bundle.collectives if c.members[0][1] == depth)
            for depth in range(depths)
        )
        if len(_planned) >= _KEPT:
            _planned.clear()
        _planned[key] = found
    return found


def _of_one_group(members: Sequence[int], depth: int, steps: Sequence[Sequence[Local | Sending]]) -> list[list[int]]:
    """Members whose ranks hear from each other along the same axes: all of them, as a rule."""
    groups: dict[Any, list[int]] = {}
    for i in members:
        groups.setdefault(_sending(steps[i][depth]).cross.over, []).append(i)
    return list(groups.values())


def _one_by_one(
    large: list[int], depth: int, todo: Sequence[tuple[ReadyPlan, torch.Tensor]], steps: Any, now: list[torch.Tensor]
) -> None:
    """Large steps in a line: one is sent while an earlier one is received and a still earlier one is awaited.

    Those that stage pieces use the same few buffers one after another: fresh ones would be fresh pages every time.
    """
    under_way: dict[int, Any] = {}
    stages = _Stages([(steps[i][depth].staged, now[i]) for i in large])
    at = 0  # whose turn it is, should something fail
    try:
        for k in range(len(large) + UNDER_WAY - 1):
            if k < len(large):
                at = large[k]
                under_way[at] = steps[at][depth].begin(now[at], stages.take(k))
            if 0 <= k - AHEAD < len(large):
                at = large[k - AHEAD]
                under_way[at] = steps[at][depth].turn(under_way[at])
            if k + 1 >= UNDER_WAY:
                at = large[k + 1 - UNDER_WAY]
                now[at] = steps[at][depth].finish(under_way.pop(at))
    except RuntimeError as error:
        turns.leave()
        raise faults.lost(todo[at][0], depth, error) from error


class _Stages:
    """Buffers of steps in a line, each for every ``UNDER_WAY``-th of them: by then the one before is finished."""

    def __init__(self, wanted: Sequence[tuple[int, torch.Tensor]]) -> None:
        """``wanted``: for each step its elements, and a tensor of its device and dtype."""
        self._wanted = wanted
        self._bytes = max((n * x.itemsize for n, x in wanted), default=0)
        self._made: dict[tuple[int, torch.device], torch.Tensor] = {}
        self._cut: dict[tuple[int, torch.device, torch.dtype, int], torch.Tensor] = {}

    def take(self, k: int) -> torch.Tensor | None:
        """Room for step ``k``; ``None`` where it needs none."""
        numel, like = self._wanted[k]
        if numel == 0:
            return None
        slot, device, dtype = k % UNDER_WAY, like.device, like.dtype
        found = self._cut.get((slot, device, dtype, numel))
        if found is None:
            whole = self._made.get((slot, device))
            if whole is None:
                whole = self._made[slot, device] = like.new_empty(self._bytes, dtype=torch.uint8)
            found = self._cut[slot, device, dtype, numel] = whole[: numel * like.itemsize].view(dtype)
        return found


def _sending(step: Local | Sending) -> Sending:
    assert not isinstance(step, Local)
    return step


def _packed(steps: Sequence[Sending], blocks: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """One collective for all steps of one kind."""
    first = steps[0]
    if len(steps) == 1:
        return [first.finish(first.start(blocks[0], None))]
    crosses = [s.cross for s in steps]
    if isinstance(first, AllReduce):
        flat = torch.cat([b.reshape(-1) for b in blocks])
        way = AllReduce(evolve(first.cross, divide=1))
        total = way.finish(way.start(flat, flat))
        parts = zip(total.split([b.numel() for b in blocks]), crosses, blocks, strict=True)
        return [scaled(part, Fraction(1, c.divide)).view(b.shape) for part, c, b in parts]
    if gathers(first.cross):
        return _gathered(crosses, blocks)
    return _exchanged(crosses, blocks)


def _gathered(crosses: Sequence[Crossing], blocks: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    group = crosses[0].group
    given = torch.cat([b.reshape(-1) for b in blocks])
    got = given.new_empty(group.size, given.numel())
    collectives.all_gather(group, crosses[0].label, got.view(-1), given).wait()
    results, at = [], 0
    for cross, block in zip(crosses, blocks, strict=True):
        if in_line(cross.places, math.prod(cross.shape)):
            results.append(got[:, at : at + block.numel()].reshape(cross.shape))
            at += block.numel()
            continue
        mine: list[torch.Tensor | None] = list(got[:, at : at + block.numel()])
        results.append(assembled(cross, mine, block.new_empty(cross.shape)))
        at += block.numel()
    return results


def _exchanged(crosses: Sequence[Crossing], blocks: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The pieces of all tensors for one member lie together: by member, then by tensor."""
    group = crosses[0].group
    sizes = [[c.sources[m].numel if c.sources[m] else 0 for c in crosses] for m in range(group.size)]  # type: ignore[union-attr]
    due = [[c.places[m].numel if c.places[m] else 0 for c in crosses] for m in range(group.size)]  # type: ignore[union-attr]
    given = blocks[0].new_empty(sum(map(sum, sizes)))
    at = 0
    for m in range(group.size):
        for cross, block, size in zip(crosses, blocks, sizes[m], strict=True):
            source = cross.sources[m]
            if source is not None:
                read_into(given[at : at + size], block, source)
            at += size
    got = given.new_empty(sum(map(sum, due)))
    work = collectives.all_to_all(group, crosses[0].label, got, given, [sum(d) for d in due], [sum(s) for s in sizes])
    work.wait()
    if all(c.whole for c in crosses):
        total = combine(got.view(group.size, -1).unbind(0), crosses[0].op, divide=1)
        split = zip(total.split(list(due[0])), crosses, strict=True)
        return [scaled(part, Fraction(1, c.divide)).view(c.shape) for part, c in split]
    pieces = [part.split(d) for part, d in zip(got.split([sum(d) for d in due]), due, strict=True)]
    results = []
    for t, (cross, block) in enumerate(zip(crosses, blocks, strict=True)):
        mine: list[torch.Tensor | None] = [pieces[m][t] for m in range(group.size)]
        results.append(assembled(cross, mine, block.new_empty(cross.shape)))
    return results
