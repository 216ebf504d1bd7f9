"""The oracle itself: blocks by hand, steps by hand, and steps that must be refused."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch

from shardlang.layout import Cut, Dim, Factor, Layout, Pending
from shardlang.mesh import Axis, Mesh
from shardlang.plan.steps import Step
from shardlang.runtime.simulate import SimulationError, assemble, run_step, shard

MESH = Mesh("m", (Axis("a", 2), Axis("b", 2)))


def flat(size: int, *axes: str) -> Dim:
    return Dim((Factor(size),), tuple(Cut(a, uneven=True) for a in axes))


def layout(*dims: Dim, pending: tuple[Pending, ...] = ()) -> Layout:
    return Layout(MESH, dims, pending)


def test_blocks_are_those_of_nested_chunk() -> None:
    value = torch.arange(15).view(5, 3)
    blocks = shard(value, layout(flat(5, "a", "b"), flat(3)))
    nested = [part for half in value.chunk(2) for part in half.chunk(2)]
    assert all(torch.equal(blocks[r], nested[r]) for r in range(4))
    blocks = shard(value, layout(flat(5, "b", "a"), flat(3)))
    assert [blocks[r].tolist() for r in range(4)] == [nested[r].tolist() for r in (0, 2, 1, 3)]


def test_seven_rows_over_three_ranks_are_three_three_one() -> None:
    mesh = Mesh("m", (Axis("a", 3),))
    blocks = shard(torch.arange(7), Layout(mesh, (flat(7, "a"),)))
    assert [b.tolist() for b in blocks.values()] == [[0, 1, 2], [3, 4, 5], [6]]


def test_a_fused_weight_gives_each_rank_its_own_heads() -> None:
    dim = Dim((Factor(3), Factor(4, ("a",)), Factor(2)))
    blocks = shard(torch.arange(24), layout(dim))
    assert blocks[0].tolist() == [0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19]


@pytest.mark.parametrize("ops", [("sum", None), ("avg", "sum"), ("max", "max"), ("min", None)])
def test_random_parts_reduce_to_the_value(ops: tuple[str, str | None]) -> None:
    pending = tuple(Pending(a, op) for a, op in zip("ab", ops, strict=True) if op)  # type: ignore[arg-type]
    here = layout(flat(5), flat(3), pending=pending)
    value = torch.arange(15.0).view(5, 3)
    assert torch.equal(assemble(shard(value, here, seed=1), here), value)
    assert torch.equal(assemble(shard(value, here), here), value)


def test_a_gather_brings_the_blocks_together() -> None:
    value = torch.arange(15).view(5, 3)
    source, target = layout(flat(5, "a", "b"), flat(3)), layout(flat(5, "a"), flat(3))
    after = run_step(Step("all_gather", ("b",), source, target), shard(value, source))
    assert torch.equal(after[2], value[3:])


def test_a_step_hears_only_its_group() -> None:
    value = torch.arange(15).view(5, 3)
    source, target = layout(flat(5, "a", "b"), flat(3)), layout(flat(5), flat(3))
    with pytest.raises(SimulationError, match="not to be had"):
        run_step(Step("all_gather", ("b",), source, target), shard(value, source))
    with pytest.raises(SimulationError, match="not to be had"):
        run_step(Step("slice", (), source, target), shard(value, source))


def test_copies_that_differ_are_found() -> None:
    source = layout(flat(4, "a"))
    blocks = shard(torch.arange(4), source)
    blocks[1] = blocks[1] + 1
    with pytest.raises(SimulationError, match="differ"):
        assemble(blocks, source)


@pytest.mark.parametrize("op", ["sum", "avg", "max", "min"])
def test_a_mask_of_split_and_whole_axes_keeps_the_value(op: str) -> None:
    value = torch.arange(-5.0, 10.0).view(5, 3)
    source = layout(flat(5, "a"), flat(3))
    target = layout(flat(5), flat(3), pending=(Pending("a", op), Pending("b", op)))  # type: ignore[arg-type]
    after = run_step(Step("mask", ("a", "b"), source, target, op=op), shard(value, source))  # type: ignore[arg-type]
    assert torch.equal(assemble(after, target), value)


def test_scale_turns_an_average_into_a_sum() -> None:
    value = torch.arange(6.0)
    source = layout(flat(6), pending=(Pending("a", "avg"),))
    target = layout(flat(6), pending=(Pending("a", "sum"),))
    step = Step("scale", ("a",), source, target, scale=Fraction(1, 2))
    assert torch.equal(assemble(run_step(step, shard(value, source, seed=3)), target), value)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.bfloat16, torch.float8_e4m3fn, torch.complex64])
def test_blocks_of_any_dtype_come_together_again(dtype: torch.dtype) -> None:
    value = torch.arange(12).view(4, 3).to(dtype)
    here = layout(flat(4, "b", "a"), flat(3))
    again = assemble(shard(value, here), here)
    assert again.dtype == dtype
    assert torch.equal(again.view(torch.uint8), value.view(torch.uint8)) if dtype != torch.complex64 else True
