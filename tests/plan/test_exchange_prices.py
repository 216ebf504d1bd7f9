"""The closed formula of an exchange's price beside a count of the transfers themselves."""

from __future__ import annotations

from random import Random

import pytest

from shardlang.plan.cost import Costs, between
from shardlang.plan.problem import problem
from shardlang.plan.uneven import measure
from tests.plan.drawn import FAST, NEAR, SLOW, any_layout, mesh_of


@pytest.mark.parametrize("seed", range(6))
def test_formula_counts_what_every_rank_receives_and_sends(seed: int) -> None:
    random = Random(seed)
    priced = 0
    while priced < 60:
        sizes = [random.choice([2, 2, 4]) for _ in range(random.choice([2, 3]))]
        mesh = mesh_of(*sizes, links=tuple(random.choice([SLOW, FAST, NEAR]) for _ in sizes))
        source, target = (any_layout(random, mesh, (64, 64), pending=i == 0) for i in (0, 1))
        asked = problem(source, target, 4, None, False)
        assert asked is not None
        question = asked.question
        edge = between(Costs(question), question.source, question.target)
        if edge is None or edge[1] != "exchange":
            continue
        priced += 1
        received, sent, time = measure(source, target, 4)
        assert edge[2] == received, (source, target)
        assert abs(edge[4] - time) <= time * 1e-9, (source, target)
        # Sent bytes are the sum over links of the worst rank on each, which on one link is the worst rank.
        assert edge[3] >= sent
