"""Laws of all plans: what they do to data (the simulator is the oracle), what they say of themselves, and sameness."""

from __future__ import annotations

import subprocess
import sys
from random import Random
from typing import Literal

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from shardlang import testing
from shardlang.diagnostics import ShardlangError
from shardlang.layout import Cut, Dim, Factor, Layout, Pending
from shardlang.mesh import Axis, Link, Mesh
from shardlang.plan.certificate import faults
from shardlang.plan.plan import Plan
from shardlang.plan.search import plan_transition
from shardlang.runtime.simulate import assemble, run_plan, run_step, shard
from tests.plan.drawn import FAST, NEAR, SLOW, any_layout, layout_of, mesh_of

Objective = Literal["time", "bytes"]
SLOWLY = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])


def holds(plan: Plan, seed: int) -> None:
    """The plan turns blocks of the source into those of the target, on every rank."""
    scale = 1
    for side in (plan.source, plan.target):
        for owed in side.owed():
            scale *= side.mesh.axis(owed.axis).size
    draw = torch.Generator().manual_seed(seed)
    value = torch.randint(0, 100, plan.source.shape, generator=draw).double() * scale
    blocks = run_plan(plan, shard(value, plan.source, seed=seed))
    assert torch.allclose(assemble(blocks, plan.target), value)
    for rank in plan.target.mesh.ranks:
        assert tuple(blocks[rank].shape) == plan.target.local_shape(rank)
    assert faults(plan) == ()


@SLOWLY
@given(testing.transitions(), st.sampled_from(["time", "bytes"]), st.sampled_from([1.0, None]), st.integers(0, 99))
def test_a_plan_gives_the_target_on_every_rank(
    change: tuple[Layout, Layout], objective: Objective, cap: float | None, seed: int
) -> None:
    holds(plan_transition(*change, "f64", objective=objective, cap=cap), seed)


@SLOWLY
@given(st.data(), testing.shapes(), st.integers(0, 99))
def test_a_plan_between_two_meshes_gives_the_target(data: st.DataObject, shape: tuple[int, ...], seed: int) -> None:
    first, second = data.draw(testing.meshes()), data.draw(testing.meshes())
    offset = data.draw(st.sampled_from([0, 0, 2, 8]))
    second = Mesh("other", second.axes, second.splits, first_rank=offset)
    holds(
        plan_transition(data.draw(testing.layouts(first, shape)), data.draw(testing.layouts(second, shape)), "f64"),
        seed,
    )


@SLOWLY
@given(testing.transitions())
def test_the_dual_leads_back(change: tuple[Layout, Layout]) -> None:
    plan = plan_transition(*change, "f64")
    if {p.op for side in change for p in side.owed()} & {"max", "min"}:
        with pytest.raises(ShardlangError) as error:
            plan.transpose()
        assert error.value.codes == ("SL0405",)
    else:
        back = plan.transpose()
        assert back.target == Layout(change[0].mesh, change[0].dims)
        assert back.source == Layout(change[1].mesh, change[1].dims)


def test_a_dual_of_averages_scales() -> None:
    mesh = mesh_of(4)
    whole = Layout.whole(mesh, (8,))
    plan = plan_transition(Layout(mesh, whole.dims, (Pending("a", "avg"),)), whole, "f64")
    (step,) = plan.transpose().steps
    assert (step.kind, str(step.scale)) == ("scale", "1/4")


def test_whole_made_pending_and_summed_back_is_equal_to_the_bit() -> None:
    mesh = mesh_of(3)
    whole = Layout.whole(mesh, (7,))
    pending = Layout(mesh, whole.dims, (Pending("a", "sum"),))
    value = torch.tensor([0.1, 1e30, -3.3e-12, 1 / 3, float("inf"), 5e-324, 7.7], dtype=torch.float64)
    blocks = run_plan(plan_transition(whole, pending, "f64"), shard(value, whole))
    back = run_plan(plan_transition(pending, whole, "f64"), blocks)
    assert all(torch.equal(back[rank], value) for rank in mesh.ranks)


class Wanderer(RuleBasedStateMachine):
    """Takes plans from layout to layout, step by step, and never loses the tensor."""

    @initialize(mesh=testing.meshes(), shape=testing.shapes(), seed=st.integers(0, 99))
    def start(self, mesh: Mesh, shape: tuple[int, ...], seed: int) -> None:
        self.layout = Layout.whole(mesh, shape)
        draw = torch.Generator().manual_seed(seed)
        self.value = torch.randint(0, 100, shape, generator=draw).double() * 2**10 * 3**6
        self.blocks = shard(self.value, self.layout)

    @rule(data=st.data(), objective=st.sampled_from(["time", "bytes"]))
    def go(self, data: st.DataObject, objective: Objective) -> None:
        target = data.draw(testing.layouts(self.layout.mesh, self.layout.shape))
        for step in plan_transition(self.layout, target, "f64", objective=objective).steps:
            self.blocks = run_step(step, self.blocks)
            assert torch.allclose(assemble(self.blocks, step.target), self.value)
        self.layout = target

    @invariant()
    def tensor_is_there(self) -> None:
        if hasattr(self, "layout"):
            assert torch.allclose(assemble(self.blocks, self.layout), self.value)


Wanderer.TestCase.settings = settings(deadline=None, max_examples=15, stateful_step_count=8)
test_wandering_never_loses_the_tensor = Wanderer.TestCase


