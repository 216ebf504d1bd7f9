"""Moves that ``torch.compile`` can look into: written out as functional collectives, to fuse around and reorder.

Ranks agree on a plan when its function is made, since what is compiled asks nobody. A plan with a step of another kind
than these stays one opaque operator. Each move is a class written out as text: what ``torch.compile`` has to check at
each call is then the class, and not what it is made of.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from itertools import count
from typing import Any

import torch
from torch import Tensor

from shardlang.dtypes import DTYPES
from shardlang.lower import torch_private
from shardlang.plan.plan import Plan
from shardlang.plan.steps import FREE
from shardlang.runtime import agreement, collectives
from shardlang.runtime.blocks import select, window
from shardlang.runtime.crossing import Crossing, even_cut, in_line
from shardlang.runtime.distributed import ready
from shardlang.runtime.groups import Team
from shardlang.runtime.steps import Local
from shardlang.trace.program import Move

_numbers = count()
SPACE: dict[str, Any] = {
    "Function": torch.autograd.Function,
    "all_reduce": torch_private.functional("all_reduce"),
    "all_gather": torch_private.functional("all_gather_into_tensor"),
    "reduce_scatter": torch_private.functional("reduce_scatter_tensor"),
    "wait": torch_private.functional("wait_tensor"),
}
"""What the text of a move names."""

TEXT = """
class {name}(Function):
    @staticmethod
    def forward(ctx, x):
        return {there}

    @staticmethod
    def backward(ctx, grad):
        return {back}
"""


def inlined(made: Move, team: Team) -> Callable[[Tensor], Tensor] | None:
    """A move as a differentiable function of the block; ``None`` where a step has no text. All ranks call this."""
    there, back = _text(made.forward, team, "x"), _text(made.backward, team, "grad.contiguous()")
    if there is None or back is None:
        return None
    return _written("x.view_as(x)" if there == "x" else there, back)


@lru_cache(maxsize=1 << 12)
def _written(there: str, back: str) -> Callable[[Tensor], Tensor]:
    """The function of two expressions: one for all moves that are alike."""
    name = f"Move{next(_numbers)}"
    space = dict(SPACE)
    exec(TEXT.format(name=name, there=there, back=back), space)
    found: Callable[[Tensor], Tensor] = space[name].apply
    return found


def _text(plan: Plan | None, team: Team, x: str) -> str | None:
    """The plan carried out on ``x``, as an expression. Ranks agree on it now."""
    if plan is None or not plan.steps:
        return x
    dtype: torch.dtype = getattr(torch, DTYPES[plan.dtype].torch_name)
    found = ready(plan, team)
    if not found.involved or found.shape is None:
        return None
    for prepared in found.steps():
        text = _local(prepared, found.rank, x) if isinstance(prepared, Local) else _sent(prepared.cross, dtype, x)
        if text is None:
            return None
        x = text
    sends = any(step.kind not in FREE for step in plan.steps)
    if sends and dtype not in found.agreed and agreement.wanted(None):
        agreement.agree([found], [torch.empty(found.shape, dtype=dtype, device=team.device)])
        found.agreed.add(dtype)
    return x


def _local(prepared: Local, rank: int, x: str) -> str | None:
    """A slice that is one interval of each dim."""
    step = prepared.step
    if step.kind != "slice":
        return None
    picked = select(step.source.local_shape(rank), window(step.source.runs(rank), step.target.runs(rank)))
    if picked.regular is None or any(count != 1 for _, count, _, _ in picked.regular):
        return None
    return f"{x}[{', '.join(f'{start}:{start + length}' for start, _, _, length in picked.regular)}].contiguous()"


def _sent(cross: Crossing, dtype: torch.dtype, x: str) -> str | None:
    """A collective of equal blocks that the backend does by itself, and what puts them in order."""
    if not collectives.reduces(cross.group, dtype) or cross.op != "sum" or cross.divide != 1:
        return None
    name, size, shape = repr(cross.group.handle.group_name), cross.group.size, cross.shape
    kind = cross.step.kind
    if kind == "all_reduce":
        return f"wait(all_reduce({x}, 'sum', {name}))"
    if kind == "all_gather" and cross.even:
        flat = f"wait(all_gather({x}.contiguous().view(-1), {size}, {name}))"
        if in_line(cross.places, math.prod(shape)):
            return f"{flat}.view({shape})"
        cut = even_cut(cross.places)
        if cut is not None:
            before, parts, after = cut
            return f"{flat}.view({parts}, {before}, {after}).transpose(0, 1).reshape({shape})"
    if kind == "reduce_scatter" and cross.even and cross.whole and cross.group.backend != "gloo":
        cut = even_cut(cross.sources)
        if in_line(cross.sources, cross.held):
            flat = f"{x}.contiguous().view(-1)"
        elif cut is not None:
            before, parts, after = cut
            flat = f"{x}.reshape({before}, {parts}, {after}).transpose(0, 1).reshape(-1)"
        else:
            return None
        return f"wait(reduce_scatter({flat}, 'sum', {size}, {name})).view({shape})"
    return None
