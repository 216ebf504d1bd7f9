"""Every FSDP option of a file against ``fully_shard`` written by hand: the same collectives, the same bits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    DataParallelMeshDims,
    FSDPModule,
    MixedPrecisionPolicy,
    fully_shard,
)
from torch.distributed.tensor import DTensor, Replicate, Shard

import shardlang as sl
from shardlang.check.model import check_model
from shardlang.lower.facts import facts_of
from shardlang.lower.fsdp_cost import fsdp_traffic
from shardlang.lower.model import lower_model
from shardlang.lower.placements import mesh_of
from shardlang.mesh import Axis, Mesh
from shardlang.runtime.observe import Observer, tally
from shardlang.runtime.record import Issued, Recorder, note
from tests.world import World

TEXT = """
mesh m = {mesh}
model p on m {{
  param otherwise : whole
  call root (input: [n/{axes} d]) -> [n/{axes} d]
  fsdp {{0,2,4}} {over} {{ {options} }}
  fsdp root {over} {{ reshard no }}
}}
"""
DIM, BATCH = 12, 8
ONE, TWO = Mesh("m", (Axis("dp", 4),)), Mesh("m", (Axis("dp", 2), Axis("fsdp", 2)))


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(DIM, 10), nn.Tanh(), nn.Linear(10, 9), nn.Tanh(), nn.Linear(9, DIM))


def by_hand(mesh: Any, shard: str, replicate: str | None, options: dict[str, Any], prefetch: int) -> nn.Module:
    """What a careful user of ``fully_shard`` writes."""
    model = net()
    for part in model.modules():
        for name, parameter in list(part.named_parameters(recurse=False)):
            whole = DTensor.from_local(parameter.detach(), mesh, [Replicate()] * mesh.ndim, run_check=False)
            part.register_parameter(name, nn.Parameter(whole))
    dims = DataParallelMeshDims(shard=shard, replicate=replicate)
    parts = [model[i] for i in (0, 2, 4)]
    for part in parts:
        fully_shard(part, mesh=mesh, dp_mesh_dims=dims, **options)
    fully_shard(model, mesh=mesh, dp_mesh_dims=dims, reshard_after_forward=False)
    for part in (*parts, model):
        assert isinstance(part, FSDPModule)
        part.set_gradient_divide_factor(1.0)
        part.set_force_sum_reduction_for_comms(True)
    for i, part in enumerate(parts if prefetch else []):
        part.set_modules_to_forward_prefetch(parts[i + 1 : i + 1 + prefetch])
        part.set_modules_to_backward_prefetch(parts[max(0, i - prefetch) : i][::-1])
    return model


def trained(model: nn.Module, mesh: Any) -> tuple[list[torch.Tensor], list[Issued]]:
    """Two steps: the stored parts of weights and gradients; and what the second step sent, in order, with a mark where
    each layer runs forward and backward."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    sent: list[Issued] = []
    placements = [Shard(0)] * mesh.ndim
    kept: list[torch.Tensor] = []
    for i in (0, 2, 4):
        model[i].register_forward_pre_hook(lambda *_, i=i: note(f"forward {i}", (), 0, 0))
        model[i].register_full_backward_pre_hook(lambda *_, i=i: note(f"backward {i}", (), 0, 0))
    for step in range(2):
        ways = mesh.size()
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(BATCH, DIM, generator=generator).chunk(ways)[dist.get_rank()]
        with Recorder() as recorder, Observer(mesh_of(mesh), dist.get_rank()):
            out = model(DTensor.from_local(x, mesh, placements, run_check=False))
            kept.append(out.detach().to_local())
            (out.square().sum() / BATCH).backward()
        sent = recorder.issued
        kept += [p.grad.to_local().clone() for p in model.parameters()]
        optimizer.step()
        optimizer.zero_grad()
    return kept + [p.detach().to_local() for p in model.parameters()], sent


