"""The law over whole families of transitions: what runs equals the simulator, the simulator the tensor, and gradients
those of one device. A sample in `make test`, every pair in `make nightly`."""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

import shardlang as sl
from shardlang import testing
from shardlang.layout import Cut, Dim, Factor, Layout, Pending, ReduceOp
from shardlang.lower.placements import layout_of, mesh_of
from shardlang.mesh import Axis, Mesh
from shardlang.plan.search import plan_transition
from shardlang.runtime import distributed, simulate
from tests.runtime.transitions import same, value_of
from tests.world import World, torch_mesh

SHAPES = [(8, 8), (5, 3), (1, 7), (0, 4), (8,), (3,)]
OPS = ["sum", "avg", "max", "min"]
Case = tuple[tuple[int, ...], tuple[int, ...], tuple[str, ...], tuple[str, ...]]
"""Mesh sizes, shape, and the placements of source and target: ``R``, ``S0``, ``S1``, or an operator."""


def placements(mesh: tuple[int, ...], shape: tuple[int, ...]) -> list[tuple[str, ...]]:
    return list(product(["R", *(f"S{d}" for d in range(len(shape))), *OPS], repeat=len(mesh)))


def commutes(names: tuple[str, ...]) -> bool:
    ops = {n for n in names if n in OPS}
    return len(ops) < 2 or ops == {"sum", "avg"}


def cases() -> list[Case]:
    """Every pair on (4) and (2, 2) whose source exists; the target may be one that no plan reaches."""
    found: list[Case] = []
    for mesh, shape in product([(4,), (2, 2)], SHAPES):
        ways = placements(mesh, shape)
        found += [(mesh, shape, a, b) for a, b in product(ways, ways) if commutes(a)]
    return found


def counted(case: Case) -> bool:
    """Is it one of the issue's 9,012 pairs? Those have two different ends, and one kind of reduction in the source."""
    return case[2] != case[3] and len({n for n in case[2] if n in OPS}) < 2


def torch_placements(names: tuple[str, ...]) -> list[Any]:
    return [Replicate() if n == "R" else Shard(int(n[1])) if n[0] == "S" else Partial(n) for n in names]


def layout_at(mesh: Mesh, shape: tuple[int, ...], names: tuple[str, ...]) -> Layout:
    return layout_of(mesh, tuple(torch_placements(names)), shape)


def ends(case: Case) -> tuple[Layout, Layout]:
    mesh, shape, a, b = case
    axes = Mesh("m", tuple(Axis(n, s) for n, s in zip("ab", mesh, strict=False)))
    return layout_at(axes, shape, a), layout_at(axes, shape, b)


def run_cases(some: list[Case]) -> list[Any]:
    """On a rank: its block after each transition, or the code of the refusal."""
    results: list[Any] = []
    for case in some:
        source, target = ends(case)
        try:
            plan = plan_transition(source, target)
        except sl.ShardlangError as error:
            results.append(error.codes[0])
            continue
        blocks = simulate.shard(value_of(source.shape), source, seed=1)
        results.append(distributed.run_plan(plan, blocks[dist.get_rank()]))
    return results


def check(world: World, some: list[Case], timeout: float) -> tuple[Counter[str], Counter[str]]:
    """Holds every result against the simulator's and the tensor; how many were right, and refused: of all, and of those
    that count."""
    ran = world.run(run_cases, some, timeout=timeout)
    told: Counter[str] = Counter()
    ours: Counter[str] = Counter()
    for i, case in enumerate(some):
        source, target = ends(case)
        if not commutes(case[3]):
            assert {r[i] for r in ran} == {"SL0404"}, case
            told["refused"] += 1
            ours["refused"] += counted(case)
            continue
        value = value_of(source.shape)
        expected = simulate.run_plan(plan_transition(source, target), simulate.shard(value, source, seed=1))
        assert all(same(r[i], expected[rank]) for rank, r in enumerate(ran)), case
        assert same(simulate.assemble(expected, target), value), case
        told["right"] += 1
        ours["right"] += counted(case)
    return told, ours


def test_there_are_9012_pairs_of_which_7052_have_ends_that_go_together() -> None:
    """Of (4) and (2, 2), six shapes, four kinds of reduction; the family here has the pairs of equal ends as well, and
    sources that average over one axis and add up over the other."""
    ours = [c for c in cases() if counted(c)]
    assert (len(ours), sum(commutes(c[3]) for c in ours)) == (9012, 7052)
    assert (len(cases()), sum(commutes(c[3]) for c in cases())) == (9784, 7704)


