"""The test bench itself: results by rank, faults told, a new world after a broken one."""

from __future__ import annotations

import os
import signal

import pytest
import torch
import torch.distributed as dist

from tests.world import Lost, Raised, World, WorldError


def summed(factor: int) -> list[int]:
    x = torch.full((2,), dist.get_rank() * factor)
    dist.all_reduce(x)
    return x.tolist()


def fail_on(rank: int) -> int:
    if dist.get_rank() == rank:
        raise ValueError("no luck")
    return dist.get_rank()


def die_on(rank: int) -> int:
    if dist.get_rank() == rank:
        os.kill(os.getpid(), signal.SIGKILL)
    return dist.get_rank()


def test_every_rank_answers_and_the_world_outlives_faults(world: World) -> None:
    assert world.run(summed, 10) == [[60, 60]] * 4
    with pytest.raises(WorldError, match="no luck"):
        world.run(fail_on, 2)
    assert isinstance(world.run(fail_on, 1, expect_death=True)[1], Raised)
    assert isinstance(world.run(die_on, 3, expect_death=True)[3], Lost)
    assert world.run(summed, 1) == [[6, 6]] * 4
