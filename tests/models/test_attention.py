"""Attention of blocks, however queries, keys and values are split, with the gradients of one device."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.nn import functional as F

from shardlang.runtime.global_view import global_view
from shardlang.runtime.loss import whole_value
from tests.world import World, torch_mesh

ROWS, HEADS, SEQ, CHANNELS = 4, 4, 3, 2


def numbers(*shape: int, seed: int) -> torch.Tensor:
    return torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(seed)).double() / 4


def attended(placements: list[list[Any]], key_heads: int, bias: tuple[int, int] | None) -> float:
    """The worst difference of result and gradients to one device."""
    mesh = torch_mesh((2, 2), ("a", "b"))
    shapes = [(ROWS, HEADS, SEQ, CHANNELS), *[(ROWS, key_heads, SEQ, CHANNELS)] * 2]
    whole = [numbers(*shape, seed=i).requires_grad_() for i, shape in enumerate(shapes)]
    if bias is not None:
        whole.append(numbers(*bias, SEQ, SEQ, seed=9).requires_grad_())
    placed = [
        distribute_tensor(x.detach(), mesh, p).requires_grad_()
        for x, p in zip(whole, [*placements, [Replicate(), Replicate()]], strict=False)
    ]
    with global_view():
        made = F.scaled_dot_product_attention(*placed, enable_gqa=True)
        (made * made).sum().backward()
    right = F.scaled_dot_product_attention(*whole, enable_gqa=True)
    (right * right).sum().backward()
    pairs = [(made, right), *[(p.grad, w.grad) for p, w in zip(placed, whole, strict=True)]]
    return max(float((whole_value(ours) - theirs.detach()).abs().max()) for ours, theirs in pairs)


def every_way() -> float:
    """All ways to split the three over one axis, the other having rows."""
    ways = [Replicate(), Shard(0), Shard(1)]
    return max(attended([[Shard(0), way] for way in each], HEADS, None) for each in itertools.product(ways, repeat=3))


def test_queries_keys_and_values_may_be_split_in_any_ways(world: World) -> None:
    assert max(world.run(every_way)) < 1e-12


def test_fewer_key_heads_than_ranks_are_shared(world: World) -> None:
    split = [[Shard(1), Shard(1)], [Shard(1), Replicate()], [Shard(1), Replicate()]]
    assert max(world.run(attended, split, 2, None)) < 1e-12


def learned(placement: Any) -> float:
    return max(attended([placement] * 3, HEADS, bias) for bias in ((1, HEADS), (ROWS, 1), (1, 1), (ROWS, HEADS)))


def test_a_learned_bias_has_its_gradient_from_all_rows_and_heads(world: World) -> None:
    for placement in ([Shard(0), Shard(1)], [Shard(0), Shard(0)], [Replicate(), Shard(1)]):
        assert max(world.run(learned, placement)) < 1e-12


def owed() -> float:
    """Parts of a value are added up before it is attended to."""
    mesh = torch_mesh((2, 2), ("a", "b"))
    query, key, value = (numbers(ROWS, HEADS, SEQ, CHANNELS, seed=i) for i in range(3))
    q, k = (distribute_tensor(x, mesh, [Replicate(), Shard(1)]) for x in (query, key))
    v = DTensor.from_local(value / 2, mesh, [Partial(), Replicate()], run_check=False)
    with global_view():
        made = F.scaled_dot_product_attention(q, k, v)
    return float((whole_value(made) - F.scaled_dot_product_attention(query, key, value)).abs().max())


def test_what_is_owed_is_added_up_first(world: World) -> None:
    assert max(world.run(owed)) < 1e-12


def viewed(query: list[Any], rest: list[Any]) -> float:
    """Heads made of channels by a view and a transposition, whose gradient goes the same way back."""
    mesh = torch_mesh((2, 2), ("a", "b"))
    whole = [numbers(ROWS, SEQ, HEADS * CHANNELS, seed=i).requires_grad_() for i in range(3)]
    bias = numbers(1, HEADS, SEQ, SEQ, seed=9).requires_grad_()
    ways = [query, rest, rest]
    placed = [distribute_tensor(x.detach(), mesh, w).requires_grad_() for x, w in zip(whole, ways, strict=True)]
    split = distribute_tensor(bias.detach(), mesh, [Replicate(), Shard(1)]).requires_grad_()

    def total(each: list[torch.Tensor], mask: torch.Tensor) -> torch.Tensor:
        query, key, value = (x.view(ROWS, SEQ, HEADS, CHANNELS).transpose(1, 2) for x in each)
        made = F.scaled_dot_product_attention(query, key, value, mask)
        return (made * made).sum()

    with global_view():
        total(placed, split).backward()
    total(whole, bias).backward()
    pairs = zip([*placed, split], [*whole, bias], strict=True)
    return max(float((whole_value(p.grad) - w.grad).abs().max()) for p, w in pairs)


def test_gradients_go_back_through_the_views_that_made_heads(world: World) -> None:
    whole, heads, rows = [Shard(0), Replicate()], [Shard(0), Shard(2)], [Shard(0), Shard(0)]
    for query, rest in [(heads, heads), (whole, heads), (heads, whole), (rows, heads), (heads, rows)]:
        assert max(world.run(viewed, query, rest)) < 1e-12
