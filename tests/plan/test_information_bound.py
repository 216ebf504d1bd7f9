"""Without pending axes a plan receives what ranks lack, and no array outgrows the larger end (issue's point 1)."""

from __future__ import annotations

from itertools import product
from random import Random

import pytest

from shardlang.layout import Layout, intersect_runs
from shardlang.plan.search import plan_transition
from tests.plan.drawn import any_layout, every_layout, mesh_of


def lacking(source: Layout, target: Layout) -> int:
    """Elements that some rank needs and does not hold, from runs."""
    worst = 0
    for rank in target.mesh.ranks:
        need = own = 1
        for have, want in zip(source.runs(rank), target.runs(rank), strict=True):
            need *= sum(b - a for a, b in want)
            own *= sum(b - a for a, b in intersect_runs(have, want))
        worst = max(worst, need - own)
    return worst


@pytest.mark.timeout(400)
@pytest.mark.parametrize("shape", [(64, 64), (16, 16, 16)], ids=["2d", "3d"])
@pytest.mark.parametrize("sizes", [(4,), (2, 2), (2, 4), (4, 2), (2, 2, 2)], ids=str)
def test_every_pair_receives_the_information_bound(sizes: tuple[int, ...], shape: tuple[int, ...]) -> None:
    mesh = mesh_of(*sizes)
    for source, target in product(list(every_layout(mesh, shape)), repeat=2):
        plan = plan_transition(source, target, "f32", objective="bytes")
        assert plan.bytes_received == lacking(source, target) * 4 == plan.bytes_bound, (source, target)
        assert plan.largest_array_ratio == 1.0, (source, target)


@pytest.mark.parametrize("sizes", [(2, 2, 2, 2), (2, 8, 8), (2, 2, 2, 2, 2)], ids=str)
def test_random_pairs_receive_the_information_bound(sizes: tuple[int, ...]) -> None:
    random = Random(str(sizes))
    mesh = mesh_of(*sizes)
    for i in range(2000):
        source, target = (any_layout(random, mesh, (8192, 8192)) for _ in range(2))
        plan = plan_transition(source, target, "f32", objective="bytes")
        assert plan.bytes_received == plan.bytes_bound
        assert plan.largest_array_ratio == 1.0
        if i % 100 == 0:
            assert plan.bytes_bound == lacking(source, target) * 4
