"""Hand-made steps and plans, and a body that runs a plan on a rank of a world, for the tests of both back ends."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from shardlang.layout import Cut, Dim, Factor, Layout, Pending
from shardlang.mesh import Axis, Mesh
from shardlang.plan.plan import Plan
from shardlang.plan.steps import Kind, Step
from shardlang.runtime import distributed, simulate, steps
from shardlang.runtime.groups import Team

LINE = Mesh("line", (Axis("r", 4),))
SQUARE = Mesh("square", (Axis("a", 2), Axis("b", 2)))


def layout(mesh: Mesh, shape: tuple[int, ...], cuts: dict[int, str] | None = None, **owed: str) -> Layout:
    """``layout(SQUARE, (5, 3), {0: "ab"}, ...)``: dim 0 cut over a, then b (one-letter axes); ``a="sum"`` pending."""
    cuts = cuts or {}
    dims = tuple(Dim((Factor(n),), tuple(Cut(a, uneven=True) for a in cuts.get(d, ""))) for d, n in enumerate(shape))
    pending = tuple(Pending(a, op) for a, op in owed.items())  # type: ignore[arg-type]  # checked by who reads it
    return Layout(mesh, dims, pending)


def plan_of(kind: Kind, axes: str, source: Layout, target: Layout, **more: Any) -> Plan:
    """A plan of one step."""
    step = Step(kind, tuple(axes), source, target, **more)
    return Plan(source, target, "f32", (step,), "time", 1.0, 0, 0, 0, 0)


def value_of(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Small integers, all different where the dtype can tell."""
    count = 1
    for n in shape:
        count *= n
    value = torch.arange(1, count + 1).view(shape)
    if dtype == torch.bool:
        return value % 3 == 0
    if dtype.itemsize == 1:
        value = value % 13
    return value.to(dtype)


def run_blocks(plans: list[Plan], blocks: list[dict[int, torch.Tensor]]) -> list[torch.Tensor]:
    """On a rank: each plan from this rank's block; runs as a body of a world."""
    rank = dist.get_rank()
    return [distributed.run_plan(p, b.get(rank, torch.empty(0))) for p, b in zip(plans, blocks, strict=True)]


def run_blocks_apart(plans: list[Plan], blocks: list[dict[int, torch.Tensor]]) -> list[torch.Tensor]:
    """As ``run_blocks``, every piece sent by itself, as large ones are."""
    steps.LARGE, usual = 0, steps.LARGE
    try:
        ready = [distributed.ReadyPlan(p, Team()) for p in plans]
        return [r.start(b[dist.get_rank()], None, None).wait() for r, b in zip(ready, blocks, strict=True)]
    finally:
        steps.LARGE = usual


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal to the bit, shape and dtype included."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return a.contiguous().view(-1).view(torch.uint8).equal(b.contiguous().view(-1).view(torch.uint8))


def check_against_simulator(
    world: Any, plans: list[Plan], values: list[torch.Tensor], seed: int | None = 1, body: Any = run_blocks
) -> None:
    """Runs plans on a world and holds every block, and the whole, against the simulator's."""
    blocks = [simulate.shard(v, p.source, seed=seed) for p, v in zip(plans, values, strict=True)]
    ran = world.run(body, plans, blocks)
    for i, (plan, value, start) in enumerate(zip(plans, values, blocks, strict=True)):
        expected = simulate.run_plan(plan, start)
        for rank, block in expected.items():
            assert same(ran[rank][i], block), f"rank {rank}, plan {i}: {plan.source} => {plan.target}"
        assert same(simulate.assemble(expected, plan.target), value), f"plan {i}: {plan.source} => {plan.target}"
