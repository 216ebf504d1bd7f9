"""Plans beside exhaustive search over all layouts on prime sub-axes (issue's point 2), and the bounds beside both."""

from __future__ import annotations

from random import Random

import pytest

from shardlang.plan.bounds import bound
from shardlang.plan.cost import Costs
from shardlang.plan.everywhere import search_everywhere
from shardlang.plan.field import Field
from shardlang.plan.places import OWED, WHOLE, roomy
from shardlang.plan.problem import problem
from shardlang.plan.search import best_path
from tests.plan.drawn import FAST, NEAR, SLOW, any_layout, mesh_of
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


def hold(sizes: tuple[int, ...], classes: tuple[int, ...], element: int, objective: str, pairs: int) -> None:
    """No plan of some random pairs (all there are, where they are no more) is above exhaustive search."""
    links = LINKS if len(set(classes)) == 2 else LINKS[:1]
    by_bytes = objective == "bytes"
    oracle = Oracle(sizes, classes, links, (64, 64), element, by_bytes)
    random = Random(str((sizes, classes, element)))
    every = [(a, b) for a in oracle.states for b in oracle.states if a != b]
    for source, target in random.sample(every, min(pairs, len(every))):
        problem, costs = oracle.asked(source, target)
        _, answer = best_path(problem)
        least = oracle.best(source, costs)
        assert costs.primary(answer.cost) <= costs.primary(least), (source, target)
        assert answer.complete
        time, received = bound(costs, source, target)
        assert (received if by_bytes else time) <= costs.primary(answer.cost), (source, target)


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


def test_three_dim_tensors_too() -> None:
    oracle = Oracle((2, 2, 2), (0, 1, 1), LINKS, (16, 16, 16), 1 << 14, False)
    random = Random(3)
    for _ in range(40):
        source, target = random.sample(oracle.states, 2)
        problem, costs = oracle.asked(source, target)
        _, answer = best_path(problem)
        assert costs.primary(answer.cost) <= costs.primary(oracle.best(source, costs)), (source, target)
