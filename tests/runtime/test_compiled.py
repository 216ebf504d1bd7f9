"""``sl.reshard`` inside torch.compile: no graph break, the same values and gradients."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import shardlang as sl
from tests.world import World, torch_mesh


def step(x: Any) -> Any:
    y = sl.reshard(x * 2, "[n d/b]")
    return sl.reshard(y * y, "[n/a d]")


def compiled() -> tuple[bool, ...]:
    mesh = torch_mesh((2, 2), ("a", "b"))
    value = torch.arange(48.0).view(8, 6)
    results = []
    for function in (step, torch.compile(step, fullgraph=True, backend="aot_eager")):
        x = distribute_tensor(value, mesh, [Shard(0), Shard(0)]).requires_grad_()
        y = function(x)
        (y * y).sum().full_tensor().backward()
        results.append((y, x.grad))
    (y, grad), (fast, fast_grad) = results
    return (
        type(fast) is DTensor and list(fast.placements) == [Shard(0), Replicate()] == list(y.placements),
        torch.equal(fast.full_tensor(), 4 * value**2),
        torch.equal(fast_grad.full_tensor(), grad.full_tensor()),
        torch.equal(grad.full_tensor(), 64 * value**3),
    )


def test_a_reshard_is_one_operator_of_a_compiled_graph(world: World) -> None:
    assert world.run(compiled, timeout=120) == [(True,) * 4] * 4


def blocks(x: torch.Tensor) -> torch.Tensor:
    return sl.reshard(x * 2, "[n d] grad [n d]", torch_mesh((2, 2), ("a", "b")), source="[n/a/b d]") * 3


def compiled_blocks() -> tuple[bool, ...]:
    torch_mesh((2, 2), ("a", "b"))
    value = torch.arange(48.0).view(8, 6)
    x = value.chunk(4)[dist.get_rank()].clone().requires_grad_()
    y = torch.compile(blocks, fullgraph=True, backend="aot_eager")(x)
    (y * value).sum().backward()
    assert x.grad is not None
    return torch.equal(y, 6 * value), torch.equal(x.grad, 6 * value.chunk(4)[dist.get_rank()])


def test_bare_blocks_are_resharded_in_a_compiled_graph_too(world: World) -> None:
    assert world.run(compiled_blocks, timeout=120) == [(True, True)] * 4
