"""Random operators draw by seed and global index: the same on any mesh, however the tensors are split."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from shardlang.diagnostics import ShardlangError
from shardlang.runtime import lockstep, simulate
from tests.trace.oracle import layout, mesh_of, program, reals

X = reals(8, 6)
PROBABILITIES = (X / 8).sigmoid()


def drawn(function: Callable[..., Any], tensors: list[torch.Tensor], specs: list[str], mesh: str) -> list[torch.Tensor]:
    """The whole results, and the whole gradients of their weighted sum."""
    on = mesh_of(mesh)
    layouts = [layout(on, s, tuple(t.shape)) for s, t in zip(specs, tensors, strict=True)]
    made = program(function, tensors, layouts, on, auto=True)
    assert made.draws
    blocks = [simulate.shard(t, w) for t, w in zip(tensors, made.arguments, strict=True)]
    for parts in blocks:
        for block in parts.values():
            block.requires_grad_(block.is_floating_point())
    split = lockstep.run(made, on, blocks, seed=11)
    whole = [
        simulate.assemble({r: b.detach() for r, b in p.items()}, w) for p, w in zip(split, made.results, strict=True)
    ]
    heads, seeds = [], []
    for parts, result, w in zip(split, whole, made.results, strict=True):
        due = torch.arange(result.numel(), dtype=torch.float64).reshape(result.shape)
        weights = simulate.shard(due, w)
        flows = [r for r in on.ranks if parts[r].requires_grad]
        heads += [parts[r] for r in flows]
        seeds += [weights[r] for r in flows]
    if heads:
        torch.autograd.backward(heads, seeds)
        for parts, w in zip(blocks, made.gradients, strict=True):
            if all(b.grad is not None for b in parts.values()):
                whole.append(simulate.assemble({r: b.grad for r, b in parts.items() if b.grad is not None}, w))
    return whole


OPERATORS: dict[str, tuple[Callable[..., Any], list[torch.Tensor]]] = {
    "rand_like": (lambda x: x * torch.rand_like(x), [X]),
    "randn_like": (lambda x: x + torch.randn_like(x), [X]),
    "randint_like": (lambda x: x * torch.randint_like(x, 2, 9), [X]),
    "bernoulli": (lambda x: torch.bernoulli(x) + x, [PROBABILITIES]),
    "bernoulli p": (lambda x: torch.bernoulli(x, 0.25) * x, [X]),
    "in place": (lambda x: x * torch.empty_like(x).uniform_(2, 3) + torch.empty_like(x).normal_(1, 2), [X]),
    "bernoulli in place": (lambda x: x * torch.empty_like(x).bernoulli_(0.5), [X]),
    "from nothing": (lambda x: x * torch.rand(8, 6) + torch.randn(6) * torch.randint(2, 5, (8, 1)), [X]),
    "randperm": (lambda x: x + torch.randperm(6), [X]),
    "dropout": (lambda x: F.dropout(x * x, 0.3), [X]),
    "native": (lambda x: torch.native_dropout(x, 0.3, True)[0] * 2, [X]),
    "channels": (lambda x: F.dropout1d(x, 0.5), [X]),
}


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("spec", ["[a/tp b]", "[a b/tp]", "[a/dp b/tp]", "[a/~tp b]"])
def test_a_random_operator_gives_the_same_however_its_operand_is_split(name: str, spec: str) -> None:
    function, tensors = OPERATORS[name]
    alone = drawn(function, tensors, ["[a b]"], "tp:1")
    split = drawn(function, tensors, [spec], "dp:2 * tp:2")
    assert all(torch.allclose(a, b, rtol=1e-12, atol=1e-12) for a, b in zip(alone, split, strict=True))


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, dropout_p=0.4, is_causal=True, enable_gqa=True)


def test_attention_with_dropout_is_the_same_split_by_heads() -> None:
    tensors = [reals(2, 4, 3, 6), reals(2, 2, 3, 6), reals(2, 2, 3, 6, seed=1)]
    alone = drawn(attention, tensors, ["[b h s e]"] * 3, "tp:1")
    split = drawn(attention, tensors, ["[b/dp h/tp s e]"] * 3, "dp:2 * tp:2")
    assert len(alone) == 4
    assert all(torch.allclose(a, b, rtol=1e-12, atol=1e-12) for a, b in zip(alone, split, strict=True))


def test_attention_whose_dropout_keeps_all_is_attention() -> None:
    tensors = [reals(2, 4, 3, 6), reals(2, 2, 3, 6), reals(2, 2, 3, 6, seed=1)]

    def kept(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, dropout_p=1e-12, is_causal=True, enable_gqa=True)

    due = F.scaled_dot_product_attention(*tensors, is_causal=True, enable_gqa=True)
    assert torch.allclose(drawn(kept, tensors, ["[b h/tp s e]"] * 3, "tp:2")[0], due)


def test_numbers_are_of_their_distribution() -> None:
    x = torch.zeros(64, 64, dtype=torch.float64)

    def all_kinds(x: torch.Tensor) -> list[torch.Tensor]:
        return [
            torch.rand_like(x), torch.randn_like(x), torch.randint_like(x, 3, 7), torch.bernoulli(x, 0.25),
            F.dropout(x + 1, 0.4), torch.randperm(64),
        ]  # fmt: skip

    uniform, normal, integers, coins, kept, order = drawn(all_kinds, [x], ["[a/tp b]"], "tp:2")[:6]
    assert abs(uniform.mean() - 0.5) < 0.02
    assert (uniform.min() >= 0, uniform.max() < 1) == (True, True)
    assert abs(normal.mean()) < 0.05
    assert abs(normal.std() - 1) < 0.05
    assert integers.unique().tolist() == [3, 4, 5, 6]
    assert abs(coins.mean() - 0.25) < 0.02
    assert abs((kept == 0).double().mean() - 0.4) < 0.03
    assert torch.allclose(kept[kept != 0], torch.tensor(1 / 0.6, dtype=torch.float64))
    assert order.sort().values.tolist() == list(range(64))
    assert order.tolist() != list(range(64))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * torch.rand(8, 6, generator=torch.Generator()),
        lambda x: x + torch.multinomial(x.abs(), 6),
        lambda x: x.clone().exponential_(),
    ],
    ids=["generator", "multinomial", "exponential"],
)
def test_what_cannot_be_drawn_by_place_is_refused(function: Callable[..., Any]) -> None:
    with pytest.raises(ShardlangError) as caught:
        drawn(function, [X], ["[a/tp b]"], "tp:2")
    assert caught.value.codes == ("SL0519",)
