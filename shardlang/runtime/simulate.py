"""All ranks in one process: the oracle that the other back end and the planner's tests are held against.

Slow and plain on purpose. A step is carried out from its meaning alone (kind, axes, the layouts before and after it,
operator): for each rank, the elements of its new block are looked up, by index, in the old blocks of the ranks that
the kind lets it hear from; a step that would need any other rank's data raises.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from itertools import product
from typing import Protocol

import torch

from shardlang.layout import Layout, Pending, Runs, intersect_runs
from shardlang.plan.bundle import Bundle
from shardlang.plan.steps import FREE, Step
from shardlang.runtime.reduce import combine, identity, scaled

Blocks = dict[int, torch.Tensor]
"""The local tensor of each global rank of a mesh."""


class _Plan(Protocol):
    @property
    def steps(self) -> tuple[Step, ...]: ...


class SimulationError(Exception):
    """A step is no such step, or blocks do not fit their layout: a fault of who made them."""


def run_plan(plan: _Plan, blocks: Mapping[int, torch.Tensor]) -> Blocks:
    """The blocks of every rank after all steps of a plan. The result shares no storage with the given blocks."""
    current = {rank: block.clone() for rank, block in blocks.items()}
    for step in plan.steps:
        current = run_step(step, current)
    return current


def run_bundle(bundle: Bundle, blocks: Sequence[Mapping[int, torch.Tensor]]) -> list[Blocks]:
    """The blocks of every rank and tensor after the collectives of a bundle, one after the other, in its order.

    A tensor's free steps are taken as soon as they are due. Raises ``SimulationError`` where a collective takes a
    tensor's step before its turn, or some step is in no collective; and as ``run_step``.
    """
    current = [{rank: block.clone() for rank, block in one.items()} for one in blocks]
    at = [0] * len(current)

    def take_free(i: int) -> None:
        steps = bundle.plans[i].steps
        while at[i] < len(steps) and steps[at[i]].kind in FREE:
            current[i] = run_step(steps[at[i]], current[i])
            at[i] += 1

    for i in range(len(current)):
        take_free(i)
    for collective in bundle.collectives:
        for i, index in collective.members:
            step = bundle.plans[i].steps[index]
            if index != at[i] or (step.kind, step.axes) != (collective.kind, collective.axes):
                raise SimulationError(f"a collective takes step {index} of tensor {i}, which is at step {at[i]}")
            current[i] = run_step(step, current[i])
            at[i] += 1
            take_free(i)
    left = [i for i, plan in enumerate(bundle.plans) if at[i] < len(plan.steps)]
    if left:
        raise SimulationError(f"no collective takes step {at[left[0]]} of tensor {left[0]}")
    return current


def run_step(step: Step, blocks: Mapping[int, torch.Tensor]) -> Blocks:
    """The blocks of every rank after one step.

    Raises ``SimulationError`` where a rank would need an element that the step's kind does not bring it, or where
    copies of one element differ.
    """
    _check_shapes(blocks, step.source)
    if step.kind == "scale":
        factor = step.scale
        if factor is None:
            raise SimulationError("a scale step has no factor")
        return {rank: scaled(block, factor) for rank, block in blocks.items()}
    if step.kind == "mask":
        return {rank: _masked(step, rank, blocks[rank]) for rank in step.target.mesh.ranks}
    return {rank: _moved(step, rank, blocks) for rank in step.target.mesh.ranks}


def shard(value: torch.Tensor, layout: Layout, *, seed: int | None = None) -> Blocks:
    """The block of every rank of a global tensor.

    A pending value's parts: without ``seed`` those of a ``mask`` (sum: the first rank keeps the value and the others
    hold zero; else every rank keeps it); with it, random ones, different on every rank, that reduce to ``value``
    exactly as long as that holds small integers (and max and min parts are at most 8 away from it).
    """
    if tuple(value.shape) != layout.shape:
        raise SimulationError(f"a tensor of shape {tuple(value.shape)} has no layout {layout}")
    owed = layout.owed()
    parts = _parts(value, layout, owed, seed)
    return {rank: _take(parts[_at(layout, rank, owed)], layout.runs(rank)) for rank in layout.mesh.ranks}


def assemble(blocks: Mapping[int, torch.Tensor], layout: Layout) -> torch.Tensor:
    """The global tensor, pending reductions applied. Raises ``SimulationError`` where copies of an element differ."""
    _check_shapes(blocks, layout)
    everything = tuple(((0, n),) if n else () for n in layout.shape)
    return _lookup(layout, layout.mesh.ranks, everything, blocks, layout.owed())


def _moved(step: Step, rank: int, blocks: Mapping[int, torch.Tensor]) -> torch.Tensor:
    """The new block of one rank, looked up in the old blocks of its group; reduced where the pending axes ended."""
    source, target = step.source, step.target
    kept = target.owed()
    owed = source.owed()
    if not set(kept) <= set(owed):
        raise SimulationError(f"a {step.kind} cannot make {target} of {source}: pending axes appear")
    reduced = tuple(p for p in owed if p not in kept)
    senders = [r for r in _senders(step, rank) if _at(source, r, kept) == _at(target, rank, kept)]
    if step.kind == "permute":
        wanted = target.runs(rank)
        senders = [r for r in senders if source.runs(r) == wanted]
    return _lookup(source, senders, target.runs(rank), blocks, reduced)


def _senders(step: Step, rank: int) -> Iterable[int]:
    """The ranks that a step's kind lets ``rank`` hear from, itself first."""
    source = step.source.mesh
    if step.kind == "slice":
        return [rank]
    if step.kind in ("exchange", "permute") or source != step.target.mesh:
        return sorted(source.ranks, key=lambda r: (r != rank, r))
    axes = {leaf for name in step.axes for leaf in source.expand(name)}
    fixed = [a.name for a in source.leaves() if a.name not in axes]
    group = [r for r in source.ranks if all(source.coordinate(r, a) == source.coordinate(rank, a) for a in fixed)]
    return sorted(group, key=lambda r: (r != rank, r))


