"""Weights that FSDP gathers as float8, against torchao and ``fully_shard`` by hand: the same collectives and bits."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Shard

import shardlang as sl
from shardlang.check.memory import predict
from shardlang.check.model import check_model
from shardlang.diagnostics import ShardlangError
from shardlang.lower.facts import facts_of
from shardlang.lower.fsdp_cost import fsdp_traffic
from shardlang.lower.model import LoweredModel, lower_model
from shardlang.lower.placements import mesh_of
from shardlang.mesh import Axis, Mesh
from shardlang.runtime import float8
from shardlang.runtime.loss import whole_value
from shardlang.runtime.observe import Observer, tally
from shardlang.runtime.record import Issued, Recorder
from tests.world import World

TEXT = """
mesh m = {mesh}
model p on m {{
  param {cut} : {spec}
  param otherwise : whole
  call root (input: [n/dp d]) -> [n/dp d]
  fsdp {{0,2}} over dp {{ all_gather float8 }}
  fsdp root over dp {{ reshard no }}
}}
"""
DIM, BATCH, LINE = Mesh("m", (Axis("dp", 4),)), 8, 32


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(LINE, LINE), nn.Tanh(), nn.Linear(LINE, LINE), nn.Tanh(), nn.Linear(LINE, LINE))


def text(mesh: str = "dp:4", cut: str = "4.weight", spec: str = "whole") -> str:
    return TEXT.format(mesh=mesh, cut=cut, spec=spec)


def by_hand(mesh: Any) -> nn.Module:
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    config = Float8LinearConfig(enable_fsdp_float8_all_gather=True, emulate=True)
    model = convert_to_float8_training(net(), config=config, module_filter_fn=lambda _, name: name in ("0", "2"))
    parts = [model[0], model[2]]
    for part in parts:
        fully_shard(part, mesh=mesh)
    fully_shard(model, mesh=mesh, reshard_after_forward=False)
    for part in (*parts, model):
        assert isinstance(part, FSDPModule)
        part.set_gradient_divide_factor(1.0)
        part.set_force_sum_reduction_for_comms(True)
    return model


def plain(block: Any) -> torch.Tensor:
    return getattr(block, "_tensor", block)


def trained(model: nn.Module, mesh: Any, placed: bool) -> tuple[list[torch.Tensor], list[Issued]]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    kept: list[torch.Tensor] = []
    issued: list[Issued] = []
    for step in range(2):
        x = torch.randn(BATCH, LINE, generator=torch.Generator().manual_seed(step)).chunk(4)[dist.get_rank()]
        with Recorder() as recorder, Observer(mesh_of(mesh), dist.get_rank()):
            given = DTensor.from_local(x, mesh, [Shard(0)], run_check=False) if placed else x
            out = model(given)
            (out.square().sum() / BATCH).backward()
        issued = recorder.issued
        parameters: list[Any] = list(model.parameters())
        kept += [plain(p.grad.to_local()).clone() for p in parameters]
        optimizer.step()
        optimizer.zero_grad()
    return kept + [plain(p.detach().to_local()).clone() for p in model.parameters()], issued  # type: ignore[attr-defined]


def both() -> tuple[bool, list[Issued], list[Issued]]:
    program = sl.loads(text())
    mesh = program.mesh("m").device_mesh("cpu")
    ours, sent = trained(program.apply(net(), mesh), mesh, True)
    theirs, theirs_sent = trained(by_hand(mesh), mesh, False)
    return all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True)), sent, theirs_sent


def lowered(source: str) -> LoweredModel:
    return lower_model(check_model(sl.loads(source).declared_model(), facts_of(net())))


def test_weights_are_gathered_as_float8_with_the_bits_of_torchao_by_hand(world: World) -> None:
    planned = [Issued(t.kind, t.axes, t.bytes, t.bytes) for t in fsdp_traffic(lowered(text()))]
    for same, ours, theirs in world.run(both):
        assert ours == theirs
        assert same
        assert tally(ours, DIM) == tally(planned, DIM)
        weights, biases = 2 * LINE * LINE, 2 * LINE * 4
        last = (LINE * LINE + LINE) * 4
        gathered = sum(i.bytes_received for i in ours if i.kind == "all_gather")
        assert gathered == (2 * (weights + biases) + last) * 3 // 4  # twice, for the backward; a byte an element


def test_groups_of_float8_are_held_at_a_byte_an_element() -> None:
    facts = facts_of(net())
    wide = text().replace("{ all_gather float8 }", "")
    full, narrow = (predict(check_model(sl.loads(t).declared_model(), facts)).gathered for t in (wide, text()))
    assert full - narrow == 2 * LINE * LINE * 3  # two groups are whole at once; gradients are as they were


def resumed(folder: str, mesh: str) -> list[float]:
    """Two steps, saved; taken up by a model that was built without memory, two steps more: all four losses."""
    program = sl.loads(text(mesh))
    on = program.mesh("m").device_mesh("cpu")
    model = program.apply(net(), on)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    found = [stepped(model, optimizer, step) for step in (0, 1)]
    sl.save(sl.state_dict(model, optimizer), folder)
    model = sl.materialize(program.apply(sl.deferred(net), on))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    sl.load_state(sl.state_dict(model, optimizer), folder)
    return found + [stepped(model, optimizer, step) for step in (2, 3)]


def stepped(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> float:
    x = torch.randn(BATCH, LINE, generator=torch.Generator().manual_seed(step))
    with sl.global_view():
        mean = sl.global_mean(model(sl.place(model, x)).square().sum(), BATCH)
        mean.backward()
    norm = sl.clip_grad_norm_(model.parameters(), 100.0)
    optimizer.step()
    optimizer.zero_grad()
    assert bool(norm > 0)
    return float(whole_value(mean))


def in_full() -> list[float]:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    found = []
    for step in range(4):
        x = torch.randn(BATCH, LINE, generator=torch.Generator().manual_seed(step))
        loss = model(x).square().sum() / BATCH
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(float(loss.detach()))
    return found


@pytest.mark.parametrize("mesh", ["dp:4", "dp:2 * tp:2"])
def test_a_run_in_float8_goes_on_from_a_checkpoint_near_the_one_in_full(
    world: World, tmp_path: Path, mesh: str
) -> None:
    found = world.run(resumed, str(tmp_path / "saved"), mesh)
    assert all(f == found[0] for f in found)
    assert found[0] == pytest.approx(in_full(), rel=0.05)
    assert found[0] != pytest.approx(in_full(), rel=1e-6)  # products are of float8


def test_float8_without_torchao_is_refused_before_anything_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    own = builtins.__import__

    def missing(name: str, *rest: Any, **options: Any) -> Any:
        if name.startswith("torchao"):
            raise ImportError("No module named 'torchao'")
        return own(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", missing)
    model = net()
    with pytest.raises(ShardlangError) as raised:
        float8.install(lowered(text()), model, None)  # type: ignore[arg-type]  # nothing is placed
    assert raised.value.codes == ("SL0662",)
    assert type(model[0]) is nn.Linear


@pytest.mark.parametrize(
    "source",
    [
        text("dp:2 * tp:2", "0.weight", "[o/tp d]"),
        text().replace("fsdp {0,2} over", "fsdp {0,1} over"),
        text().replace("fsdp {0,2} over dp {", "fsdp 1 over dp {"),
    ],
)
def test_a_group_without_whole_weights_of_linear_layers_is_refused(source: str) -> None:
    with pytest.raises(ShardlangError) as raised:
        lowered(source)
    assert raised.value.codes == ("SL0663",)
