"""Cases from the field: costs, through ``sl.plan``. The shares are held by ``tests/plan/test_field_cases.py``."""

from __future__ import annotations

import pytest
import torch

import shardlang as sl
from shardlang.runtime import simulate

REDUCING = {"all_reduce", "reduce_scatter"}


@pytest.mark.parametrize("objective", ["time", "bytes"])
def test_case_22_stored_rows_become_a_weight_by_gathering_and_the_gradient_by_the_adjoint(objective: str) -> None:
    """Forward nothing is reduced; the gradient, owed over the gathered axes, is reduced to the stored rows alone."""
    weight = torch.arange(1, 1 + 16 * 3).view(16, 3)
    plan = sl.plan("i32[16/a/b/c 3] => [16/c 3]", mesh="a:2 * b:2 * c:2", objective=objective)  # type: ignore[arg-type]  # drawn from its two values
    assert not REDUCING & {s.kind for s in plan.steps}
    assert plan.bytes_received == plan.bytes_bound == 16 * 3 * 4 // 2  # some ranks hold none of their half
    assert plan.largest_array_ratio == 1.0
    gathered = simulate.run_plan(plan, simulate.shard(weight, plan.source))
    assert torch.equal(simulate.assemble(gathered, plan.target), weight)
    for back in (plan.transpose(), sl.plan("i32[16/c 3]{+a, +b} => [16/a/b/c 3]", mesh="a:2 * b:2 * c:2")):
        owed = {r: (r + 1) * gathered[r] for r in gathered} if back.source.owed() else gathered
        stored = simulate.run_plan(back, owed)
        whole = simulate.assemble(stored, back.target)
        halves = [sum(r + 1 for r in range(8) if r % 2 == c) if back.source.owed() else 1 for c in (0, 1)]
        assert torch.equal(whole, torch.cat([weight[:8] * halves[0], weight[8:] * halves[1]]))


@pytest.mark.parametrize(
    "change", ["[8/a 8] => [8 8]", "[8] => [8/a]", "[8/a] => [8]{+a}", "[8 8]{+a} => [8 8/a]", "[8/a 8/b] => [8/a/b 8]"]
)
def test_case_23_an_axis_of_one_rank_costs_nothing(change: str) -> None:
    mesh = "a:1 * b:4" if "b" in change else "a:1"
    plan = sl.plan(change, mesh=mesh)
    without = sl.plan("[8 8/b] => [8/b 8]", mesh="b:4")
    due = (without.collectives, without.bytes_received, without.seconds) if "b" in change else (0, 0, 0)
    assert (plan.collectives, plan.bytes_received, plan.seconds) == due