def test_direct_is_never_dearer_than_by_way_of_a_third_layout() -> None:
    random = Random(5)
    for i in range(150):
        sizes = random.choice([(2, 2), (2, 4), (2, 2, 2), (8, 8), (2, 8, 8)])
        links = tuple(random.choice([SLOW, FAST]) for _ in sizes)
        mesh = mesh_of(*sizes, links=links)
        shape = random.choice([(128, 128), (8192, 8192)])
        a, b, c = (any_layout(random, mesh, shape, pending=i % 2 == 0) for _ in range(3))
        for objective in ("time", "bytes"):
            direct, first, second = (plan_transition(*ends, objective=objective) for ends in ((a, c), (a, b), (b, c)))
            # Under the cap only: the third layout may be larger than both ends.
            roof = max(a.block_numel(), c.block_numel()) * 4
            if max(first.largest_array_bytes, second.largest_array_bytes) <= max(roof, 1 << 20):
                slack = len(direct.steps) + len(first.steps) + len(second.steps)
                assert direct.cost * (1 - direct.gap) <= first.cost + second.cost + slack, (a, b, c)


def test_renaming_axes_of_equal_size_and_link_changes_nothing() -> None:
    random = Random(6)
    for _ in range(60):
        mesh = mesh_of(2, 2, 4, links=(SLOW, SLOW, FAST))
        other = Mesh("pod", (mesh.axes[1], mesh.axes[0], mesh.axes[2]))
        a, b = (any_layout(random, mesh, (64, 64), pending=True) for _ in range(2))
        plan = plan_transition(a, b)
        same = plan_transition(Layout(other, a.dims, a.pending), Layout(other, b.dims, b.pending))
        assert (plan.time, plan.bytes_received) == (same.time, same.bytes_received), (a, b)


ASK = """
import sys
from random import Random
from tests.plan.drawn import FAST, SLOW, any_layout, mesh_of
from shardlang.plan.search import plan_transition
random = Random(9)
mesh = mesh_of(2, 4, 2, links=(SLOW, FAST, FAST))
pairs = [tuple(any_layout(random, mesh, (64, 64), pending=True) for _ in range(2)) for _ in range(25)]
order = list(range(25))
Random(sys.argv[1]).shuffle(order)
hashes = {i: plan_transition(*pairs[i]).hash for i in order}
print(*(hashes[i] for i in range(25)))
"""


def test_plans_are_the_same_in_every_process_whatever_was_planned_before() -> None:
    said = {
        subprocess.run(
            [sys.executable, "-c", ASK, seed],
            env={"PYTHONHASHSEED": seed, "PATH": ""},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda m: (Layout.whole(m, (8,)), Layout.whole(m, (4,))), "SL0401"),
        (lambda m: (Layout(m, Layout.whole(m, (8,)).dims, (Pending("a", "max"),)), Layout.whole(m, (8,))), "SL0402"),
        (lambda m: (Layout.whole(m, (8,)), Layout.whole(m, (8,))), "SL0403"),
        (
            lambda m: (
                Layout(m, Layout.whole(m, (8,)).dims, (Pending("a", "sum"), Pending("b", "max"))),
                Layout.whole(m, (8,)),
            ),
            "SL0404",
        ),
    ],
)
def test_refusals_have_codes(make: object, code: str) -> None:
    dtype = "c64" if code == "SL0402" else "f32"
    with pytest.raises(ShardlangError) as error:
        plan_transition(*make(mesh_of(2, 2)), dtype, cap=0.5 if code == "SL0403" else 1.0)
    assert error.value.codes == (code,)


def test_a_larger_mesh_is_no_more_work_to_plan_on_than_a_small_one() -> None:
    def calls(size: int) -> int:
        """Python functions entered, which a machine's load does not change."""
        mesh = Mesh("pod", (Axis("a", size, Link("x", 10**11, 10**6)), Axis("b", size, NEAR)))
        shape = (1 << 16, 1 << 16)
        entered = 0

        def count(_frame: object, event: str, _argument: object) -> None:
            nonlocal entered
            entered += event == "call"

        sys.setprofile(count)
        try:
            for source, target in (("ab", "ba"), ("a", "b"), ("ba", "")):
                plan_transition(layout_of(mesh, shape, source, ""), layout_of(mesh, shape, "", target))
        finally:
            sys.setprofile(None)
        return entered

    calls(2)
    assert calls(128) < 2 * calls(4)  # primes of the sizes: seven twos beside two


@pytest.mark.parametrize(("size", "ranks"), [(4, 4), (8, 8), (16, 8)])
def test_an_axis_that_starts_where_another_is_to_end_is_planned(size: int, ranks: int) -> None:
    """The room that the target leaves is just what parts of the source's axis stand aside in."""
    mesh = mesh_of(2, ranks)
    plan = plan_transition(layout_of(mesh, (size,), "b", pending="a"), layout_of(mesh, (size,), "a"))
    assert plan.gap == 0
    holds(plan, 1)


def test_an_axis_of_one_rank_may_owe_before_and_cut_afterwards() -> None:
    mesh = mesh_of(3, 1)
    source = Layout(mesh, (Dim((Factor(4),), (Cut("a", uneven=True),)),), (Pending("b", "sum"),))
    target = Layout(mesh, (Dim((Factor(4),), (Cut("b"),)),), (Pending("a", "sum"),))
    holds(plan_transition(source, target), 1)