def test_a_sample_of_all_transitions_is_right_or_refused_with_a_code(world: World) -> None:
    told, _ = check(world, cases()[::53], 300)
    assert told == {"right": 147, "refused": 38}


@pytest.mark.nightly
def test_all_transitions_are_right_or_refused_with_a_code(world: World) -> None:
    told, ours = check(world, cases(), 1800)
    assert told == {"right": 7704, "refused": 2080}
    assert ours == {"right": 7052, "refused": 1960}


def run_gradients(some: list[Case]) -> list[Any]:
    """On a rank: the transitions whose gradient is not that of one device, or wrong in value."""
    wrong = []
    for sizes, shape, a, b in some:
        mesh = torch_mesh(sizes, tuple("ab"[: len(sizes)]))
        value, weight = value_of(shape), value_of(shape).flip(0) + 2
        source, target = layout_at(mesh_of(mesh), shape, a), layout_at(mesh_of(mesh), shape, b)
        block = simulate.shard(value, source, seed=2)[dist.get_rank()]
        x = DTensor.from_local(block, mesh, torch_placements(a), shape=value.shape, stride=value.stride())
        x.requires_grad_()
        y = sl.reshard(sl.reshard(x, target), Layout.whole(target.mesh, shape))
        loss = (y.to_local() ** 2 * weight).sum()
        (grad,) = torch.autograd.grad(loss, x)
        if not torch.equal(grad.full_tensor(), 2 * value * weight):
            wrong.append((sizes, shape, a, b))
    return wrong


def gradient_cases() -> list[Case]:
    """All that are differentiable: those whose ends go together, of every shape."""
    return [c for c in cases() if commutes(c[3])]


def test_a_sample_of_gradients_is_that_of_one_device(world: World) -> None:
    assert world.run(run_gradients, gradient_cases()[::53], timeout=300) == [[]] * 4


@pytest.mark.nightly
def test_all_gradients_are_those_of_one_device(world: World) -> None:
    assert len(gradient_cases()) == 7704
    assert world.run(run_gradients, gradient_cases(), timeout=3600) == [[]] * 4


@settings(max_examples=80, deadline=None)
@given(testing.transitions(), st.integers(0, 9))
def test_any_plan_on_all_simulated_ranks_keeps_the_tensor(change: tuple[Layout, Layout], seed: int) -> None:
    source, target = change
    value = value_of(source.shape)
    try:
        plan = plan_transition(source, target)
    except sl.ShardlangError as error:
        assert error.codes == ("SL0404",)  # noqa: PT017  # either outcome is right, for different layouts
        return
    after = simulate.assemble(simulate.run_plan(plan, simulate.shard(value, source, seed=seed)), target)
    thirds = any(p.op == "avg" for p in (*source.owed(), *target.owed()))
    assert torch.allclose(after, value, rtol=1e-6, atol=1e-5) if thirds else same(after, value)


@pytest.mark.parametrize("owed", [None, "sum", "avg", "max"])
@pytest.mark.parametrize("size", [1, 7])
def test_one_part_of_an_axis_moves_while_another_cuts_unevenly(owed: ReduceOp | None, size: int) -> None:
    """The second dim is cut over ``a1``; the first is split over ``a0``, or a reduction over it is owed; and back."""
    mesh = Mesh("m", (Axis("a", 4),), {"a": (Axis("a0", 2), Axis("a1", 2))})
    second = Dim((Factor(size),), (Cut("a1", uneven=True),))
    whole = Layout(mesh, (Dim((Factor(4),)), second))
    if owed is None:
        other = Layout(mesh, (Dim((Factor(4, ("a0",)),)), second))
    else:
        other = Layout(mesh, whole.dims, (Pending("a0", owed),))
    value = value_of((4, size))
    for source, target in ((whole, other), (other, whole)):
        plan = plan_transition(source, target)
        assert [step.axes for step in plan.steps] == [("a0",)]
        assert same(simulate.assemble(simulate.run_plan(plan, simulate.shard(value, source)), target), value)


@pytest.mark.nightly
@settings(max_examples=20_000, deadline=None)
@given(testing.transitions(), st.integers(0, 9))
def test_many_more_plans_on_all_simulated_ranks_keep_the_tensor(change: tuple[Layout, Layout], seed: int) -> None:
    test_any_plan_on_all_simulated_ranks_keeps_the_tensor.hypothesis.inner_test(change, seed)  # type: ignore[attr-defined]
