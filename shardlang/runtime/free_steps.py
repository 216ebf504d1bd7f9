"""Free steps: what a rank does to its own block. The result of a ``slice`` or ``mask`` may share its storage."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import torch

from shardlang.plan.steps import Step
from shardlang.runtime.blocks import overlap, read, select, window, write
from shardlang.runtime.reduce import identity, scaled


def local_step(step: Step, rank: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """What a ``slice``, ``scale`` or ``mask`` does to the block of the mesh's ``rank``."""
    if step.kind == "scale":
        factor = step.scale or Fraction(1)
        return lambda block: scaled(block, factor)
    have, wanted = step.source.runs(rank), step.target.runs(rank)
    if step.kind == "slice":
        shape = step.target.local_shape(rank)
        if 0 in shape:
            # Of an empty tensor a rank may keep a block that is larger in other dims.
            return lambda block: block.new_empty(shape)
        picked = select(step.source.local_shape(rank), window(have, wanted))
        return lambda block: read(block, picked)
    return _mask(step, rank)


def _mask(step: Step, rank: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """Keeps this rank's part of a pending value; see ``plan.steps`` for who keeps what."""
    source, target, op = step.source, step.target, step.op
    assert op is not None
    mesh = source.mesh
    leaves = {leaf for name in step.axes for leaf in mesh.expand(name)}
    split = {leaf for name in source.cut_axes() for leaf in mesh.expand(name)} & leaves
    shape = target.local_shape(rank)
    if op == "sum" and any(mesh.coordinate(rank, leaf) for leaf in leaves - split):
        return lambda block: block.new_zeros(shape)
    factor = step.scale or Fraction(math.prod(mesh.axis(a).size for a in split) if op == "avg" else 1)
    have, wanted = source.runs(rank), target.runs(rank)
    common = overlap(have, wanted)
    if have == wanted:
        return (lambda block: block) if factor == 1 else (lambda block: scaled(block, factor))

    def masked(block: torch.Tensor) -> torch.Tensor:
        result = torch.full(shape, identity(block.dtype, op), dtype=block.dtype, device=block.device)
        if theirs is not None and ours is not None:
            write(result, ours, read(block if factor == 1 else scaled(block, factor), theirs))
        return result

    theirs = None if common is None else select(source.local_shape(rank), window(have, common))
    ours = None if common is None else select(shape, window(wanted, common))
    return masked
