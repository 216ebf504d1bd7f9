"""The law for second derivatives: of a local program on all ranks simulated, beside one device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from shardlang.mesh import Mesh
from shardlang.plan.plan import dual
from shardlang.runtime import lockstep, simulate
from shardlang.runtime.law import Difference, averaged, compare
from shardlang.trace.capture import erased
from shardlang.trace.program import LocalProgram


def pattern(like: torch.Tensor, period: int) -> torch.Tensor:
    """Small integers, other ones for another period."""
    return (torch.arange(like.numel()) % period - period // 2).reshape(like.shape).to(like.dtype)


def second_differences(
    program: LocalProgram, function: Callable[..., Any], tensors: Sequence[torch.Tensor], mesh: Mesh
) -> list[Difference] | None:
    """Where the derivatives of ``sum(gradient * v)`` depart from one device's by more than 1e-9: those by the arguments
    and those by the gradients of the results. ``None`` where there is no second derivative.

    ``v`` goes into each argument's gradient as a change of the argument would: in the argument's own layout.
    """
    whole = [t.detach().clone().requires_grad_(t.is_floating_point()) for t in tensors]
    with erased():
        roots = [t for t in pytree.tree_leaves(function(*whole)) if isinstance(t, torch.Tensor)]
    parts: list[dict[int, torch.Tensor]] = []
    for tensor, layout in zip(tensors, program.arguments, strict=True):
        split = simulate.shard(tensor.detach(), layout, seed=7 if tensor.is_floating_point() else None)
        parts.append({r: b.requires_grad_(tensor.is_floating_point()) for r, b in split.items()})
    made = lockstep.run(program, mesh, parts)

    kept = [i for i, r in enumerate(roots) if r.requires_grad and not _ordered(program.results[i])]
    seeds = [pattern(roots[i], 5).requires_grad_() for i in kept]
    given = [i for i, t in enumerate(whole) if t.requires_grad and not _ordered(program.arguments[i])]
    first = _grad([roots[i] for i in kept], [whole[i] for i in given], seeds)
    split_seeds: list[dict[int, torch.Tensor]] = []
    for i, seed in zip(kept, seeds, strict=True):
        layout = program.results[i]
        blocks = simulate.shard(seed.detach() / averaged(layout), dual(layout))
        split_seeds.append({r: b.requires_grad_() for r, b in blocks.items()})
    heads = [(made[i][r], s[r]) for i, s in zip(kept, split_seeds, strict=True) for r in mesh.ranks]
    heads = [(h, s) for h, s in heads if h.requires_grad]
    flat = [parts[i][r] for i in given for r in mesh.ranks]
    firsts = _grad([h for h, _ in heads], flat, [s for _, s in heads])

    ways = [None if g is None else pattern(g, 7) for g in first]
    pairs = [(g, v) for g, v in zip(first, ways, strict=True) if g is not None and v is not None and g.requires_grad]
    if not pairs:
        return None
    due = _grad([g for g, _ in pairs], [*(whole[i] for i in given), *seeds], [v for _, v in pairs])
    turned = iter(firsts)
    split_pairs = []
    for i, way in zip(given, ways, strict=True):
        blocks = simulate.shard(way, program.arguments[i], seed=9) if way is not None else {}
        for r, gradient in zip(mesh.ranks, turned, strict=False):
            if gradient is not None and gradient.requires_grad:
                split_pairs.append((gradient, blocks[r]))
    wanted = flat + [s[r] for s in split_seeds for r in mesh.ranks]
    got = iter(_grad([g for g, _ in split_pairs], wanted, [v for _, v in split_pairs]))

    found: list[Difference] = []
    for i, want in zip(given, due, strict=False):
        scale = averaged(program.arguments[i])
        blocks = {
            r: torch.zeros_like(parts[i][r]) if (g := next(got)) is None else g.detach() * scale for r in mesh.ranks
        }
        right = _or_zero(want, whole[i])
        compare(
            found, f"the second derivative by {program.argument_names[i]}", blocks, program.gradients[i], right, 1e-9
        )
    for i, seed, own, want in zip(kept, seeds, split_seeds, due[len(given) :], strict=True):
        blocks = {r: _or_zero(next(got), own[r]) for r in mesh.ranks}
        right = _or_zero(want, seed)
        compare(found, f"the derivative by the gradient of result {i}", blocks, program.results[i], right, 1e-9)
    return found


def _or_zero(found: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(like) if found is None else found.detach()


def _ordered(layout: Any) -> bool:
    return any(p.op in ("max", "min") for p in layout.owed())


def _grad(outputs: list[Any], inputs: list[Any], seeds: list[Any]) -> list[torch.Tensor | None]:
    if not outputs:
        return [None] * len(inputs)
    return list(torch.autograd.grad(outputs, inputs, seeds, create_graph=True, allow_unused=True))
