"""Any two layouts, on real processes: fused factors, sub-axes, flat cuts, other orders, empty blocks, and scalars."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import shardlang as sl
from shardlang import testing
from shardlang.layout import Layout
from shardlang.plan.search import plan_transition
from shardlang.runtime import distributed, simulate
from tests.runtime.transitions import same, value_of
from tests.world import World

Changes = list[tuple[Layout, Layout]]
DTYPES = {"f32": torch.float32, "i32": torch.int32, "bf16": torch.bfloat16}


def carried(changes: Changes, dtype: str) -> list[torch.Tensor | str]:
    """On a rank: its block after each change, or the code of a refusal."""
    results: list[torch.Tensor | str] = []
    for source, target in changes:
        blocks = simulate.shard(value_of(source.shape, DTYPES[dtype]), source)
        try:
            plan = plan_transition(source, target, dtype)
        except sl.ShardlangError as error:
            results.append(error.codes[0])
            continue
        results.append(distributed.run_plan(plan, blocks.get(dist.get_rank(), torch.empty(0, dtype=DTYPES[dtype]))))
    return results


def check(world: World, changes: Changes, dtype: str) -> None:
    ran = world.run(carried, changes, dtype)
    for i, (source, target) in enumerate(changes):
        if isinstance(ran[0][i], str):
            assert {r[i] for r in ran} == {"SL0404"}
            continue
        blocks = simulate.shard(value_of(source.shape, DTYPES[dtype]), source)
        expected = simulate.run_plan(plan_transition(source, target, dtype), blocks)
        for rank, block in expected.items():
            assert same(ran[rank][i], block), (rank, str(source), str(target))


changes = st.lists(testing.meshes(most=4).flatmap(testing.transitions), min_size=6, max_size=6)


@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(changes, st.sampled_from(sorted(DTYPES)))
def test_processes_do_what_the_simulator_does(world: World, changes: Changes, dtype: str) -> None:
    check(world, changes, dtype)


@pytest.mark.nightly
@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(changes, st.sampled_from(sorted(DTYPES)))
def test_processes_do_it_for_thousands_of_transitions(world: World, changes: Changes, dtype: str) -> None:
    check(world, changes, dtype)
