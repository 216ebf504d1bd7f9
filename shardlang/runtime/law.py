"""The law, held for one function: all ranks simulated, values and gradients compared with one device."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from attrs import frozen
from torch.utils import _pytree as pytree

from shardlang.layout import Layout
from shardlang.mesh import Mesh
from shardlang.plan.plan import dual
from shardlang.runtime import lockstep, simulate
from shardlang.trace.capture import erased
from shardlang.trace.program import LocalProgram


@frozen
class Difference:
    """What differs: ``result 0`` or ``gradient of x``; by how much at most, and how large the right values are."""

    what: str
    greatest: float
    scale: float

    def __str__(self) -> str:
        return f"{self.what} differs by {self.greatest:.3g} (values up to {self.scale:.3g})"


def differences(
    program: LocalProgram,
    function: Callable[..., Any],
    tensors: Sequence[torch.Tensor],
    mesh: Mesh,
    *,
    tolerance: float = 1e-9,
) -> list[Difference]:
    """Where a local program departs from ``function(*tensors)`` on one device by more than ``tolerance``.

    ``tensors`` are global values; pending arguments are split into random parts. The tolerance is relative to the
    largest right value of each tensor.
    """
    whole = [t.detach().clone().requires_grad_(_differentiable(t)) for t in tensors]
    blocks = []
    for tensor, layout in zip(tensors, program.arguments, strict=True):
        parts = simulate.shard(tensor.detach(), layout, seed=7 if tensor.is_floating_point() else None)
        blocks.append({r: b.requires_grad_(_differentiable(tensor)) for r, b in parts.items()})
    split = lockstep.run(program, mesh, blocks)
    with erased():
        expected = [t for t in pytree.tree_leaves(function(*whole)) if isinstance(t, torch.Tensor)]
    found: list[Difference] = []
    heads: list[torch.Tensor] = []
    seeds: list[torch.Tensor] = []
    roots: list[torch.Tensor] = []
    root_seeds: list[torch.Tensor] = []
    for i, (parts, want, layout) in enumerate(zip(split, expected, program.results, strict=True)):
        compare(found, f"result {i}", {r: b.detach() for r, b in parts.items()}, layout, want.detach(), tolerance)
        if not want.requires_grad or any(p.op in ("max", "min") for p in layout.owed()):
            continue
        seed = (torch.arange(want.numel(), dtype=torch.float64) % 5 - 1).reshape(want.shape).to(want.dtype)
        # A rank's part of a pending average counts once in so many.
        of_rank = simulate.shard(seed / averaged(layout), dual(layout))
        ranks = [r for r in mesh.ranks if parts[r].requires_grad]
        heads += [parts[r] for r in ranks]
        seeds += [of_rank[r] for r in ranks]
        roots.append(want)
        root_seeds.append(seed)
    if not roots:
        return found
    torch.autograd.backward(roots, root_seeds)
    torch.autograd.backward(heads, seeds)
    for name, parts, want, layout, given in zip(
        program.argument_names, blocks, whole, program.gradients, program.arguments, strict=True
    ):
        if want.requires_grad:
            grads = {r: torch.zeros_like(b) if b.grad is None else b.grad * averaged(given) for r, b in parts.items()}
            due = torch.zeros_like(want) if want.grad is None else want.grad
            compare(found, f"the gradient of {name}", grads, layout, due, tolerance)
    return found


def averaged(layout: Layout) -> int:
    """By what a value's gradient is divided on each rank: the ranks of the axes that owe an average."""
    return math.prod(layout.mesh.axis(p.axis).size for p in layout.owed() if p.op == "avg")


def _differentiable(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def compare(
    found: list[Difference], what: str, blocks: dict[int, torch.Tensor], layout: Layout, want: torch.Tensor, tol: float
) -> None:
    """Notes in ``found`` where blocks of a layout are not those of the tensor that one device has, ``want``."""
    try:
        got = simulate.assemble(blocks, layout)
    except simulate.SimulationError as error:
        found.append(Difference(f"{what} ({error})", math.inf, 0.0))
        return
    if got.dtype != want.dtype or got.shape != want.shape:
        found.append(Difference(f"{what} ({got.dtype} {tuple(got.shape)})", math.inf, 0.0))
        return
    if not want.numel():
        return
    if not _differentiable(want):
        wrong = got != want
        if bool(wrong.any()):
            found.append(
                Difference(what, float((got.double() - want.double()).abs().max()), float(want.double().abs().max()))
            )
        return
    same = (got == want) | (got.isnan() & want.isnan())
    difference = torch.where(same, torch.zeros((), dtype=want.abs().dtype), (got - want).abs())
    scale = float(torch.nan_to_num(want.abs()).max())
    greatest = float(torch.nan_to_num(difference, nan=math.inf).max())
    if greatest > tol * max(scale, 1.0):
        found.append(Difference(what, greatest, scale))


__all__ = ["Difference", "averaged", "compare", "differences"]
