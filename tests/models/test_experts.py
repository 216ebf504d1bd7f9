"""A mixture of experts on an axis of its own, dispatched by all-to-all: the numbers of one device, no token dropped."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from click.testing import CliRunner
from torch import Tensor, nn
from torch.nn import functional as F

import shardlang as sl
from examples.experts import model as example
from shardlang.check.model import check_model
from shardlang.cli import main
from shardlang.lower.facts import facts_of
from shardlang.report.lock import lock_text, read_lock
from shardlang.report.run import differences
from shardlang.runtime.applied import applied_to
from shardlang.runtime.observe import Observer, Tally, tally, worst_rank
from shardlang.runtime.record import Recorder
from shardlang.runtime.step_plan import plan_step
from shardlang.runtime.train import training_step
from tests.models import nets
from tests.models.law import Outcome
from tests.models.test_law import agree
from tests.world import World

FILE = Path(example.__file__).with_name("experts.shard")
BATCH, SEQ, EXPERTS = 8, 6, 4

TEXT = """
mesh m = {mesh}
model e on m {{
  param mixture.experts.{{gate,up}} : [experts/ep d f]
  param mixture.experts.down      : [experts/ep f d]
  param otherwise                 : whole
  call root (tokens: [batch/dp/ep seq]) -> [batch/dp/ep seq vocab] eager
  call mixture.experts (x: {rows} d], chosen: {rows} k], share: {rows} k]) -> {rows} d] eager
  {more}
}}
"""
ROWS = "[batch/dp/ep seq"
GROUPS = "fsdp mixture.experts over dp\n  fsdp root over dp replicate ep"


def text(mesh: str, more: str) -> str:
    return TEXT.format(rows=ROWS, mesh=mesh, more=more)


class Net(nn.Module):
    """One mixture between an embedding and a head."""

    def __init__(self, favourite: float = 0.0) -> None:
        super().__init__()
        self.embed = nn.Embedding(nets.VOCAB, nets.DIM)
        self.mixture = example.Mixture(nets.DIM, 12, EXPERTS, 2)
        self.output = nn.Linear(nets.DIM, nets.VOCAB, bias=False)
        with torch.no_grad():
            self.embed.weight.abs_()
            self.mixture.router.weight[:2] += favourite

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        return self.output(x + self.mixture(x))


def lopsided() -> nn.Module:
    """Every token to the experts of the first rank."""
    return Net(5.0)


def tokens(step: int) -> dict[str, Tensor]:
    return {name: rows[:, :SEQ].contiguous() for name, rows in nets.tokens(step).items()}


def every_expert(mixture: example.Mixture, x: Tensor) -> Tensor:
    """The same by other means: every token through every expert, weighed by zero where it was not chosen."""
    scores = torch.softmax(mixture.router(x), dim=-1)
    best = scores.topk(mixture.chosen, dim=-1)
    share = torch.zeros_like(scores).scatter(-1, best.indices, best.values)
    share = share / share.sum(-1, keepdim=True)
    e = mixture.experts
    inner = F.silu(torch.einsum("bsd,edf->bsef", x, e.gate)) * torch.einsum("bsd,edf->bsef", x, e.up)
    return torch.einsum("bsef,efd,bse->bsd", inner, e.down, share)


@pytest.mark.parametrize("favourite", [0.0, 5.0])
def test_on_one_device_no_token_is_dropped(favourite: float) -> None:
    torch.manual_seed(1)
    mixture = Net(favourite).mixture.double()
    x = torch.randn(BATCH, SEQ, nets.DIM).abs().double().requires_grad_()
    inputs = [x, *mixture.parameters()]
    ours, right = mixture(x), every_expert(mixture, x)
    assert torch.allclose(ours, right, rtol=1e-12)
    grads = [torch.autograd.grad(y.sin().sum(), inputs) for y in (ours, right)]
    assert all(torch.allclose(a, b, rtol=1e-10, atol=1e-12) for a, b in zip(*grads, strict=True))


@pytest.mark.parametrize("mesh", ["dp:2 * ep:2", "dp:1 * ep:4", "dp:4 * ep:1"])
def test_experts_train_as_on_one_device(world: World, mesh: str) -> None:
    found = agree(world, text(mesh, GROUPS), Net, tokens, nets.next_token)
    assert found.holds()
    assert found.meshes == 1
    if mesh == "dp:2 * ep:2":
        assert "Shard(dim=0)" in found.placements["mixture.experts.up"].rsplit(",", 1)[-1]


@pytest.mark.parametrize("more", ["", GROUPS, "checkpoint mixture\n  " + GROUPS])
def test_when_all_tokens_go_to_one_rank_nothing_changes(world: World, more: str) -> None:
    found: Outcome = agree(world, text("dp:2 * ep:2", more), lopsided, tokens, nets.next_token)
    assert found.holds()


def test_a_plan_bounds_what_routing_decides(world: World) -> None:
    """Each way a rank gets at most all the rows of its column; evenly routed it gets half of them."""
    declared = sl.loads(text("dp:2 * ep:2", GROUPS)).declared_model()
    planned = plan_step(check_model(declared, facts_of(Net())), Net, tokens, nets.next_token).collectives
    (bound,) = [t for t in planned if t.kind == "all_to_all"]
    rows = BATCH * SEQ // 4 * 2
    assert bound.at_most
    assert (bound.count, bound.bytes) == (5, EXPERTS // 2 * 8 + 4 * rows * nets.DIM * 4)
    assert not any(t.at_most for t in planned if t is not bound)
    said = [t.to_json() for t in planned]
    received = {}
    for build in (Net, lopsided):
        ran = world.run(sent_in_a_step, text("dp:2 * ep:2", GROUPS), build)
        assert differences(said, [t.to_json() for t in worst_rank(ran)]) == []
        received[build] = [sum(t.bytes for t in one if t.kind == "all_to_all") for one in ran]
    # A rank that has nobody's expert gets the counts and its own rows home, forward and backward; the other all rows.
    counts, way = EXPERTS // 2 * 8, rows * nets.DIM * 4
    assert received[lopsided] == [counts + 2 * way] * 4
    assert all(counts < n < bound.bytes for n in received[Net])
    over = [{**t, "bytes": t["bytes"] + 1} if t["kind"] == "all_to_all" else t for t in said]
    assert len(differences(said, over)) == 1


def sent_in_a_step(declared: str, build: Callable[[], nn.Module]) -> tuple[Tally, ...]:
    program = sl.loads(declared)
    torch.manual_seed(0)
    model = program.apply(build(), program.mesh("m").device_mesh("cpu"))
    return _step(model, sl.place(model, tokens(0)), nets.next_token)[0]


def _step(model: nn.Module, batch: Any, loss: Any) -> tuple[tuple[Tally, ...], float]:
    applied = applied_to(model)
    assert applied is not None
    with Recorder() as recorder, Observer(applied.lowered.mesh, dist.get_rank()):
        value, _ = training_step(model, batch, loss)
    return tally(recorder.issued, applied.lowered.mesh), float(value)


def step_of_example() -> tuple[tuple[Tally, ...], float, int]:
    """A step of the example as it stands: what was sent, the loss, and on how many meshes its parameters are."""
    program = sl.load(FILE)
    torch.manual_seed(0)
    model = program.apply(example.build(), program.mesh("pod").device_mesh("cpu"))
    sent, loss = _step(model, sl.place(model, example.batch(0)), example.loss)
    torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True).step()
    return sent, loss, len({p.device_mesh for p in model.parameters()})


def test_the_example_is_what_its_plan_says(world: World) -> None:
    layouts = check_model(sl.load(FILE).declared_model(), facts_of(example.build()))
    planned = plan_step(layouts, example.build, example.batch, example.loss)
    found = world.run(step_of_example)
    ran = worst_rank([tallies for tallies, _, _ in found])
    assert differences([t.to_json() for t in planned.collectives], [t.to_json() for t in ran]) == []
    torch.manual_seed(0)
    total, count = example.loss(example.build(), example.batch(0))
    right = total.item() / count
    assert all(abs(loss - right) < 1e-5 and meshes == 1 for _, loss, meshes in found)


def test_a_lock_marks_what_routing_decides() -> None:
    done = CliRunner().invoke(main, ["lock", str(FILE)])
    assert done.exit_code == 0, done.output
    lines = [line.split() for line in done.stdout.splitlines() if line.startswith("  collective ")]
    assert [line[1:3] for line in lines if "all_to_all" in line[1]] == [["all_to_all<=", "ep"]]
    assert all("<=" not in line[1] for line in lines if "all_to_all" not in line[1])
    assert "  collective all_to_all<= ep " in lock_text(read_lock("x.lock", done.stdout.encode()))
