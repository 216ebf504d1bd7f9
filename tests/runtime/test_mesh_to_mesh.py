"""From one mesh to another: the same ranks in another shape, fewer, others; in a launch of six processes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

import shardlang as sl
from shardlang.layout import Layout
from shardlang.mesh import Axis, Mesh
from shardlang.plan.search import plan_transition
from shardlang.runtime import distributed, simulate
from shardlang.runtime.record import Recorder
from tests.runtime.transitions import layout, same, value_of
from tests.world import World

TRAIN = Mesh("train", (Axis("dp", 2), Axis("tp", 2)))
SERVE = Mesh("serve", (Axis("tp", 4),))
WIDE = Mesh("wide", (Axis("a", 2), Axis("b", 1)))
OTHERS = Mesh("others", (Axis("x", 2),), first_rank=4)


@pytest.fixture(scope="module")
def six() -> Iterator[World]:
    with World(6) as ranks:
        yield ranks


def pairs() -> list[tuple[Layout, Layout]]:
    found = []
    for shape in ((8, 6), (7, 5)):
        start = layout_on(TRAIN, shape, {0: ("dp", "tp")})
        found += [
            (start, layout_on(SERVE, shape, {1: ("tp",)})),
            (start, layout_on(SERVE, shape, {})),
            (start, layout_on(OTHERS, shape, {0: ("x",)})),
            (start, layout_on(OTHERS, shape, {})),
            (layout_on(TRAIN, shape, {1: ("tp",)}), layout_on(OTHERS, shape, {1: ("x",)})),
            (layout_on(OTHERS, shape, {1: ("x",)}), layout_on(TRAIN, shape, {1: ("tp",), 0: ("dp",)})),
            (layout_on(TRAIN, shape, {0: ("dp",)}), layout_on(WIDE, shape, {1: ("a", "b")})),
        ]
    return found


def layout_on(mesh: Mesh, shape: tuple[int, ...], cuts: dict[int, tuple[str, ...]]) -> Layout:
    short = Mesh("short", tuple(Axis(a.name[0], a.size) for a in mesh.axes), first_rank=mesh.first_rank)
    drawn = layout(short, shape, {d: "".join(a[0] for a in axes) for d, axes in cuts.items()})
    return Layout(short, drawn.dims)


def cross(some: list[tuple[Layout, Layout]]) -> list[tuple[Any, int]]:
    """This rank's block after each transfer, and what it received."""
    results = []
    rank = dist.get_rank()
    for source, target in some:
        value = value_of(source.shape)
        mine = simulate.shard(value, source).get(rank, torch.empty(0))
        with Recorder() as recorder:
            result = distributed.run_plan(plan_transition(source, target), mine)
        results.append((result, recorder.bytes_received))
    return results


def test_values_move_to_the_bit_and_each_rank_receives_what_it_lacks(six: World) -> None:
    ran = six.run(cross, pairs())
    for i, (source, target) in enumerate(pairs()):
        value = value_of(source.shape)
        expected = simulate.shard(value, target)
        plan = plan_transition(source, target)
        for rank in range(6):
            block, received = ran[rank][i]
            assert same(block, expected[rank]) if rank in expected else block.numel() == 0
            assert received <= plan.bytes_received
        assert same(simulate.assemble(simulate.run_plan(plan, simulate.shard(value, source)), target), value)


def handed_over() -> list[bool]:
    """case 9: through ``sl.reshard``, DTensor to DTensor; ranks outside a mesh hold nothing."""
    train = DeviceMesh("cpu", torch.arange(4).view(2, 2), mesh_dim_names=("dp", "tp"))
    serve = DeviceMesh("cpu", torch.arange(4), mesh_dim_names=("tp",))
    others = DeviceMesh("cpu", torch.tensor([4, 5]), mesh_dim_names=("x",))
    rank, value = dist.get_rank(), value_of((8, 6))
    placed = sl.distribute(value, "[n/dp d/tp]", train) if rank < 4 else sl.empty("[8/dp 6/tp]", train)
    answers = []
    for mesh, spec, members in ((serve, "[n/tp d]", range(4)), (others, "[n d/x]", range(4, 6))):
        moved = sl.reshard(placed, spec, mesh)
        answers.append(type(moved) is DTensor and moved.shape == (8, 6))
        back = sl.reshard(moved, "[n/dp d/tp]", train)
        answers.append(rank >= 4 or torch.equal(back.to_local(), placed.to_local()))
        if rank in members:
            answers.append(torch.equal(moved.full_tensor(), value))
    return answers


def test_dtensors_go_from_mesh_to_mesh_and_back(six: World) -> None:
    assert all(all(answers) for answers in six.run(handed_over))
