"""Memory of a step, predicted in one process before any other starts, against what is measured on ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import shardlang as sl
from examples.llama.model import Llama
from shardlang.check.memory import predict
from shardlang.check.model import check_model
from shardlang.lower.facts import facts_of
from shardlang.lower.model import lower_model
from shardlang.lower.placements import device_mesh
from shardlang.runtime.batch import place_batch
from shardlang.runtime.observe import Observer, worst_rank
from shardlang.runtime.step_plan import plan_step
from shardlang.runtime.train import Course, train, training_step
from tests.models import nets
from tests.models.test_law import GROUPS, llama
from tests.world import World

BATCH, SEQ = 8, 64


def net() -> nn.Module:
    return Llama(vocab=64, dim=64, hidden=128, layers=3, heads=4, kv_heads=4, length=SEQ)


def batch(step: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    both = torch.randint(64, (BATCH, SEQ + 1), generator=generator)
    return {"tokens": both[:, :-1].contiguous(), "targets": both[:, 1:].contiguous()}


def measured(text: str, build: Callable[[], nn.Module], batches: Callable[[int], Any]) -> Course:
    program = sl.loads(text)
    declared = program.declared_model()
    mesh = program.mesh("m").device_mesh("cpu")
    module = build()
    lowered = lower_model(check_model(declared, facts_of(module)))
    placed = program.apply(module, mesh)
    on = device_mesh(lowered.mesh, "cpu")
    return train(
        placed,
        lambda n: place_batch(lowered, batches(n), on),
        nets.next_token,
        2,
        step=training_step,
        observe=lambda: Observer(lowered.mesh, dist.get_rank()),
    )


CONFIGURATIONS = {
    "dp 2, tp 2": llama(kv=4, g=1, k=16),
    "dp 4": llama("dp:4 * tp:1", kv=4, g=1, k=16),
    "tp 4": llama("dp:1 * tp:4", kv=4, g=1, k=16),
    "all kept": llama(groups=GROUPS.replace("yes", "no"), kv=4, g=1, k=16),
    "no groups": llama(groups="", kv=4, g=1, k=16),
    "checkpointed": llama(groups="checkpoint layers.*\n  " + GROUPS, kv=4, g=1, k=16),
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_memory_and_collectives_are_known_before_anything_runs(world: World, name: str) -> None:
    text = CONFIGURATIONS[name]
    declared = sl.loads(text).declared_model()
    layouts = check_model(declared, facts_of(net()))
    planned = plan_step(layouts, net, batch, nets.next_token)
    courses = world.run(measured, text, net, batch)
    assert worst_rank([c.collectives for c in courses]) == planned.collectives
    found = courses[0].memory
    fixed = predict(layouts)
    assert abs(planned.memory / found["peak"] - 1) < 0.15, (planned, found)
    assert abs(fixed.optimizer / found["optstate"] - 1) < 0.05
