"""Plans beside exhaustive search over all layouts on prime sub-axes (issue's point 2), and the bounds beside both."""

from __future__ import annotations

from random import Random

import pytest

from shardlang.plan.bounds import bound
from shardlang.plan.search import best_path
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


@pytest.mark.parametrize("objective", ["time", "bytes"])
@pytest.mark.parametrize("element", [4, 1 << 16], ids=["small", "large"])
@pytest.mark.parametrize(("sizes", "classes"), MESHES, ids=str)
def test_no_plan_over_hole_free_layouts_is_better(
    sizes: tuple[int, ...], classes: tuple[int, ...], element: int, objective: str
) -> None:
    links = LINKS if len(set(classes)) == 2 else LINKS[:1]
    by_bytes = objective == "bytes"
    oracle = Oracle(sizes, classes, links, (64, 64), element, by_bytes)
    random = Random(str((sizes, classes, element)))
    for _ in range(40):
        source, target = random.sample(oracle.states, 2)
        problem, costs = oracle.asked(source, target)
        _, answer = best_path(problem)
        least = oracle.best(source, costs)
        assert costs.primary(answer.cost) <= costs.primary(least), (source, target)
        assert answer.complete
        time, received = bound(costs, source, target)
        assert (received if by_bytes else time) <= costs.primary(answer.cost), (source, target)


def test_three_dim_tensors_too() -> None:
    oracle = Oracle((2, 2, 2), (0, 1, 1), LINKS, (16, 16, 16), 1 << 14, False)
    random = Random(3)
    for _ in range(40):
        source, target = random.sample(oracle.states, 2)
        problem, costs = oracle.asked(source, target)
        _, answer = best_path(problem)
        assert costs.primary(answer.cost) <= costs.primary(oracle.best(source, costs)), (source, target)