def _lookup(
    layout: Layout,
    senders: Iterable[int],
    wanted: tuple[Runs, ...],
    blocks: Mapping[int, torch.Tensor],
    reduced: tuple[Pending, ...],
) -> torch.Tensor:
    """The elements ``wanted`` from the blocks of ``senders``, the parts of ``reduced`` axes reduced in mesh order."""
    shape = tuple(sum(b - a for a, b in runs) for runs in wanted)
    parts: dict[tuple[int, ...], tuple[torch.Tensor, torch.Tensor]] = {}
    for rank in senders:
        block = blocks[rank]
        key = _at(layout, rank, reduced)
        value, known = parts.setdefault(key, (block.new_empty(shape), torch.zeros(shape, dtype=torch.bool)))
        have = layout.runs(rank)
        common = tuple(intersect_runs(h, w) for h, w in zip(have, wanted, strict=True))
        theirs = _index([_positions(h, c) for h, c in zip(have, common, strict=True)])
        ours = _index([_positions(w, c) for w, c in zip(wanted, common, strict=True)])
        piece, before = _bits(block)[theirs], _bits(value)[ours]
        both = known[ours]
        if not torch.equal(piece[both], before[both]):
            raise SimulationError(f"copies of an element differ: rank {rank} under {layout}")
        _bits(value)[ours] = piece
        known[ours] = True
    count = math.prod(layout.mesh.axis(p.axis).size for p in reduced)
    missing = len(parts) != count or not all(bool(known.all()) for _, known in parts.values())
    if missing and 0 not in shape:
        raise SimulationError(f"elements {wanted} of {layout} are not to be had from the ranks that the step hears")
    if missing:
        return next(iter(blocks.values())).new_empty(shape)
    return _reduce(layout, [parts[key][0] for key in sorted(parts)], reduced)


def _reduce(layout: Layout, parts: list[torch.Tensor], reduced: tuple[Pending, ...]) -> torch.Tensor:
    ops = {p.op for p in reduced}
    if not ops:
        return parts[0]
    if ops <= {"sum", "avg"}:
        return combine(parts, "sum", divide=math.prod(layout.mesh.axis(p.axis).size for p in reduced if p.op == "avg"))
    if len(ops) > 1:
        raise SimulationError(f"the reductions of {layout} do not commute")
    return combine(parts, ops.pop())


