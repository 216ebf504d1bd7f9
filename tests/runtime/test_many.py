"""``sl.reshard_many``: what ``reshard`` gives of each, in few collectives and bounded buffers."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
import torch.distributed as dist
from attrs import evolve
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

import shardlang as sl
from shardlang.layout import Layout
from shardlang.mesh import Axis, Mesh
from shardlang.plan import bundle
from shardlang.runtime import packing, simulate
from shardlang.runtime.record import Recorder
from tests.runtime.test_laws import layout_at
from tests.runtime.transitions import same, value_of
from tests.world import World, torch_mesh

SIZES = [(3, 5), (64,), (7, 2), (16, 16), (1,), (0, 4), (128, 9), (5, 5, 5)]


def each_alike() -> list[str]:
    """Tensors of mixed shapes, dtypes and placements, to all kinds of layouts, packed in buffers of 1 KiB."""
    mesh = torch_mesh((2, 2), ("a", "b"))
    tensors: list[Any] = []
    specs = []
    wanted = ["...", "~a", "~b", "~b/~a"]
    for i, shape in enumerate(SIZES * 4):
        count = torch.Size(shape).numel()
        value = torch.arange(count).view(shape).to([torch.float32, torch.bfloat16, torch.int64][i % 3]) % 50
        kind = i % 4
        if kind == 3:
            x = DTensor.from_local(value * (dist.get_rank() // 2 + 1), mesh, [Partial(), Replicate()])
        else:
            x = distribute_tensor(value, mesh, [[Shard(0), Replicate()], [Shard(0), Shard(0)], [Replicate()] * 2][kind])
        tensors.append(x)
        first = wanted[i // 8]
        specs.append("[...]" if first == "..." else "[_/" + first + " _" * (len(shape) - 1) + "]")
    alone = [sl.reshard(x, s) for x, s in zip(tensors, specs, strict=True)]
    bundle.BUCKET, usual = 1 << 10, bundle.BUCKET
    try:
        with Recorder() as recorder:
            together = sl.reshard_many(tensors, specs)
    finally:
        bundle.BUCKET = usual
    wrong = [
        f"{i} {specs[i]}"
        for i, (a, b) in enumerate(zip(alone, together, strict=True))
        if type(a) is not type(b) or not torch.equal(a.to_local(), b.to_local()) or a.dtype != b.dtype
    ]
    if len(recorder.issued) >= len(tensors):
        return ["nothing was packed"]
    return wrong


def as_planned(a: str = "a", b: str = "b") -> tuple[list[Any], list[Any], bool]:
    """What is issued and what ``plan.bundle`` says, by kind and axes, and whether no more bytes come than it says."""
    mesh = torch_mesh((2, 2), (a, b))
    xs = [distribute_tensor(torch.ones(8 * i, 8), mesh, [Shard(0), Replicate()]) for i in range(1, 9)]
    specs = ["[n d]", f"[n d/{a}]", f"[n/{a} d/{b}]", f"[n/{b} d]"] * 2
    ends = [(sl.layout_of(x), sl.layout_of(sl.reshard(x, s)), "f32") for x, s in zip(xs, specs, strict=True)]
    planned = bundle.plan_bundle(ends)
    with Recorder() as recorder:
        sl.reshard_many(xs, specs)
    return (
        [(i.kind, i.axes) for i in recorder.issued],
        [(c.kind, c.axes) for c in planned.collectives],
        recorder.bytes_received <= planned.bytes_received,
    )


def test_what_is_issued_is_the_planned_bundle(world: World) -> None:
    for issued, planned, few in world.run(as_planned):
        assert issued == planned
        assert few


def as_planned_on_a_mesh_of_a_file(axes: str) -> tuple[list[Any], list[Any], bool]:
    """``as_planned``, where torch's mesh comes to stand for a file's after one of the reshards has been made on it.

    Its axes are named as no other test's: what links they have stays.
    """
    x = distribute_tensor(torch.ones(8, 8), torch_mesh((2, 2), ("late_a", "late_b")), [Shard(0), Replicate()])
    sl.reshard(x, "[n d]")
    links = "link fast = 400GB/s, 1us\nlink slow = 10GB/s, 20us\n"
    sl.loads(links + f"mesh late = {axes}\n").mesh("late").device_mesh("cpu")
    return as_planned("late_a", "late_b")


def test_a_mesh_that_comes_to_stand_for_a_files_leaves_nothing_of_before(world: World) -> None:
    for axes in ("late_a:2 * late_b:2", "late_a:2@slow * late_b:2@fast"):
        for issued, planned, few in world.run(as_planned_on_a_mesh_of_a_file, axes):
            assert issued == planned
            assert few


def test_each_tensor_is_as_if_alone(world: World) -> None:
    assert world.run(each_alike) == [[]] * 4


def large_in_a_line() -> tuple[list[int], int]:
    """More large tensors than are under way at once, of several sizes and dtypes; some stage pieces, some do not."""
    mesh = torch_mesh((4,), ("x",))
    dtypes = [torch.float32, torch.bfloat16, torch.bool, torch.int64, torch.complex64]
    ends = [([Shard(0)], "[n d/x]"), ([Shard(1)], "[n/x d]"), ([Shard(0)], "[n d/x]"), ([Partial()], "[n d/x]")]
    xs: list[Any] = []
    for i in range(3 * packing.UNDER_WAY):
        (start, _), dtype = ends[i % 4], dtypes[i % 5]
        rows = (1 << 20) // dtype.itemsize // 1024 * 4 + 4 * (i % 3 + 1)
        block = (torch.arange(rows * 1024).view(rows, 1024) * (i + 1) % 97).to(torch.float32 if i % 4 == 3 else dtype)
        xs.append(DTensor.from_local(block, mesh, start) if i % 4 == 3 else distribute_tensor(block, mesh, start))
    specs = [ends[i % 4][1] for i in range(len(xs))]
    together = sl.reshard_many(xs, specs)
    with Recorder() as recorder:
        alone = [sl.reshard(x, spec) for x, spec in zip(xs, specs, strict=True)]
    wrong = [i for i, (a, b) in enumerate(zip(alone, together, strict=True)) if not same(a.to_local(), b.to_local())]
    return wrong, len([i for i in recorder.issued if i.count])


def test_large_tensors_in_a_line_are_each_as_if_alone(world: World) -> None:
    assert world.run(large_in_a_line) == [([], 12)] * 4


def gradients_reduced() -> tuple[int, int, bool]:
    """case 10: 64 pending tensors of mixed sizes"""
    mesh = torch_mesh((4,), ("dp",))
    values = [torch.full((i * 37 + 1,), float(dist.get_rank() + i)) for i in range(64)]
    grads = [DTensor.from_local(v, mesh, [Partial()]) for v in values]
    with Recorder() as recorder:
        whole = sl.reshard_many(grads, "[n]")
    largest = max(i.bytes_received for i in recorder.issued)
    right = all(torch.equal(whole[i].to_local(), torch.full_like(v, 4 * i + 6)) for i, v in enumerate(values))
    return sum(i.count for i in recorder.issued), largest, right


def test_64_pending_tensors_are_one_collective(world: World) -> None:
    for count, largest, right in world.run(gradients_reduced):
        assert (count, right) == (1, True)
        assert largest <= 2 * bundle.BUCKET


def differentiable() -> list[bool]:
    mesh = torch_mesh((2, 2), ("a", "b"))
    values = [torch.arange(24.0).view(4, 6) + i for i in range(5)]
    xs = [distribute_tensor(v, mesh, [Shard(0), Shard(1)]).requires_grad_() for v in values]
    with Recorder() as recorder:
        ys = sl.reshard_many(xs, ["[n d]", "[n/b d/a]", "[(2 n) d/a]", "[n d]{+a}", "[n/a d]"])
        total = sum((sl.reshard(y, "[n d]").to_local() ** 2).sum() for y in ys)
        total.backward()  # type: ignore[union-attr]
    assert recorder.issued
    return [torch.equal(x.grad.full_tensor(), 2 * v) for x, v in zip(xs, values, strict=True)]


def test_gradients_go_back_together(world: World) -> None:
    assert world.run(differentiable) == [[True] * 5] * 4


def disagree() -> Any:
    mesh = torch_mesh((4,), ("dp",))
    xs = [distribute_tensor(torch.ones(8), mesh, [Shard(0)]) for _ in range(3)]
    specs = ["[n]", "[n/dp]" if dist.get_rank() == 1 else "[n]", "[n]"]
    try:
        sl.reshard_many(xs, specs)
    except sl.ShardlangError as error:
        return error.codes[0], error.diagnostics[0].notes[:2]
    return None


def test_the_tensor_that_ranks_differ_in_is_named(world: World) -> None:
    answers = world.run(disagree)
    code, notes = answers[0]
    assert code == "SL0701"
    assert notes[0].startswith("rank 0: tensor 1 of 3: float32 [8/dp] => [8]")
    assert notes[1].startswith("rank 1: tensor 1 of 3: float32 [8/dp] => [8/dp]")
    assert answers == [answers[0]] * 4


def in_place_already() -> list[bool]:
    mesh = torch_mesh((2, 2), ("a", "b"))
    value = torch.arange(24.0).view(4, 6)
    xs = [distribute_tensor(value, mesh, [Shard(0), Replicate()]) for _ in range(3)]
    specs = ["[n/a d]", "[n/a/b d]", "[n d]"]
    own, shared = sl.reshard_many(xs, specs), sl.reshard_many(xs, specs, alias=True)
    kept = [x.to_local().untyped_storage().data_ptr() for x in xs]
    places = [[y.to_local().untyped_storage().data_ptr() for y in ys] for ys in (own, shared)]
    right = all(torch.equal(y.full_tensor(), value) for y in (*own, *shared))
    return [p == k for ps in places for p, k in zip(ps, kept, strict=True)] + [right]


def test_what_is_in_place_already_is_copied_unless_it_may_be_shared(world: World) -> None:
    """What is there, and what a slice leaves, may be shared; what is gathered is new in any case."""
    assert world.run(in_place_already) == [[False, False, False, True, True, False, True]] * 4


AXES = Mesh("mesh", (Axis("a", 2), Axis("b", 2)))


def mixed() -> list[tuple[Layout, Layout, str]]:
    """Transitions of small and large tensors, of two dtypes, even and uneven, with reductions and free steps."""
    ways = [("R", "R"), ("S0", "R"), ("S0", "S0"), ("S1", "S0"), ("sum", "R"), ("sum", "S1"), ("sum", "sum")]
    found = []
    for i, (a, b) in enumerate(product(ways, ways)):
        shape = [(8, 8), (5, 3), (600, 512)][i % 3]
        found.append((layout_at(AXES, shape, a), layout_at(AXES, shape, b), ["f32", "i64"][i % 2]))
    return found


def start(source: Layout, dtype: str) -> dict[int, torch.Tensor]:
    return simulate.shard(value_of(source.shape, torch.float32 if dtype == "f32" else torch.int64), source, seed=3)


def bundled() -> list[torch.Tensor]:
    """On a rank: its blocks after ``reshard_many`` of bare blocks."""
    mesh = torch_mesh((2, 2), ("a", "b"))
    blocks = [start(source, dtype)[dist.get_rank()] for source, _, dtype in mixed()]
    moved: list[torch.Tensor] = sl.reshard_many(
        blocks, [target for _, target, _ in mixed()], mesh, [source for source, _, _ in mixed()]
    )
    return moved


def test_a_bundle_does_on_processes_what_it_does_simulated(world: World) -> None:
    made = bundle.plan_bundle(mixed())
    assert len(made.collectives) < sum(len(p.steps) for p in made.plans)
    expected = simulate.run_bundle(made, [start(source, dtype) for source, _, dtype in mixed()])
    ran = world.run(bundled)
    for i, (source, target, dtype) in enumerate(mixed()):
        for rank, block in expected[i].items():
            assert same(ran[rank][i], block), (rank, str(source), str(target))
        whole = simulate.assemble(expected[i], target)
        assert same(whole, value_of(source.shape, whole.dtype)), (str(source), str(target), dtype)


def test_a_bundle_out_of_order_or_with_a_step_left_out_is_refused() -> None:
    made = bundle.plan_bundle(mixed())
    blocks = [start(source, dtype) for source, _, dtype in mixed()]
    with pytest.raises(simulate.SimulationError, match="no collective takes step"):
        simulate.run_bundle(evolve(made, collectives=made.collectives[:-1]), blocks)
    deep = next(c for c in made.collectives if c.members[0][1] > 0)
    with pytest.raises(simulate.SimulationError, match="which is at step"):
        simulate.run_bundle(evolve(made, collectives=(deep, *made.collectives)), blocks)
