"""The independent checker accepts plans and refuses every way of spoiling one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from attrs import evolve

from shardlang.layout import Cut, Dim, Factor, Layout
from shardlang.plan.certificate import certificate, faults, formulas, received_by_rank
from shardlang.plan.plan import Plan
from shardlang.plan.search import plan_transition
from shardlang.plan.steps import Step
from tests.plan.drawn import FAST, SLOW, layout_of, mesh_of

MESH = mesh_of(2, 4, links=(SLOW, FAST))


def plan_of(source: tuple[str, str, str], target: tuple[str, str, str]) -> Plan:
    ends = [layout_of(MESH, (64, 64), x[0], x[1], pending=x[2]) for x in (source, target)]
    return plan_transition(*ends)


PLANS = {
    "gather": plan_of(("ab", "", ""), ("", "", "")),
    "all_to_all": plan_of(("ab", "", ""), ("", "ab", "")),
    "reduce": plan_of(("", "b", "a"), ("", "", "")),
    "scatter": plan_of(("", "", "ab"), ("a", "b", "")),
    "exchange": plan_of(("a", "b", ""), ("b", "a", "")),
    "mask": plan_of(("a", "", ""), ("", "b", "a")),
    "permute": plan_of(("ab", "", ""), ("ba", "", "")),
}


def first(plan: Plan, **changes: object) -> Plan:
    return evolve(plan, steps=(evolve(plan.steps[0], **changes), *plan.steps[1:]))


SPOILERS: dict[str, Callable[[Plan], Plan]] = {
    "a step left out": lambda p: evolve(p, steps=p.steps[:-1]),
    "another target": lambda p: evolve(p, target=layout_of(MESH, (64, 64), "b", "")),
    "another source": lambda p: evolve(p, source=layout_of(MESH, (64, 64), "", "ba")),
    "fewer bytes received in a step": lambda p: first(p, bytes_received=p.steps[0].bytes_received - 4),
    "more bytes received in a step": lambda p: first(p, bytes_received=p.steps[0].bytes_received + 64),
    "a step from elsewhere": lambda p: first(p, source=layout_of(MESH, (64, 64), "", "ba")),
    "another kind": lambda p: first(p, kind="slice" if p.steps[0].kind != "slice" else "all_reduce"),
    "a bound above the cost": lambda p: evolve(p, bound=p.cost + 1),
    "more received than its steps say": lambda p: evolve(p, bytes_received=p.bytes_received + 4096),
    "a bound on bytes above what it receives": lambda p: evolve(p, bytes_bound=p.bytes_received + 4),
}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_a_plan_is_accepted(plan: Plan) -> None:
    assert faults(plan) == ()


@pytest.mark.parametrize("spoil", SPOILERS.values(), ids=SPOILERS)
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_a_spoiled_plan_is_refused(plan: Plan, spoil: Callable[[Plan], Plan]) -> None:
    spoiled = spoil(plan)
    assert spoiled != plan
    assert faults(spoiled)


@pytest.mark.parametrize("axes", [("a",), ("b",)])
def test_a_gather_over_part_of_its_group_is_refused(axes: tuple[str, ...]) -> None:
    assert faults(first(PLANS["gather"], axes=axes))


def test_an_array_over_the_cap_is_refused() -> None:
    mesh = mesh_of(4, 4)
    split, swapped, whole = (layout_of(mesh, (2048, 2048), x, y) for x, y in (("a", ""), ("", "a"), ("", "")))
    steps = (
        Step("all_gather", ("a",), split, whole, 3 << 22, 3 << 22, 10**9),
        Step("slice", ("a",), whole, swapped),
    )
    good = plan_transition(split, swapped)
    plan = evolve(good, steps=steps, bytes_received=3 << 22, bytes_sent=3 << 22, complete=False, bound=0)
    assert any("over the cap" in f for f in faults(plan))


def test_bytes_by_rank_are_counted_anew() -> None:
    plan = PLANS["exchange"]
    by_rank = received_by_rank(plan)
    assert max(by_rank.values()) == plan.bytes_received
    assert min(by_rank.values()) < plan.bytes_received


def test_runs_are_told_by_formula() -> None:
    layout = layout_of(MESH, (4096, 64), "ab", "")
    assert formulas(layout) == ("2048*a + 512*b + [0, 512)", "[0, 64)")
    fused = Layout(MESH, (Dim((Factor(3), Factor(8, ("b",)))), Dim((Factor(7),), (Cut("a", uneven=True),))))
    assert formulas(fused) == ("8*[0, 3) + 2*b + [0, 2)", "[0, 7), chunk a of 2")
    for d, text in enumerate(formulas(layout)):
        for rank in MESH.ranks:
            at = {a.name: MESH.coordinate(rank, a.name) for a in MESH.axes}
            start, _, stop = text.partition("[0, ")
            low = eval(start.rstrip(" +") or "0", {}, at)
            assert layout.runs(rank)[d] == ((low, low + int(stop.rstrip(")"))),)


def test_a_certificate_says_what_there_is_to_check() -> None:
    plan = PLANS["exchange"]
    said = certificate(plan)
    assert len(said["states"]) == len(plan.steps) + 1
    assert set(said["received_by_rank"]) == {str(r) for r in MESH.ranks}
    assert said["gap"] == plan.gap
