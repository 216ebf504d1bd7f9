"""Models built without memory: the same weights on any mesh and on one device, each rank making only its part."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import shardlang as sl
from tests.models import nets
from tests.models.test_law import llama
from tests.world import World


def whole(model: nn.Module) -> dict[str, Tensor]:
    """Every parameter and buffer, whole."""
    tensors = [*model.named_parameters(remove_duplicate=False), *model.named_buffers()]
    return {n: t.detach().full_tensor() if hasattr(t, "full_tensor") else t.detach() for n, t in tensors}


class Various(nn.Module):
    """Initialisers of many kinds, a constant, a buffer that is computed, a tied weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.square = nn.Linear(8, 8, bias=False)
        nn.init.orthogonal_(self.square.weight)
        self.short = nn.Linear(8, 6)
        nn.init.trunc_normal_(self.short.weight, std=0.1, a=-0.2, b=0.2)
        nn.init.constant_(self.short.bias, 0.25)
        self.embed = nn.Embedding(5, 6, padding_idx=1)
        self.norm = nn.LayerNorm(6)
        self.tied = nn.Linear(6, 8)
        self.tied.weight = self.first.weight
        self.given = nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))
        self.scaled = nn.Parameter(torch.randn(4, 6) * 0.5 + 1)
        self.register_buffer("table", torch.outer(torch.arange(4.0), torch.linspace(0, 1, 6)).cos())


def test_on_one_device_every_initialiser_has_its_effect() -> None:
    model = sl.deferred(Various, seed=3)
    assert {n for n, p in model.named_parameters() if not p.is_meta} == {"given"}
    sl.materialize(model)
    assert torch.equal(model.given, torch.tensor([1.0, 2.0, 3.0]))
    assert torch.equal(model.table, Various().table)
    assert torch.allclose(model.square.weight @ model.square.weight.T, torch.eye(8), atol=1e-5)
    assert torch.equal(model.short.bias, torch.full((6,), 0.25))
    assert not model.embed.weight[1].any()
    assert model.embed.weight[0].all()
    assert model.tied.weight is model.first.weight
    assert 0 < model.short.weight.abs().max() < 0.2 + 1e-6
    assert abs(float(model.scaled.mean()) - 1) < 0.5
    bound = 6**-0.5
    assert 0.8 * bound < float(model.first.weight.abs().max()) <= bound


def test_the_same_seed_gives_the_same_weights_and_another_does_not() -> None:
    first, again, other = (whole(sl.materialize(sl.deferred(Various, seed=s))) for s in (1, 1, 2))
    assert all(torch.equal(first[n], again[n]) for n in first)
    assert not torch.equal(first["first.weight"], other["first.weight"])


def materialized(text: str) -> tuple[dict[str, Tensor], int, bool]:
    program = sl.loads(text)
    mesh = program.mesh("m").device_mesh("cpu")
    model = program.apply(sl.deferred(nets.llama, seed=5), mesh)
    empty = all(p.to_local().is_meta for p in model.parameters())
    sl.materialize(model)
    stored = sum(p.to_local().numel() for p in model.parameters())
    loss, count = nets.next_token(model, sl.place(model, nets.tokens(0)))
    with sl.global_view():
        sl.global_mean(loss, count).backward()
    norm = float(sl.grad_norm(model.parameters()))
    return whole(model) | {"loss": loss.detach().full_tensor(), "norm": torch.tensor(norm)}, stored, empty


@pytest.mark.parametrize("mesh", ["dp:2 * tp:2", "dp:4 * tp:1"])
def test_a_model_has_the_same_weights_on_any_mesh(world: World, mesh: str) -> None:
    plain = sl.materialize(sl.deferred(nets.llama, seed=5))
    right = whole(plain)
    total, count = nets.next_token(plain, nets.tokens(0))
    (total / count).backward()
    for found, stored, empty in world.run(materialized, llama(mesh)):
        assert empty
        assert all(torch.equal(found[n], right[n]) for n in right)
        assert torch.allclose(found["loss"], total, rtol=1e-5)
        assert torch.allclose(found["norm"], sl.grad_norm(plain.parameters()), rtol=1e-5)
        assert stored < sum(p.numel() for p in plain.parameters()) / 2


def test_parameters_that_are_left_alone_are_reduced_after_materializing(world: World) -> None:
    for found, _, _ in world.run(materialized, llama(groups="")):
        plain = sl.materialize(sl.deferred(nets.llama, seed=5))
        total, count = nets.next_token(plain, nets.tokens(0))
        (total / count).backward()
        assert torch.allclose(found["norm"], sl.grad_norm(plain.parameters()), rtol=1e-5)


PERCEPTRON = """
mesh m = dp:2 * tp:2
model p on m {{
  param up.weight   : [{up} d]
  param up.bias     : [{up}]
  param down.weight : [d {up}]
  param otherwise   : whole
  call root (x: [n/dp d]) -> [n/dp d]
  {more}
}}
"""
UNEVEN = PERCEPTRON.replace("  param up.bias     : [{up}]\n", "").replace("{up}", "f/~tp")
SUB_AXES = """
mesh m = dp:1 * tp:4
split m.tp = tp0:2 * tp1:2
let kv = 2, g = 2, k = 4
model llama on m {{
  param layers.*.attention.wq.weight      : [(kv/tp0 g/tp1 k) d]
  param layers.*.attention.{{wk,wv}}.weight : [(kv/tp0 k) d]
  param layers.*.attention.wo.weight      : [d (kv/tp0 g/tp1 k)]
  param otherwise                         : whole
  call root (tokens: [batch/dp seq]) -> [batch/dp seq vocab]
  {more}
}}
"""


def parts(text: str, build: str) -> tuple[dict[str, Tensor], int]:
    """All tensors, whole; and how many elements this rank stores of parameters."""
    program = sl.loads(text)
    model = program.apply(sl.deferred(getattr(nets, build), seed=9), program.mesh("m").device_mesh("cpu"))
    sl.materialize(model)
    stored = sum(p.to_local().numel() for p in model.parameters())
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return {n: sl.reshard(t.detach(), "whole").to_local() for n, t in tensors}, stored


@pytest.mark.parametrize("more", ["", "fsdp root over dp"])
@pytest.mark.parametrize(
    ("text", "build"),
    [(PERCEPTRON.replace("{up}", "f/tp"), "perceptron"), (UNEVEN, "Uneven"), (SUB_AXES, "llama")],
)
def test_every_kind_of_parameter_has_its_values_by_seed(world: World, text: str, build: str, more: str) -> None:
    """Scalars, integers, empty ones, buffers; sizes that do not divide; heads fewer than ranks."""
    plain = sl.materialize(sl.deferred(getattr(nets, build), seed=9))
    right = {n: t.detach() for n, t in [*plain.named_parameters(), *plain.named_buffers()]}
    numel = sum(p.numel() for p in plain.parameters())
    for found, stored in world.run(parts, text.format(more=more), build):
        assert found.keys() == right.keys()
        assert all(torch.equal(found[n], right[n]) and found[n].dtype == right[n].dtype for n in right)
        assert stored < numel
