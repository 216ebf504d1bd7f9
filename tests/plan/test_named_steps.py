"""What back ends do well is one step with its own name (issue's point 6)."""

from __future__ import annotations

import pytest

from shardlang.plan.plan import Plan
from shardlang.plan.search import plan_transition
from shardlang.plan.uneven import measure
from tests.plan.drawn import FAST, SLOW, layout_of, mesh_of


def kinds(plan: Plan) -> list[tuple[str, str]]:
    return [(s.kind, "/".join(s.axes)) for s in plan.steps]


SHAPES = {"small": (64, 64), "large": (8192, 8192)}
FULL = [
    (("ab", "", ""), ("", "", ""), [("all_gather", "a/b")]),
    (("a", "b", ""), ("", "", ""), [("all_gather", "a/b")]),
    (("", "", "ab"), ("", "", ""), [("all_reduce", "a/b")]),
    (("", "b", "a"), ("", "b", ""), [("all_reduce", "a")]),
    (("", "", "ab"), ("ab", "", ""), [("reduce_scatter", "a/b")]),
    (("", "", "ab"), ("a", "b", ""), [("reduce_scatter", "a/b")]),
    (("ab", "", ""), ("", "ab", ""), [("all_to_all", "a/b")]),
    (("", "", ""), ("a", "b", ""), [("slice", "a/b")]),
    (("a", "", ""), ("ab", "", ""), [("slice", "b")]),
    (("", "", ""), ("", "", "a"), [("mask", "a")]),
    (("a", "", ""), ("", "", "a"), [("mask", "a")]),
    (("a", "b", ""), ("a", "b", ""), []),
]
IDLE = [
    (("a", "", ""), ("", "", ""), [("all_gather", "a")]),
    (("", "", "a"), ("", "", ""), [("all_reduce", "a")]),
    (("", "", "a"), ("a", "", ""), [("reduce_scatter", "a")]),
    (("a", "", ""), ("", "a", ""), [("all_to_all", "a")]),
]
ON = [
    *((mesh_of(2, 4), *case) for case in [*FULL, *IDLE]),
    *((mesh_of(8, 8), *case) for case in FULL),
    *((mesh_of(2, 4, links=(SLOW, FAST)), *case) for case in FULL),
    *((mesh_of(8), *case) for case in IDLE),
]


@pytest.mark.parametrize("objective", ["time", "bytes"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize(("mesh", "source", "target", "expected"), ON, ids=str)
def test_classic_transitions_are_one_named_step(
    mesh: object, shape: tuple[int, ...], objective: str, source: object, target: object, expected: object
) -> None:
    (*before, owed), (*after, due) = source, target
    plan = plan_transition(
        layout_of(mesh, shape, *before, pending=owed), layout_of(mesh, shape, *after, pending=due), objective=objective
    )
    assert kinds(plan) == expected
    assert plan.complete


def test_ranks_on_an_idle_axis_share_the_work_where_that_is_less() -> None:
    """Every rank of ``b`` holds the same part, so each reduces an eighth and hands it round."""
    mesh = mesh_of(8, 8)
    source, target = layout_of(mesh, (8192, 8192), "", "", pending="a"), layout_of(mesh, (8192, 8192), "a", "")
    plan = plan_transition(source, target)
    assert [s.kind for s in plan.steps] == ["slice", "reduce_scatter", "all_gather"]
    assert plan.bytes_received == 8192 * 8192 * 4 * 14 // 64


def test_slice_then_all_to_all_beats_gathering_all() -> None:
    mesh = mesh_of(8, 8)
    plan = plan_transition(layout_of(mesh, (8192, 8192), "b", ""), layout_of(mesh, (8192, 8192), "", "ab"))
    assert plan.bytes_received == 8192 * 8192 * 4 // 64 * 7 // 8
    assert kinds(plan) == [("slice", "a"), ("all_to_all", "b")]


def test_a_transition_over_two_links_crosses_the_slow_one_once_and_delivers_on_the_fast_one() -> None:
    """Each rank brings over a part that its neighbours lack as well; these hand the parts round."""
    mesh = mesh_of(4, 8, links=(SLOW, FAST))
    source, target = layout_of(mesh, (8192, 8192), "a", ""), layout_of(mesh, (8192, 8192), "b", "")
    plan = plan_transition(source, target)
    sent = [s for s in plan.steps if s.kind != "slice"]
    assert [set(s.axes) <= {"a"} for s in sent] == [True, False]
    assert "a" not in sent[1].axes
    assert plan.time < measure(source, target, 4)[2]


def test_what_neighbours_hold_together_does_not_cross_the_slow_link() -> None:
    mesh = mesh_of(4, 8, links=(SLOW, FAST))
    source, target = layout_of(mesh, (8192, 8192), "b", ""), layout_of(mesh, (8192, 8192), "a", "")
    plan = plan_transition(source, target)
    fast = {"b", *(p.name for s in plan.steps for p in s.target.mesh.splits.get("b", ()))}
    assert all(set(s.axes) <= fast for s in plan.steps if s.kind != "slice")
    assert plan.time < measure(source, target, 4)[2] / 2


def test_reductions_apart_are_brought_together() -> None:
    mesh = mesh_of(2, 2, 2)
    plan = plan_transition(layout_of(mesh, (64, 64), "b", "", pending="ac"), layout_of(mesh, (64, 64), "b", ""))
    assert kinds(plan) == [("all_reduce", "a/c")]


def test_averages_and_sums_are_reduced_in_one_collective() -> None:
    from shardlang.layout import Layout, Pending

    mesh = mesh_of(2, 4)
    whole = Layout.whole(mesh, (8, 8))
    source = Layout(mesh, whole.dims, (Pending("a", "sum"), Pending("b", "avg")))
    plan = plan_transition(source, whole)
    assert kinds(plan) == [("scale", "b"), ("all_reduce", "a/b")]
    alone = Layout(mesh, whole.dims, (Pending("b", "avg"),))
    assert [(s.kind, s.op) for s in plan_transition(alone, whole).steps] == [("all_reduce", "avg")]


def test_axes_of_size_one_cost_nothing() -> None:
    mesh = mesh_of(1, 4)
    plan = plan_transition(layout_of(mesh, (8, 8), "a", "b"), layout_of(mesh, (8, 8), "", "b"))
    assert plan.steps == ()
    assert plan.seconds == 0


def test_an_uneven_split_becomes_pending_where_it_stands() -> None:
    from shardlang.layout import Cut, Dim, Factor, Layout, Pending

    mesh = mesh_of(2, 2)
    for op in ("sum", "avg", "max", "min"):
        for before, after in (("ab", "a"), ("b", "")):
            source, target = (
                Layout(mesh, (Dim((Factor(5),), tuple(Cut(a, uneven=True) for a in cuts)),), owed)
                for cuts, owed in ((before, ()), (after, (Pending("b", op),)))
            )
            plan = plan_transition(source, target)
            assert kinds(plan) == [("mask", "b")]
            assert plan.bytes_received == plan.gap == 0


def test_an_exchange_between_cuts_of_other_factors_names_its_axes() -> None:
    import shardlang as sl

    plan = sl.plan("f32[(3 4/a 2)/b 5] => [24/a/b 5]", mesh="a:2 * b:2")
    assert all(step.axes for step in plan.steps)
