"""Where no common digits say both layouts, bounds are counted cell by cell; they hold where the optimum is known."""

from __future__ import annotations

from itertools import product
from random import Random

import pytest
import torch
from attrs import evolve

from shardlang.layout import Cut, Dim, Factor, Layout, Pending
from shardlang.mesh import Mesh
from shardlang.plan.certificate import faults
from shardlang.plan.islands import least
from shardlang.plan.problem import SHIFT
from shardlang.plan.search import plan_transition
from shardlang.runtime.free_steps import local_step
from shardlang.runtime.simulate import assemble, run_plan, shard
from tests.plan.drawn import FAST, NEAR, SLOW, any_layout, every_layout, mesh_of


def uneven(random: Random, mesh: Mesh, shape: tuple[int, ...], *, pending: bool) -> Layout:
    """Every axis cuts a dim in ``torch.chunk``'s way, is whole, or (``pending``) owes a sum."""
    cuts: list[list[Cut]] = [[] for _ in shape]
    owed: list[Pending] = []
    for axis in random.sample(mesh.axes, len(mesh.axes)):
        place = random.randrange(len(shape) + 1 + pending)
        if place < len(shape):
            cuts[place].append(Cut(axis.name, uneven=True))
        elif place > len(shape):
            owed.append(Pending(axis.name, "sum"))
    return Layout(mesh, tuple(Dim((Factor(n),), tuple(c)) for n, c in zip(shape, cuts, strict=True)), tuple(owed))


@pytest.mark.parametrize("seed", range(4))
def test_counted_bounds_hold_where_the_optimum_is_known(seed: int) -> None:
    random = Random(seed)
    met = 0
    for _ in range(60):
        mesh = mesh_of(2, 2, 2, links=tuple(random.choice([SLOW, FAST, NEAR]) for _ in range(3)))
        shape = (random.choice([8, 4096]), 64)
        source, target = (any_layout(random, mesh, shape, pending=True) for _ in range(2))
        plan = plan_transition(source, target)
        bound = least(source, target, 4)
        assert bound is not None
        assert bound[0] >> SHIFT <= plan.time + len(plan.steps), (source, target)
        assert bound[1] <= plan.bytes_received, (source, target)
        met += plan.time > 0 and bound[0] >> SHIFT >= plan.time - len(plan.steps)
    assert met > 10


@pytest.mark.parametrize("pending", [False, True], ids=["whole", "pending"])
@pytest.mark.parametrize(("sizes", "mean"), [((3,), 0.001), ((2, 3), 0.16), ((2, 2, 2), 0.22)], ids=str)
def test_uneven_plans_are_right_and_their_gaps_small(sizes: tuple[int, ...], mean: float, pending: bool) -> None:
    random = Random(str(sizes))
    gaps = []
    for _ in range(60):
        mesh = mesh_of(*sizes, links=tuple(random.choice([SLOW, FAST]) for _ in sizes))
        shape = (random.choice([17, 1001]), random.choice([9, 1001]))
        source, target = (uneven(random, mesh, shape, pending=pending and i == 0) for i in range(2))
        plan = plan_transition(source, target)
        assert faults(plan) == (), (source, target)
        gaps.append(plan.gap)
    assert sum(gaps) / len(gaps) < mean
    assert pending or sorted(gaps)[len(gaps) // 2] == 0


def test_what_ranks_hold_becomes_pending_without_a_byte() -> None:
    """Each rank keeps of its rows those that the other cut gives it; the rest is zero: nothing has to move."""
    mesh = mesh_of(2, 4, links=(SLOW, FAST))
    source = Layout(mesh, (Dim((Factor(1001),), (Cut("a", uneven=True),)), Dim((Factor(8),))))
    target = Layout(mesh, (Dim((Factor(1001),), (Cut("b", uneven=True),)), Dim((Factor(8),))), (Pending("a", "sum"),))
    plan = plan_transition(source, target)
    assert [s.kind for s in plan.steps] == ["mask"]
    assert faults(plan) == ()


@pytest.mark.parametrize("seed", range(3))
def test_data_go_where_uneven_plans_say(seed: int) -> None:
    random = Random(seed)
    for i in range(40):
        mesh = mesh_of(*random.choice([(2, 3), (4, 2), (2, 2, 2)]), links=())
        source, target = (uneven(random, mesh, (7, 5), pending=True) for _ in range(2))
        if random.random() < 0.3:
            target = evolve(target, pending=tuple(Pending(p.axis, "avg") for p in target.pending))
        value = torch.randint(0, 100, (7, 5)).double() * 24
        plan = plan_transition(source, target, "f64")
        assert faults(plan) == (), (source, target)
        assert torch.equal(assemble(run_plan(plan, shard(value, source, seed=i)), target), value), (source, target)


def test_an_empty_tensor_moves_for_nothing() -> None:
    mesh = mesh_of(2, 2)
    layouts = list(every_layout(mesh, (0, 8), pending=True))
    for source, target in product(layouts, repeat=2):
        plan = plan_transition(source, target)
        assert plan.time == plan.bytes_received == 0
        assert plan.gap == 0
        assert faults(plan) == ()
        blocks = run_plan(plan, shard(torch.zeros(0, 8), source, seed=0))
        assert all(tuple(blocks[r].shape) == target.local_shape(r) for r in mesh.ranks)
        for step in plan.steps:
            if step.kind in ("slice", "mask"):
                kept = local_step(step, 0)(torch.zeros(step.source.local_shape(0)))
                assert tuple(kept.shape) == step.target.local_shape(0)
