"""Runs a local program for all ranks in one process, node by node: the oracle for functions.

Every rank's block goes through the same node before the next; moves are carried out by ``simulate`` over all blocks at
once, as one differentiable function, so that ``backward`` on the results gives every rank's gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from shardlang.mesh import Mesh
from shardlang.plan.plan import Plan
from shardlang.runtime import generate
from shardlang.runtime.simulate import run_plan
from shardlang.trace.program import Draw, LocalProgram, draw, move, rank_value


def drawn(made: Draw, rank: int, seed: int) -> torch.Tensor:
    """A rank's block of random numbers."""
    layout, first, second = made.layout, made.first, made.second
    runs, local = layout.runs(rank), layout.local_shape(rank)
    if made.kind == "normal":
        precise = torch.float64 if made.dtype == torch.float64 else torch.float32
        return (generate.normal(runs, layout.shape, seed, precise).reshape(local) * second + first).to(made.dtype)
    precise = torch.float64 if made.dtype == torch.float64 or made.kind == "integers" else torch.float32
    numbers = generate.uniform(runs, layout.shape, seed, precise).reshape(local)
    if made.kind == "kept":
        return (numbers >= first).to(made.dtype) / (1 - first)
    if made.kind == "bernoulli":
        return (numbers < first).to(made.dtype)
    numbers = numbers * (second - first) + first
    return (numbers.floor() if made.kind == "integers" else numbers).to(made.dtype)


Blocks = dict[int, torch.Tensor]


class _Move(torch.autograd.Function):
    """A move over the blocks of all ranks. What comes back through its gradients goes the way that the blocks went."""

    @staticmethod
    def forward(
        ctx: Any, there: Plan | None, back: Plan | None, ranks: list[int], *blocks: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.there, ctx.back, ctx.ranks = there, back, ranks
        return _carry(there, ranks, blocks)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return (None, None, None, *_Move.apply(ctx.back, ctx.there, ctx.ranks, *grads))  # type: ignore[no-untyped-call]


def _carry(plan: Plan | None, ranks: list[int], blocks: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    if plan is None:
        return tuple(b.clone() for b in blocks)
    moved = run_plan(plan, dict(zip(ranks, blocks, strict=True)))
    return tuple(moved[r].clone() for r in ranks)


def run(program: LocalProgram, mesh: Mesh, arguments: Sequence[Blocks], seed: int = 0) -> list[Blocks]:
    """The results' blocks of every rank, from those of the arguments. ``seed`` is that of dropout."""
    ranks = list(mesh.ranks)
    known: dict[fx.Node, dict[int, Any]] = {}
    feed = iter(arguments)
    for node in program.graph.nodes:
        if node.op == "placeholder":
            known[node] = dict(next(feed))
        elif node.op == "get_attr":
            known[node] = {r: program.constants[str(node.target)] for r in ranks}
        elif node.op == "output":
            return [known[n] for n in node.args[0]]
        elif node.target is move:
            made = program.moves[node.args[1]]
            blocks = known[node.args[0]]
            moved = _Move.apply(made.forward, made.backward, ranks, *[blocks[r] for r in ranks])  # type: ignore[no-untyped-call]  # torch leaves apply untyped
            known[node] = dict(zip(ranks, moved, strict=True))
        elif node.target is draw:
            made_by = program.draws[node.args[0]]
            known[node] = {r: drawn(made_by, r, seed + node.args[0]) for r in ranks}
        elif node.target is rank_value:
            known[node] = {r: program.rank_values[node.args[0]](r) for r in ranks}
        elif node.target is torch._C._set_grad_enabled:
            torch._C._set_grad_enabled(node.args[0])
            known[node] = dict.fromkeys(ranks)
        else:
            known[node] = {r: _call(node, known, r) for r in ranks}
    raise AssertionError("a graph without an output")


def _call(node: fx.Node, known: dict[fx.Node, dict[int, Any]], rank: int) -> Any:
    args = fx.node.map_arg(node.args, lambda n: known[n][rank])
    kwargs = fx.node.map_arg(node.kwargs, lambda n: known[n][rank])
    target: Any = node.target
    return target(*args, **kwargs)
