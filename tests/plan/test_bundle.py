"""Many tensors are one plan whose collectives grow with the groups."""

from __future__ import annotations

from shardlang.layout import Layout
from shardlang.plan.bundle import BUCKET, SMALL, plan_bundle
from tests.plan.drawn import layout_of, mesh_of

MESH = mesh_of(2, 4)


def moved(shape: tuple[int, int], source: tuple[str, str], target: tuple[str, str]) -> tuple[Layout, Layout, str]:
    return layout_of(MESH, shape, *source), layout_of(MESH, shape, *target), "f32"


def test_small_steps_of_one_kind_and_group_are_one_collective() -> None:
    asked = [moved((64, 8 * n), ("a", ""), ("", "")) for n in range(1, 41)]
    asked += [moved((64, 8 * n), ("b", ""), ("", "b")) for n in range(1, 41)]
    bundle = plan_bundle(asked)
    assert {(c.kind, c.axes) for c in bundle.collectives} == {("all_gather", ("a",)), ("all_to_all", ("b",))}
    assert len(bundle.collectives) == 2
    assert sorted(i for c in bundle.collectives for i, _ in c.members) == list(range(80))
    assert bundle.bytes_received == sum(p.bytes_received for p in bundle.plans)


def test_packing_saves_latency_and_nothing_else() -> None:
    one = plan_bundle([moved((64, 64), ("a", ""), ("", ""))])
    many = plan_bundle([moved((64, 64), ("a", ""), ("", ""))] * 10)
    assert one.seconds < many.seconds < 1.2 * one.seconds
    assert many.bytes_received == 10 * one.bytes_received


def test_buffers_are_bounded_and_large_steps_go_alone() -> None:
    bundle = plan_bundle([moved((512, 500), ("a", ""), ("", ""))] * 40 + [moved((2048, 2048), ("a", ""), ("", ""))] * 3)
    assert 0 < bundle.largest_buffer <= BUCKET
    assert sum(len(c.members) == 1 and c.buffer > SMALL for c in bundle.collectives) == 3


def test_nothing_to_move_is_no_collective() -> None:
    assert plan_bundle([moved((64, 64), ("", ""), ("a", "b"))] * 5).collectives == ()
    assert plan_bundle([]).collectives == ()


def test_two_thousand_tensors_are_some_tens_of_collectives() -> None:
    asked = [moved((64 * (1 + i % 25), 64 * (1 + i % 7)), ("ab", ""), ("a", "b")) for i in range(2000)]
    bundle = plan_bundle(asked)
    assert len(bundle.collectives) < 40
    assert bundle.hash == plan_bundle(asked).hash
