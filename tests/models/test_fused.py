"""Fused weights, of which each rank holds its own part of every factor: blocks that no chunk is."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
import torch
from torch import nn

import shardlang as sl
from shardlang.check.model import check_model
from shardlang.lower.facts import facts_of
from shardlang.lower.model import lower_model
from shardlang.runtime.loss import whole_value
from tests.models import nets
from tests.models.test_law import agree
from tests.world import World

GPT = """
mesh m = {mesh}
let h = 4, k = 4
model g on m {{
  param layers.*.weight     : {weight}
  param layers.*.bias       : [(3 h/tp k)]
  param layers.*.out.weight : [d (h/tp k)]
  param otherwise           : whole
  call root (tokens: [n/dp s]) -> [n/dp s v]
  call layers.* (x: [n/dp s d]) -> [n/dp s d]
  {groups}
}}
"""
AS_ROWS, AS_COLUMNS = "[(3 h/tp k) d]", "[d (3 h/tp k)]"


@pytest.mark.parametrize("groups", ["", "fsdp root over dp", "fsdp layers.* over dp\n  fsdp root over dp"])
@pytest.mark.parametrize("weight", [AS_ROWS, AS_COLUMNS])
def test_fused_weights_train_alike_by_their_own_heads(world: World, weight: str, groups: str) -> None:
    text = GPT.format(mesh="dp:2 * tp:2", weight=weight, groups=groups)
    build = nets.turned_gpt if weight == AS_ROWS else nets.gpt
    found = agree(world, text, build, nets.tokens, nets.next_token)
    assert found.holds()
    over_tp = {t.kind: t.bytes for t in found.sent if t.axes == ("tp",)}
    assert over_tp == {"all_reduce": 4 * 2048}  # into and out of each layer: no weight, no query, key or value moves


def what_is_stored(text: str, rows: bool) -> list[tuple[str, bool | None]]:
    """Places a model; says of each fused parameter what its layout is, having compared it with what was placed."""
    program = sl.loads(text)
    torch.manual_seed(0)
    model = nets.turned_gpt() if rows else nets.gpt()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    placed = program.apply(model, program.mesh("m").device_mesh("cpu"))
    found: list[tuple[str, bool | None]] = []
    for name, parameter in placed.named_parameters():
        whole = sl.reshard(parameter.detach(), "whole").to_local()
        assert torch.equal(whole, before[name]), name
        if name.startswith("layers.0") and "out" not in name:
            read: bool | None = None
            with suppress(AssertionError, RuntimeError):
                read = bool(torch.equal(parameter.detach().full_tensor(), before[name]))
            found.append((str(sl.layout_of(parameter)), read))
    return found


@pytest.mark.parametrize(("mesh", "axis"), [("dp:2 * tp:2", "dp"), ("dp:2 * x:1 * tp:2", "dp_x")])
@pytest.mark.parametrize("weight", [AS_ROWS, AS_COLUMNS])
def test_a_stored_part_says_which_elements_it_is(world: World, mesh: str, axis: str, weight: str) -> None:
    """Torch itself reads the weight right; it cannot say the bias, and raises rather than put it together wrongly."""
    text = GPT.format(mesh=mesh, weight=weight, groups=f"fsdp root over {axis.replace('_', '/')}")
    layout = f"[(3 16/tp) 16/{axis}]" if weight == AS_ROWS else f"[16/{axis} (3 16/tp)]"
    for found in world.run(what_is_stored, text, weight == AS_ROWS):
        assert found == [(layout, True), (f"[(3 4/tp 4)/~{axis}]", None)]


def test_a_part_kept_over_fewer_ranks_is_cut_along_the_first_dim() -> None:
    """Torch cuts what it keeps along dim 0 and puts it together along the dim that is stored in parts."""
    for option, dim in (("reshard yes", 1), ("reshard 2", 0)):
        text = GPT.format(mesh="dp:4 * tp:2", weight=AS_ROWS, groups=f"fsdp root over dp {{ {option} }}")
        lowered = lower_model(check_model(sl.loads(text).declared_model(), facts_of(nets.turned_gpt())))
        assert lowered.groups[0].dims["layers.0.weight"] == dim


def stepped(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> tuple[float, float]:
    total, count = nets.next_token(model, sl.place(model, nets.tokens(step)))
    with sl.global_view():
        sl.global_mean(total, count).backward()
    norm = float(sl.clip_grad_norm_(model.parameters(), 0.5))
    optimizer.step()
    optimizer.zero_grad()
    return float(whole_value(total)), norm


def made(text: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    program = sl.loads(text)
    model = program.apply(nets.turned_gpt(), program.mesh("m").device_mesh("cpu"))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def resumed(first: str, second: str, folder: str) -> list[tuple[float, float]]:
    """Two steps on one mesh, saved; loaded on the other, two steps more."""
    model, optimizer = made(first)
    found = [stepped(model, optimizer, step) for step in (0, 1)]
    sl.save(sl.state_dict(model, optimizer), folder)
    model, optimizer = made(second)
    sl.load_state(sl.state_dict(model, optimizer), folder)
    return found + [stepped(model, optimizer, step) for step in (2, 3)]


def plain_steps() -> list[tuple[float, float]]:
    torch.manual_seed(0)
    model = nets.turned_gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    found = []
    for step in range(4):
        total, count = nets.next_token(model, nets.tokens(step))
        (total / count).backward()
        norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5))
        optimizer.step()
        optimizer.zero_grad()
        found.append((float(total.detach()), norm))
    return found


@pytest.mark.parametrize("other", ["dp:1 * tp:4", "dp:4 * tp:1"])
def test_a_run_with_fused_weights_goes_on_on_another_mesh(world: World, tmp_path: Path, other: str) -> None:
    first, second = (
        GPT.format(mesh=mesh, weight=AS_ROWS, groups="fsdp root over dp") for mesh in ("dp:2 * tp:2", other)
    )
    right = plain_steps()
    for found in world.run(resumed, first, second, str(tmp_path / "saved")):
        assert found == [(pytest.approx(a, rel=1e-5), pytest.approx(b, rel=1e-4)) for a, b in right]


def materialized(text: str) -> dict[str, torch.Tensor]:
    program = sl.loads(text)
    model = program.apply(sl.deferred(nets.turned_gpt, seed=3), program.mesh("m").device_mesh("cpu"))
    sl.materialize(model)
    return {name: sl.reshard(p.detach(), "whole").to_local() for name, p in model.named_parameters()}


def test_a_fused_weight_is_initialised_alike_on_any_mesh(world: World) -> None:
    right = dict(sl.materialize(sl.deferred(nets.turned_gpt, seed=3)).named_parameters())
    for groups in ("", "fsdp root over dp"):
        text = GPT.format(mesh="dp:2 * tp:2", weight=AS_ROWS, groups=groups)
        for found in world.run(materialized, text):
            assert all(torch.equal(found[name], right[name]) for name in right)
