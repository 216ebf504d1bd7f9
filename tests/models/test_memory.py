"""Memory of a step, predicted in one process before any other starts, against what is measured on ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.fsdp import FSDPModule

import shardlang as sl
from examples.llama.model import Llama
from shardlang.check.memory import predict
from shardlang.check.model import ModelLayouts, check_model
from shardlang.lower.facts import facts_of
from shardlang.lower.model import lower_model
from shardlang.lower.placements import device_mesh
from shardlang.runtime.batch import place_batch
from shardlang.runtime.observe import Observer, worst_rank
from shardlang.runtime.step_plan import plan_step
from shardlang.runtime.train import Course, optimizer_of, train, training_step
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


LAYERS = "fsdp layers.* over {over} {{ {options}reshard yes }}\n  fsdp root over {over} {{ {options}reshard no }}"
CONFIGURATIONS = {
    "dp 2, tp 2": llama(kv=4, g=1, k=16),
    "dp 4": llama("dp:4 * tp:1", kv=4, g=1, k=16),
    "tp 4": llama("dp:1 * tp:4", kv=4, g=1, k=16),
    "hybrid": llama(
        "hsdp:2 * dp:2 * tp:1",
        groups=LAYERS.format(over="dp replicate hsdp", options=""),
        dp="hsdp/dp", kv=4, g=1, k=16,
    ),
    "mixed precision": llama(groups=LAYERS.format(over="dp", options="param bf16, reduce f32, "), kv=4, g=1, k=16),
    "frozen": llama(groups=GROUPS + "\n  freeze layers.0.**", kv=4, g=1, k=16),
    "all kept": llama(groups=GROUPS.replace("yes", "no"), kv=4, g=1, k=16),
    "no groups": llama(groups="", kv=4, g=1, k=16),
    "checkpointed": llama(groups="checkpoint layers.*\n  " + GROUPS, kv=4, g=1, k=16),
}  # fmt: skip
GATHERED = ("Unsharded Param", "All Gather", "Reduce Scatter", "Unsharded Grad")


def measured_parts(text: str, build: Callable[[], nn.Module], batches: Callable[[int], Any]) -> dict[str, int]:
    """Bytes of a second step by what they are for, as torch's tracker of FSDP tells them apart, or its plain one."""
    program = sl.loads(text)
    placed = program.apply(build(), program.mesh("m").device_mesh("cpu"))
    optimizer = optimizer_of(placed)
    batch = sl.place(placed, batches(0))

    def step() -> None:
        training_step(placed, batch, nets.next_token)

    step()
    optimizer.step()
    optimizer.zero_grad()
    tracker = FSDPMemTracker(placed, optimizer) if isinstance(placed, FSDPModule) else MemTracker()
    tracker.track_external(placed, optimizer)
    with tracker:
        step()
        now = by_kind(tracker.get_tracker_snapshot("current"))
        optimizer.step()
    snapshots = [s for m in tracker.memory_tracking.values() for each in m.snapshots.values() for s in each]
    return {
        "parameters": now.get("Sharded Param", 0) + now.get("Parameter", 0),
        "gradients": now.get("Sharded Grad", 0) + now.get("Gradient", 0),
        "optimizer": now.get("OptState", 0) + now.get("Optstate", 0),
        "gathered": max(sum(by_kind(s).get(kind, 0) for kind in GATHERED) for s in snapshots),
    }


def by_kind(snapshot: Any) -> dict[str, int]:
    return {getattr(kind, "value", kind): size for kind, size in snapshot[torch.device("cpu")].items()}


def layouts_of(name: str) -> ModelLayouts:
    return check_model(sl.loads(CONFIGURATIONS[name]).declared_model(), facts_of(net()))


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_what_is_fixed_is_known_by_formula(world: World, name: str) -> None:
    """Within 5%, by a formula over the file and the shapes: no tensor is made for it."""
    fixed = predict(layouts_of(name))
    for found in world.run(measured_parts, CONFIGURATIONS[name], net, batch):
        for part, size in found.items():
            told = getattr(fixed, part)
            assert abs(told - size) <= 0.05 * size, (part, told, size)


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_memory_and_collectives_are_known_before_anything_runs(world: World, name: str) -> None:
    """Within 15%, with the activations that the step was gone through for, in this process, without values."""
    planned = plan_step(layouts_of(name), net, batch, nets.next_token)
    courses = world.run(measured, CONFIGURATIONS[name], net, batch)
    assert worst_rank([c.collectives for c in courses]) == planned.collectives
    for course in courses:
        assert abs(planned.memory / course.memory["peak"] - 1) < 0.15, (planned, course.memory)
