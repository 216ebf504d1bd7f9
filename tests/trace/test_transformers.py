"""Models of the transformers library, own code untouched, split by a file: logits and gradients of one device, and not
one collective outside the plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from attrs import frozen
from torch import Tensor, nn

import shardlang as sl
from shardlang.check.model import check_model
from shardlang.lower.facts import facts_of
from shardlang.lower.model import lower_model
from shardlang.lower.placements import device_mesh
from shardlang.runtime.batch import place_batch
from shardlang.runtime.global_view import global_view
from shardlang.runtime.loss import global_mean, whole_value
from shardlang.runtime.observe import Observer, Tally, tally, worst_rank
from shardlang.runtime.record import Recorder
from shardlang.runtime.step_plan import plan_step
from tests.trace import transformers_models as models
from tests.world import World

FSDP = {
    "llama": "  call model.layers.* (hidden_states: [batch/dp seq{sp} d]) -> [batch/dp seq{sp} d]\n"
    "  fsdp model.layers.* over dp\n  fsdp root over dp {{ reshard no }}",
    "bert": "  call encoder.layer.* (hidden_states: [batch/dp seq{sp} d]) -> [batch/dp seq{sp} d]\n"
    "  fsdp encoder.layer.* over dp\n  fsdp root over dp {{ reshard no }}",
}


@frozen
class Found:
    """How far results and gradients are from one device's, relative to the greatest right value; what was sent."""

    result: float
    gradient: float
    gradients: int
    sent: tuple[Tally, ...]


Loss = Callable[[nn.Module, Any], tuple[Tensor, Any]]


def beside(text: str, build: Callable[[], nn.Module], batches: Callable[[int], Any], loss: Loss, field: str) -> Found:
    """A step of the placed model and of a plain copy, in double precision. Runs on every rank."""
    program = sl.loads(text)
    declared = program.declared_model()
    torch.manual_seed(0)
    plain = build()
    torch.manual_seed(0)
    module = build()
    lowered = lower_model(check_model(declared, facts_of(module)))
    placed = program.apply(module, program.mesh(declared.mesh.name).device_mesh("cpu"))
    batch = batches(0)
    due = getattr(plain(**{n: v for n, v in batch.items() if n != "targets"}), field)
    total, count = loss(plain, batch)
    (total / count).backward()
    own = place_batch(lowered, batch, device_mesh(lowered.mesh, "cpu"))
    with torch.no_grad(), global_view():
        got = whole_value(getattr(placed(**{n: v for n, v in own.items() if n != "targets"}), field))
    with Recorder() as recorder, Observer(lowered.mesh, dist.get_rank()), global_view():
        global_mean(*loss(placed, own)).backward()
    worst, compared = 0.0, 0
    theirs = dict(plain.named_parameters())
    # The greatest of all: a key's bias has no gradient but what rounding leaves.
    scale = max(float(p.grad.abs().max()) for p in theirs.values() if p.grad is not None)
    for name, parameter in placed.named_parameters():
        right = theirs[name].grad
        if right is None:
            assert parameter.grad is None, name
            continue
        assert parameter.grad is not None, name
        worst = max(worst, distance(whole_value(parameter.grad), right, scale))
        compared += 1
    return Found(
        distance(got, due, float(due.detach().abs().max())), worst, compared, tally(recorder.issued, lowered.mesh)
    )


def distance(got: Tensor, due: Tensor, scale: float) -> float:
    return float((got - due).detach().abs().max()) / scale


CASES = [
    ("llama", "dp:1 * tp:4", False, False),
    ("llama", "dp:2 * tp:2", True, True),
    ("bert", "dp:1 * tp:4", True, False),
    ("bert", "dp:2 * tp:2", False, True),
]
MORE = [
    (name, mesh, sequence, grouped)
    for name in ("llama", "bert")
    for mesh in ("dp:1 * tp:4", "dp:2 * tp:2", "dp:4 * tp:1")
    for sequence in (False, True)
    for grouped in (False, True)
    if (name, mesh, sequence, grouped) not in CASES
]


def held(world: World, name: str, mesh: str, sequence: bool, grouped: bool) -> None:
    lines = FSDP[name].format(sp="/tp" if sequence else "") if grouped else ""
    text = {"llama": models.llama_text, "bert": models.bert_text}[name](mesh, sequence, lines)
    # A cache goes through a compiled model, and not into modules that are called as they are.
    llama = models.build_llama_without_cache if grouped else models.build_llama
    build = {"llama": llama, "bert": models.build_bert}[name]
    batches = {"llama": models.tokens, "bert": models.padded}[name]
    loss = {"llama": models.next_token, "bert": models.both_results}[name]
    field = {"llama": "logits", "bert": "last_hidden_state"}[name]
    found = world.run(beside, text, build, batches, loss, field, timeout=180)
    assert all(f.result < 1e-12 for f in found)
    assert all(f.gradient < 1e-10 for f in found)
    assert found[0].gradients == len(list(build().parameters()))
    program = sl.loads(text)
    planned = plan_step(check_model(program.declared_model(), facts_of(build())), build, batches, loss).collectives
    sent = {(t.kind, t.axes): t for t in worst_rank(f.sent for f in found)}
    for t in planned:
        if t.kind != "all_reduce" or (t.kind, t.axes) in sent:  # the step's own norm of the gradient is not run here
            assert sent.pop((t.kind, t.axes)).bytes <= t.bytes
    assert not sent


@pytest.mark.parametrize(("name", "mesh", "sequence", "grouped"), CASES)
def test_a_model_of_the_library_is_split_by_a_file(
    world: World, name: str, mesh: str, sequence: bool, grouped: bool
) -> None:
    held(world, name, mesh, sequence, grouped)


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "mesh", "sequence", "grouped"), MORE)
def test_more_ways_to_split_a_model_of_the_library(
    world: World, name: str, mesh: str, sequence: bool, grouped: bool
) -> None:
    held(world, name, mesh, sequence, grouped)