def both(axes: str, over: str, options: str, arguments: dict[str, Any], prefetch: int) -> tuple[bool, Any, Any, Any]:
    """Are all bits and dtypes equal; what each side sent, in order; what was planned."""
    names = [a.partition(":")[0] for a in axes.split(" * ")]
    program = sl.loads(TEXT.format(mesh=axes, axes="/".join(names), over=over, options=options))
    declared = program.declared_model()
    mesh = program.mesh("m").device_mesh("cpu")
    planned = [
        Issued(t.kind, t.axes, t.bytes, t.bytes)
        for t in fsdp_traffic(lower_model(check_model(declared, facts_of(net()))))
    ]
    ours, sent = trained(program.apply(net(), mesh), mesh)
    shard, replicate = names[-1], names[0] if len(names) > 1 else None
    theirs, theirs_sent = trained(by_hand(mesh, shard, replicate, arguments, prefetch), mesh)
    same = all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    return same, sent, theirs_sent, tally(planned, mesh_of(mesh))


HALF = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
CASES: dict[str, tuple[dict[str, Any], int]] = {
    "reshard yes": ({"reshard_after_forward": True}, 0),
    "reshard no": ({"reshard_after_forward": False}, 0),
    "prefetch 1": ({}, 1),
    "prefetch 2": ({}, 2),
    "param bf16": ({"mp_policy": HALF}, 0),
    "reduce bf16": ({"mp_policy": MixedPrecisionPolicy(None, torch.bfloat16)}, 0),
    "param bf16, reduce f32": ({"mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.float32)}, 0),
    "param bf16, output f32": ({"mp_policy": MixedPrecisionPolicy(torch.bfloat16, None, torch.float32)}, 0),
    "offload yes": ({"offload_policy": CPUOffloadPolicy(pin_memory=False)}, 0),
    "reshard no, prefetch 1, param bf16, reduce f32": (
        {"reshard_after_forward": False, "mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.float32)},
        1,
    ),
}


@pytest.mark.parametrize("options", CASES)
def test_an_option_does_what_fully_shard_does(world: World, options: str) -> None:
    arguments, prefetch = CASES[options]
    for same, ours, theirs, planned in world.run(both, "dp:4", "over dp", options, arguments, prefetch):
        assert same
        assert ours == theirs
        assert tally(ours, ONE) == planned


@pytest.mark.parametrize("options", [o for o in CASES if o != "reshard yes"])
def test_an_option_is_not_without_effect(world: World, options: str) -> None:
    """What the test above compares differs from what the defaults do, so that an option left out would show."""
    if "offload" in options:  # moves between devices, of which a CPU has one: told by where FSDP gathers from
        assert all(world.run(offloads, options))
        return
    (same, ours, theirs, _), *_ = world.run(both, "dp:4", "over dp", options, {}, 0)
    assert not same or ours != theirs


def offloads(options: str) -> bool:
    program = sl.loads(TEXT.format(mesh="dp:4", axes="dp", over="over dp", options=options))
    model = program.apply(net(), program.mesh("m").device_mesh("cpu"))
    return all(
        isinstance(model[i]._get_fsdp_state()._fsdp_param_groups[0].offload_policy, CPUOffloadPolicy) for i in (0, 2, 4)
    )


def test_replicate_is_hybrid_sharding(world: World) -> None:
    for same, ours, theirs, planned in world.run(both, "dp:2 * fsdp:2", "over fsdp replicate dp", "reshard yes", {}, 0):
        assert same
        assert ours == theirs
        assert tally(ours, TWO) == planned


def test_reshard_to_fewer_ranks_gathers_among_these(world: World) -> None:
    """By hand torch refuses it on a whole mesh; the bits are those of ``reshard yes``, for fewer bytes."""
    for same, issued, by_hand, planned in world.run(both, "dp:4", "over dp", "reshard 2", {}, 0):
        ours, theirs = tally(issued, ONE), tally(by_hand, ONE)
        assert same
        assert ours == planned
        assert ("all_gather", ("dp:2",)) in {(t.kind, t.axes) for t in ours}
        assert sum(t.bytes for t in ours) < sum(t.bytes for t in theirs)
