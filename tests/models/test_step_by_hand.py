"""The code that the bench of a step holds a lowered model against computes and sends the same."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

import shardlang as sl
from shardlang.lower.placements import mesh_of
from shardlang.runtime.observe import Observer, tally
from shardlang.runtime.record import Recorder
from tests.bench import step_host_time as bench
from tests.world import World


def both() -> dict[str, tuple[Any, Any]]:
    mesh = sl.loads(bench.TEXT).mesh("m").device_mesh("cpu")
    found = {}
    for name, (model, run) in {
        "by hand": bench.by_hand(2, mesh),
        "eager": bench.lowered(bench.EAGER, 2, mesh),
        "compiled": bench.lowered(bench.TEXT, 2, mesh),
    }.items():
        run()  # ranks agree on plans in the first step
        for parameter in model.parameters():
            parameter.grad = None
        with Recorder() as recorder, Observer(mesh_of(mesh), dist.get_rank()):
            run()
        grads = {n: p.grad.full_tensor() for n, p in model.named_parameters()}
        found[name] = grads, tally(recorder.issued, mesh_of(mesh))
    return found


def test_by_hand_and_lowered_have_one_gradient_and_one_plan(world: World) -> None:
    plain = bench.net(2)
    batch = bench.batch()
    logits = plain(batch["tokens"]).flatten(0, 1)
    torch.nn.functional.cross_entropy(logits, batch["targets"].flatten()).backward()
    for found in world.run(both):
        for name, (grads, _) in found.items():
            for key, parameter in plain.named_parameters():
                assert parameter.grad is not None
                assert torch.allclose(grads[key], parameter.grad, rtol=1e-4, atol=1e-6), (name, key)
        assert found["by hand"][1] == found["eager"][1]
