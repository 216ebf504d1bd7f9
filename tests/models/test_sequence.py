"""The chapter on long sequences: its recipe trains as one device does, and sends what its table says."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

import shardlang as sl
from examples.llama.model import Llama, loss
from shardlang.check.model import check_model
from shardlang.diagnostics.explanations import fences
from shardlang.lower.facts import facts_of
from shardlang.runtime.step_plan import plan_step
from tests.models import nets
from tests.models.law import train_beside
from tests.spec.examples import SPEC
from tests.world import World, torch_mesh

CHAPTER = (SPEC / "sequence.md").read_text(encoding="utf-8")
RECIPE = next(f.text for f in fences(CHAPTER) if f.language == "shard")
WITHOUT = RECIPE.replace("seq/tp d]", "seq d]")


def net(layers: int) -> nn.Module:
    return Llama(nets.VOCAB, nets.DIM, 32, layers, 4, 2, nets.SEQ)


@pytest.mark.parametrize("text", [RECIPE, WITHOUT], ids=["split", "not split"])
def test_the_recipe_trains_as_one_device(world: World, text: str) -> None:
    for found in world.run(train_beside, text, nets.llama, nets.tokens, nets.next_token):
        assert found.holds()


def gradients_of_norms(text: str) -> dict[str, tuple[Tensor, str]]:
    """After a backward pass: the whole gradient of each norm, and how it came out of autograd, before FSDP took it."""
    program = sl.loads(text)
    torch.manual_seed(0)
    model = program.apply(nets.llama(), program.mesh("m").device_mesh("cpu"))
    came: dict[str, str] = {}
    for name, module in model.named_modules():
        if name.endswith("norm"):
            module.register_forward_pre_hook(partial(_watch, came, name))
    with sl.global_view():
        total, count = nets.next_token(model, sl.place(model, nets.tokens(0)))
        sl.global_mean(total, count).backward()
    norms = {n: p.grad for n, p in model.named_parameters() if "norm" in n}
    return {n: (g.full_tensor(), came[n.removesuffix(".weight")]) for n, g in norms.items() if isinstance(g, DTensor)}


def _watch(came: dict[str, str], name: str, module: nn.Module, _: Any) -> None:
    def note(grad: Tensor) -> None:
        came[name] = str(grad.placements) if isinstance(grad, DTensor) else "plain"

    module.weight.register_hook(note)


def test_a_norms_gradient_comes_in_parts_over_both_axes_and_is_that_of_one_device(world: World) -> None:
    torch.manual_seed(0)
    plain = nets.llama()
    total, count = nets.next_token(plain, nets.tokens(0))
    (total / count).backward()
    right = {n: p.grad for n, p in plain.named_parameters() if "norm" in n}
    for found in world.run(gradients_of_norms, RECIPE):
        assert set(found) == set(right)
        for name, (gradient, came) in found.items():
            assert torch.allclose(gradient, right[name], rtol=1e-5, atol=1e-7)
            assert came == "(Partial(sum), Partial(sum))", name
    for found in world.run(gradients_of_norms, WITHOUT):
        # A whole sequence on every rank of tp: there the gradient is whole, too.
        assert {came for _, came in found.values()} == {"(Partial(sum), Replicate())"}


@pytest.mark.parametrize("layers", [1, 2, 5])
def test_a_step_sends_what_the_table_says(layers: int) -> None:
    layouts = check_model(sl.loads(RECIPE).declared_model(), facts_of(net(layers)))
    planned = plan_step(layouts, lambda: net(layers), nets.tokens, loss).collectives
    section = CHAPTER.partition("**What is sent**")[2].partition("**Turning")[0]
    told: dict[tuple[str, tuple[str, ...]], int] = {}
    for kind, axes, often in re.findall(r"^\| (\w+) \| ([\w/]+) \| ([^|]+) \|", section, re.MULTILINE):
        if kind != "kind":
            count = eval(re.sub(r"(\d)L", r"\1*L", often), {"L": layers})
            told[kind, tuple(axes.split("/"))] = told.get((kind, tuple(axes.split("/"))), 0) + count
    assert {(t.kind, t.axes): t.count for t in planned} == told


def attended(way: str) -> tuple[bool, list[bool]]:
    """A function of the chapter on real ranks: are its value and gradients those of one device?"""
    mesh = torch_mesh((4,), ("cp",))
    text = next(f.text for f in fences(CHAPTER) if f.language == "python" and way in f.text)
    space: dict[str, Any] = {"sl": sl, "F": F, "torch": torch, "mesh": mesh}
    exec(compile(text, f"<chapter, {way}>", "exec"), space)
    generator = torch.Generator().manual_seed(1)
    whole = [torch.randn(2, 8, 12, 4, generator=generator, dtype=torch.float64) for _ in range(3)]
    plain = [t.clone().requires_grad_() for t in whole]
    split = [sl.distribute(t, "[b h s/cp k]", mesh).detach().requires_grad_() for t in whole]
    weight = torch.randn(2, 8, 12, 4, generator=generator, dtype=torch.float64)
    right = F.scaled_dot_product_attention(*plain, is_causal=True)
    (right * weight).sum().backward()
    made = space["attention"](*split)
    (made * sl.distribute(weight, "[b h s/cp k]", mesh)).sum().backward()
    same = [torch.allclose(a.grad.full_tensor(), b.grad) for a, b in zip(split, plain, strict=True)]
    return torch.allclose(made.full_tensor(), right), same


@pytest.mark.parametrize("way", ["h/cp s k", "attn_mask"])
def test_attention_over_a_split_sequence_is_that_of_one_device(world: World, way: str) -> None:
    for value, gradients in world.run(attended, way):
        assert value
        assert gradients == [True] * 3
