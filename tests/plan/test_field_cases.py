"""The table of costs of the field (received by a rank, as a share of the tensor), on which today's tools fail."""

from __future__ import annotations

import pytest

from shardlang.plan.plan import Plan
from shardlang.plan.search import plan_transition
from tests.plan.drawn import any_layout, layout_of, mesh_of

TENSOR = 8192 * 8192 * 4


def planned(sizes: tuple[int, ...], source: tuple[str, ...], target: tuple[str, ...], objective: str) -> Plan:
    """Layouts as (dim 0's axes, dim 1's axes, pending axes)."""
    mesh = mesh_of(*sizes)
    ends = [layout_of(mesh, (8192, 8192), cuts[0], cuts[1], pending=cuts[2]) for cuts in (source, target)]
    return plan_transition(*ends, "f32", objective=objective)


@pytest.mark.parametrize("objective", ["time", "bytes"])
@pytest.mark.parametrize(
    ("number", "source", "target", "share", "collectives"),
    [
        (13, ("b", "", ""), ("", "ab", ""), 0.0137, 1),
        (14, ("b", "", ""), ("ab", "", ""), 0.0157, 1),
        (15, ("ab", "", ""), ("b", "", ""), 0.125, 1),
        (16, ("a", "", ""), ("b", "", ""), 0.125, 1),
        (17, ("b", "", "a"), ("", "", ""), 1.094, 2),
        (18, ("", "", "ab"), ("", "", ""), 1.969, 1),
        (19, ("ab", "", ""), ("", "ab", ""), 0.0154, 1),
        (20, ("a", "b", ""), ("b", "a", ""), 0.0157, 1),
    ],
)
def test_share_of_the_tensor_that_a_rank_receives(
    number: int, source: tuple[str, ...], target: tuple[str, ...], share: float, collectives: int, objective: str
) -> None:
    plan = planned((8, 8), source, target, objective)
    assert plan.bytes_received / TENSOR <= share
    assert plan.collectives <= collectives
    assert plan.largest_array_ratio == 1.0


def test_21_two_reductions_to_whole_are_one_group() -> None:
    plan = planned((2, 2, 2), ("", "", "abc"), ("b", "", ""), "time")
    assert [(s.kind, s.axes) for s in plan.steps] == [("reduce_scatter", ("b",)), ("all_reduce", ("a", "c"))]


def test_22_a_gather_and_its_adjoint() -> None:
    plan = planned((2, 2, 2), ("abc", "", ""), ("c", "", ""), "bytes")
    assert plan.bytes_received == plan.bytes_bound
    back = plan.transpose()
    assert (back.source, back.target) == (plan.target, plan.source)
    assert plan_kinds(planned((2, 2, 2), ("cab", "", ""), ("c", "", ""), "time")) == ["all_gather"]
    assert plan_kinds(planned((2, 2, 2), ("cab", "", ""), ("c", "", ""), "time").transpose()) == ["slice"]


def test_23_an_axis_of_size_one_moves_nothing() -> None:
    assert planned((1, 8), ("ab", "", ""), ("b", "", ""), "time").steps == ()


def test_24_pending_to_whole_on_five_axes_is_one_all_reduce() -> None:
    mesh = mesh_of(2, 2, 2, 2, 2)
    source = layout_of(mesh, (64, 64, 64), "", "", "", pending="abcde")
    target = layout_of(mesh, (64, 64, 64), "", "", "")
    plan = plan_transition(source, target)
    assert plan_kinds(plan) == ["all_reduce"]


def plan_kinds(plan: Plan) -> list[str]:
    return [s.kind for s in plan.steps]


def test_never_a_full_replica_on_the_way() -> None:
    """What DTensor's default does in cases 13 to 16."""
    from random import Random

    random = Random(7)
    mesh = mesh_of(8, 8)
    for _ in range(200):
        plan = plan_transition(*(any_layout(random, mesh, (8192, 8192)) for _ in range(2)))
        assert plan.largest_array_ratio == 1.0
