"""Plans beside exhaustive search over all layouts on prime sub-axes (issue's point 2), and the bounds beside both."""

from __future__ import annotations

from random import Random

import pytest

from shardlang.plan.astar import Answer
from shardlang.plan.bounds import bound
from shardlang.plan.cost import Costs
from shardlang.plan.everywhere import search_everywhere
from shardlang.plan.field import Field
from shardlang.plan.floor import floor
from shardlang.plan.places import OWED, WHOLE, roomy
from shardlang.plan.problem import State, problem
from shardlang.plan.search import best_path, plan_transition
from tests.plan.drawn import FAST, NEAR, SLOW, any_layout, layout_of, mesh_of
from tests.plan.oracle import Oracle

LINKS = ((12 * 10**6, (10**12 << 40) // (50 * 10**9)), (3 * 10**6, (10**12 << 40) // (450 * 10**9)))
MESHES = [
    ((2, 2), (0, 0)),
    ((2, 2), (0, 1)),
    ((2, 2), (1, 0)),
    ((2, 2, 2), (0, 0, 0)),
    ((2, 2, 2), (0, 1, 1)),
    ((2, 2, 2), (0, 0, 1)),
    ((2, 2, 2), (1, 0, 1)),
    ((2, 2, 2), (1, 1, 0)),
]


def hold_one(costs: Costs, answer: Answer, least: int, ends: tuple[State, State]) -> bool:
    """A plan is complete, no dearer than the least, and not below the bounds. Is it slower than one of as few bytes?"""
    cost = costs.primary(answer.cost)
    assert cost <= costs.primary(least), ends
    assert answer.complete, ends
    for time, received in (bound(costs, *ends), floor(costs)):
        assert (received if costs.by_bytes else time) <= cost + (cost >> 30), ends
    if not costs.by_bytes or cost < costs.primary(least):
        return False
    # Units of 2^-40 ps; what floats do not tell is left out.
    return sum(edge[4] for _, edge in answer.path) > costs.secondary(least) * (1 + 1e-9) + (1 << 42)


def hold(sizes: tuple[int, ...], classes: tuple[int, ...], element: int, objective: str, pairs: int) -> None:
    """No plan of some random pairs (all there are, where they are no more) is above exhaustive search."""
    links = LINKS if len(set(classes)) == 2 else LINKS[:1]
    by_bytes = objective == "bytes"
    oracle = Oracle(sizes, classes, links, (64, 64), element, by_bytes)
    random = Random(str((sizes, classes, element)))
    every = [(a, b) for a in oracle.states for b in oracle.states if a != b]
    slower = 0
    for source, target in random.sample(every, min(pairs, len(every))):
        problem, costs = oracle.asked(source, target)
        _, answer = best_path(problem)
        least = oracle.best(source, costs)
        slower += hold_one(costs, answer, least, (source, target))
    assert slower * 100 <= pairs, slower


EACH = pytest.mark.parametrize("objective", ["time", "bytes"])
SIZES = pytest.mark.parametrize("element", [4, 1 << 16], ids=["small", "large"])


@EACH
@SIZES
@pytest.mark.parametrize(("sizes", "classes"), MESHES, ids=str)
def test_no_plan_over_hole_free_layouts_is_better(
    sizes: tuple[int, ...], classes: tuple[int, ...], element: int, objective: str
) -> None:
    hold(sizes, classes, element, objective, 30)


@pytest.mark.nightly
@EACH
@SIZES
@pytest.mark.parametrize(("sizes", "classes"), MESHES, ids=str)
def test_no_plan_of_many_pairs_is_better(
    sizes: tuple[int, ...], classes: tuple[int, ...], element: int, objective: str
) -> None:
    hold(sizes, classes, element, objective, 400)


@pytest.mark.nightly
@SIZES
@pytest.mark.parametrize("classes", [(0, 0, 1, 1), (0, 1, 0, 1), (0, 0, 0, 1), (0, 1, 1, 1)], ids=str)
def test_four_prime_axes_on_two_links_are_planned_as_well(classes: tuple[int, ...], element: int) -> None:
    oracle = Oracle((2, 2, 2, 2), classes, LINKS, (64, 64), element, False)
    random = Random(str((classes, element)))
    for _ in range(40):
        source, target = random.sample(oracle.states, 2)
        problem, costs = oracle.asked(source, target)
        _, answer = best_path(problem)
        cost, least = costs.primary(answer.cost), costs.primary(oracle.best(source, costs))
        assert answer.bound <= least, (source, target)
        if answer.complete:
            assert cost <= least, (source, target)


@pytest.mark.parametrize("sizes", [(2, 2, 2), (2, 2, 2, 2)], ids=str)
def test_no_plan_over_strided_layouts_is_better(sizes: tuple[int, ...]) -> None:
    """The search takes states for one that differ in where atoms stand aside; here every slot is told apart."""
    random = Random(str(sizes))
    for _ in range(60 // len(sizes) ** 2):
        mesh = mesh_of(*sizes, links=tuple(random.choice([SLOW, FAST, NEAR]) for _ in sizes))
        shape = (random.choice([64, 1024, 8192]),) * 2
        source, target = (any_layout(random, mesh, shape, pending=random.random() < 0.5) for _ in range(2))
        asked = problem(source, target, 4, max(source.block_numel(), target.block_numel(), 1 << 18) * 4, False)
        assert asked is not None
        _, answer = best_path(asked)
        costs = Costs(roomy(asked).question)
        owed = costs.question.source[1]
        anywhere = tuple(
            (WHOLE, *[OWED] * (owed >> a & 1), *(v for v, extent in enumerate(costs.extents) if extent == size))
            for a, size in enumerate(costs.size)
        )
        least = costs.primary(search_everywhere(costs, Field(costs, anywhere), 10**6).cost)
        assert answer.bound <= least + 1, (source, target)
        assert not answer.complete or costs.primary(answer.cost) <= least + least // 10**9, (source, target)


@pytest.mark.nightly
@pytest.mark.timeout(900)
@EACH
@SIZES
@pytest.mark.parametrize(("sizes", "classes"), MESHES, ids=str)
def test_no_plan_of_any_pair_is_better(
    sizes: tuple[int, ...], classes: tuple[int, ...], element: int, objective: str
) -> None:
    """All pairs, but for those that other names of like axes or another order of the dims make of one another."""
    links = LINKS if len(set(classes)) == 2 else LINKS[:1]
    oracle = Oracle(sizes, classes, links, (64, 64), element, objective == "bytes")
    slower = pairs = 0
    for source, targets in oracle.pairs():
        for target in targets:
            pairs += 1
            problem, costs = oracle.asked(source, target)
            _, answer = best_path(problem)
            slower += hold_one(costs, answer, oracle.least(source, costs), (source, target))
    # Which of the plans that receive as little is the fastest is told but for a few.
    assert slower * 100 <= pairs, slower


def test_three_dim_tensors_too() -> None:
    oracle = Oracle((2, 2, 2), (0, 1, 1), LINKS, (16, 16, 16), 1 << 14, False)
    random = Random(3)
    for _ in range(40):
        source, target = random.sample(oracle.states, 2)
        problem, costs = oracle.asked(source, target)
        _, answer = best_path(problem)
        assert costs.primary(answer.cost) <= costs.primary(oracle.best(source, costs)), (source, target)


def test_of_plans_that_receive_as_little_the_fastest_is_chosen() -> None:
    mesh = mesh_of(8, 8, links=(SLOW, FAST))
    source, target = layout_of(mesh, (1024, 1024), "a", "b"), layout_of(mesh, (1024, 1024), "", "a")
    plan = plan_transition(source, target, objective="bytes")
    assert plan.bytes_received == plan.bytes_bound
    assert [s.kind for s in plan.steps] == ["permute", "all_gather"]
    assert plan.time == plan_transition(source, target).time
