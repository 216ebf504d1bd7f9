"""What goes over the wire is what the plan says, and what is alive meanwhile; results are the same bits everywhere."""

from __future__ import annotations

import gc

import torch
import torch.distributed as dist

from shardlang.layout import Layout
from shardlang.plan.search import plan_transition
from shardlang.runtime import distributed, simulate
from shardlang.runtime.record import Recorder
from tests.runtime.alive import Alive, quick_collections
from tests.runtime.test_laws import Case, cases, commutes, ends
from tests.runtime.transitions import LINE, SQUARE, layout, value_of
from tests.world import World


def traffic(some: list[Case]) -> list[int]:
    """On a rank: the bytes that it received in each transition."""
    received = []
    for case in some:
        source, target = ends(case)
        block = simulate.shard(value_of(source.shape), source)[dist.get_rank()]
        plan = plan_transition(source, target)
        distributed.run_plan(plan, block)
        with Recorder() as recorder:
            distributed.run_plan(plan, block)
        received.append(recorder.bytes_received)
    return received


def test_bytes_on_the_wire_are_those_of_the_plan(world: World) -> None:
    chosen = [c for c in cases()[::29] if commutes(c[3]) and c[1] in ((8, 8), (5, 3), (8,))]
    ran = world.run(traffic, chosen)
    for i, case in enumerate(chosen):
        source, target = ends(case)
        plan = plan_transition(source, target)
        most = max(r[i] for r in ran)
        if case[1] == (5, 3):
            assert most <= plan.bytes_received, (case, most, plan.bytes_received)
        else:
            assert most == plan.bytes_received, (case, most, plan.bytes_received)


def peaks(pairs: list[tuple[Layout, Layout]]) -> list[int]:
    """On a rank: bytes alive at the peak of each plan, the block that it starts from included."""
    found = []
    with quick_collections():
        for source, target in pairs:
            block = torch.zeros(source.local_shape(dist.get_rank()))
            plan = plan_transition(source, target)
            distributed.run_plan(plan, block)
            gc.collect()
            with Alive(block) as alive:
                distributed.run_plan(plan, block)
            found.append(alive.peak)
    return found


def test_no_more_is_alive_than_the_plan_says(world: World) -> None:
    shape = (512, 512)
    pairs = [
        (layout(LINE, shape, {0: "r"}), layout(LINE, shape)),
        (layout(LINE, shape, {1: "r"}), layout(LINE, shape)),
        (layout(LINE, shape, {0: "r"}), layout(LINE, shape, {1: "r"})),
        (layout(LINE, shape, r="sum"), layout(LINE, shape)),
        (layout(LINE, shape, r="sum"), layout(LINE, shape, {0: "r"})),
        (layout(LINE, shape, r="sum"), layout(LINE, shape, {1: "r"})),
        (layout(SQUARE, shape, {0: "ab"}), layout(SQUARE, shape, {1: "ab"})),
        (layout(SQUARE, shape, {0: "a", 1: "b"}), layout(SQUARE, shape, {0: "b", 1: "a"})),
        (layout(SQUARE, shape, {0: "ab"}), layout(SQUARE, shape, {0: "b"})),
        (layout(SQUARE, shape, {0: "a"}), layout(SQUARE, shape, {1: "b"})),
    ]
    most = [max(found) for found in zip(*world.run(peaks, pairs), strict=True)]
    said = [plan_transition(*pair).live_peak_bytes for pair in pairs]
    over = [(str(a), str(b), m, s) for (a, b), m, s in zip(pairs, most, said, strict=True) if m > s]
    assert not over


def summed_noise() -> list[bytes]:
    """The same sum on every rank, by the backend's own reduction and by pieces."""
    found = []
    for shape, dtype in (((37, 3), torch.float32), ((512, 512), torch.float32), ((64, 64), torch.bfloat16)):
        source = layout(LINE, shape, r="sum")
        noise = torch.randn(shape, generator=torch.Generator().manual_seed(dist.get_rank())).to(dtype)
        plan = plan_transition(source, Layout.whole(LINE, shape), "bf16" if dtype == torch.bfloat16 else "f32")
        found.append(distributed.run_plan(plan, noise).view(torch.uint8).numpy().tobytes())
    return found


def test_a_reduced_value_has_the_same_bits_on_every_rank(world: World) -> None:
    answers = world.run(summed_noise)
    assert answers == [answers[0]] * 4