def _masked(step: Step, rank: int, block: torch.Tensor) -> torch.Tensor:
    """The block as a part of a pending value: what the rank keeps, and the identity elsewhere."""
    source, target, op = step.source, step.target, step.op
    if op is None:
        raise SimulationError("a mask step has no operator")
    leaves = {leaf for name in step.axes for leaf in source.mesh.expand(name)}
    split = {leaf for name in source.cut_axes() for leaf in source.mesh.expand(name)} & leaves
    result = torch.full(target.local_shape(rank), identity(block.dtype, op), dtype=block.dtype, device=block.device)
    first = all(source.mesh.coordinate(rank, leaf) == 0 for leaf in leaves - split)
    if op == "sum" and not first:
        return result
    factor = step.scale
    if factor is None:
        # A split dim's part is held by one rank of each group, so its average counts it once in `size`.
        factor = Fraction(math.prod(source.mesh.axis(a).size for a in split) if op == "avg" else 1)
    have, wanted = source.runs(rank), target.runs(rank)
    common = tuple(intersect_runs(h, w) for h, w in zip(have, wanted, strict=True))
    if not split and common != wanted:
        raise SimulationError(f"a mask cannot make {target} of {source}: a rank lacks elements")
    ours = _index([_positions(w, c) for w, c in zip(wanted, common, strict=True)])
    theirs = _index([_positions(h, c) for h, c in zip(have, common, strict=True)])
    _bits(result)[ours] = _bits(scaled(block, factor))[theirs]
    return result


def _parts(
    value: torch.Tensor, layout: Layout, owed: tuple[Pending, ...], seed: int | None
) -> dict[tuple[int, ...], torch.Tensor]:
    """The parts of a pending value by their coordinates on the pending axes."""
    sizes = [layout.mesh.axis(p.axis).size for p in owed]
    keys = list(product(*map(range, sizes)))
    ops = {p.op for p in owed}
    ordered = bool(ops & {"max", "min"})
    if ordered and len(ops) > 1:
        raise SimulationError(f"the reductions of {layout} do not commute")
    if seed is None or not owed:
        summed = [i for i, p in enumerate(owed) if p.op == "sum"]
        return {k: value if all(k[i] == 0 for i in summed) else torch.zeros_like(value) for k in keys}
    draw = torch.Generator().manual_seed(seed)
    noise = [torch.randint(1, 9, value.shape, generator=draw).to(value.device) for _ in keys]
    if ordered:
        winner = torch.randint(len(keys), value.shape, generator=draw)
        sign = -1 if ops == {"max"} else 1
        return {k: value + (sign * noise[i] * (winner != i)).to(value.dtype) for i, k in enumerate(keys)}
    averaged = math.prod(s for s, p in zip(sizes, owed, strict=True) if p.op == "avg")
    rest = [n.to(value.dtype) for n in noise[1:]]
    head = value * averaged - sum(rest, torch.zeros_like(value))
    return dict(zip(keys, [head.to(value.dtype), *rest], strict=True))


def _at(layout: Layout, rank: int, owed: tuple[Pending, ...]) -> tuple[int, ...]:
    return tuple(layout.mesh.coordinate(rank, p.axis) for p in owed)


def _check_shapes(blocks: Mapping[int, torch.Tensor], layout: Layout) -> None:
    for rank in layout.mesh.ranks:
        found, due = tuple(blocks[rank].shape), layout.local_shape(rank)
        if found != due:
            raise SimulationError(f"rank {rank} has a block of {found} where {layout} gives {due}")


def _positions(have: Runs, part: Runs) -> torch.Tensor:
    """Where the indices of ``part`` are in the concatenated runs ``have``."""
    return torch.searchsorted(_indices(have), _indices(part))


def _indices(runs: Runs) -> torch.Tensor:
    return torch.cat([torch.arange(a, b) for a, b in runs]) if runs else torch.empty(0, dtype=torch.int64)


def _index(positions: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """An index that picks the product of the positions of every dim."""
    last = len(positions) - 1
    return tuple(p.reshape(-1, *[1] * (last - d)) for d, p in enumerate(positions))


def _take(value: torch.Tensor, runs: tuple[Runs, ...]) -> torch.Tensor:
    taken = _bits(value)[_index([_indices(r) for r in runs])].clone()
    return taken.view(value.dtype) if taken.dtype != value.dtype else taken


def _bits(x: torch.Tensor) -> torch.Tensor:
    """A view that indexing supports: 8-bit floats have no kernels for it."""
    return x.view(torch.uint8) if x.dtype.is_floating_point and x.dtype.itemsize == 1 else x
