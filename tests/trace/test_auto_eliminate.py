"""Sums of tables are minimised exactly: by elimination, by the solver library, and by both together."""

from __future__ import annotations

import math
import random
import sys
from itertools import product

import pytest
import torch

from shardlang.diagnostics import ShardlangError
from shardlang.trace.auto.condition import by_cases
from shardlang.trace.auto.eliminate import NEVER, Factor, Memory, cost_of, eliminate
from shardlang.trace.auto.integer import solve_core

SEEDS = range(40)


def drawn(seed: int) -> tuple[list[int], list[Factor], int]:
    """Numbers of values, tables over up to three variables with some entries that cannot be, and the least sum."""
    draw = random.Random(seed)
    while True:
        sizes = [draw.randint(1, 4) for _ in range(draw.randint(1, 6))]
        factors = []
        for _ in range(draw.randint(1, 8)):
            scope = tuple(sorted(draw.sample(range(len(sizes)), min(len(sizes), draw.randint(1, 3)))))
            shape = [sizes[v] for v in scope]
            entries = [draw.randint(0, 50) if draw.random() > 0.15 else NEVER for _ in range(math.prod(shape))]
            factors.append(Factor(scope, torch.tensor(entries).reshape(shape)))
        best = min(cost_of(factors, dict(enumerate(c))) for c in product(*map(range, sizes)))
        if best < NEVER:
            return sizes, factors, best


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("limit", [1 << 20, 6, 1])
def test_elimination_and_the_solver_find_what_trying_all_finds(seed: int, limit: int) -> None:
    sizes, factors, best = drawn(seed)
    done = eliminate(sizes, factors, limit)
    core = solve_core(sizes, done.core, "f").values if done.core else {}
    assert cost_of(factors, done.complete(core)) == best
    if limit == 1 << 20:
        assert done.constant == best
        assert not done.core


def test_elimination_leaves_no_core_of_a_tree() -> None:
    sizes = [5] * 9
    factors = [Factor(((v - 1) // 2, v), torch.arange(25).reshape(5, 5) * v % 7) for v in range(1, 9)]
    assert eliminate(sizes, factors, 25).core == ()


def test_equal_parts_of_a_chain_are_worked_out_once() -> None:
    draw = torch.Generator().manual_seed(0)
    layer = [torch.randint(0, 1000, (6, 6, 6), generator=draw) for _ in range(10)]

    def answers(layers: int) -> int:
        memory = Memory()
        factors = [Factor((i, i + 1, i + 2), layer[i % 10]) for i in range(10 * layers)]
        assert eliminate([6] * (10 * layers + 2), factors, 1 << 20, memory).core == ()
        return len(memory.answers)

    assert answers(40) < 2 * answers(4) < 200


def test_ties_go_to_the_first_value() -> None:
    done = eliminate([3, 3], [Factor((0, 1), torch.ones(3, 3, dtype=torch.int64))], 100)
    assert done.complete({}) == {0: 0, 1: 0}


def test_without_scipy_a_core_is_an_error_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with pytest.raises(ShardlangError) as caught:
        solve_core([2, 2], [Factor((0, 1), torch.eye(2, dtype=torch.int64))], "block")
    assert caught.value.codes == ("SL0529",)
    assert "pip install 'shardlang[auto]'" in str(caught.value)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("limit", [6, 1])
def test_going_by_cases_finds_what_trying_all_finds(seed: int, limit: int) -> None:
    sizes, factors, best = drawn(seed)
    done = eliminate(sizes, factors, limit)
    if done.core:
        found = by_cases(sizes, done.core, limit, 1 << 20)
        assert found is not None
        assert cost_of(factors, done.complete(found)) == best
        assert by_cases(sizes, done.core, limit, 0) is None
