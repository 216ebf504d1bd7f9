"""Both back ends carry out the same step alike: every kind, dtype and shape."""

from __future__ import annotations

import pytest
import torch

from shardlang.layout import Layout
from shardlang.plan.plan import Plan
from tests.runtime.transitions import (
    LINE,
    SQUARE,
    check_against_simulator,
    layout,
    plan_of,
    run_blocks_apart,
    value_of,
)
from tests.world import World

DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
    torch.complex64, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
]  # fmt: skip


def classics(shape: tuple[int, ...]) -> list[Plan]:
    """The five classic transitions over four ranks, and their kin on two axes."""

    def line(cuts: dict[int, str] | None = None, **owed: str) -> Layout:
        return layout(LINE, shape, cuts, **owed)

    def square(cuts: dict[int, str] | None = None, **owed: str) -> Layout:
        return layout(SQUARE, shape, cuts, **owed)

    whole, rows, columns, owed = line(), line({0: "r"}), line({1: "r"}), line(r="sum")
    return [
        plan_of("all_gather", "r", rows, whole),
        plan_of("all_gather", "r", columns, whole),
        plan_of("all_to_all", "r", rows, columns),
        plan_of("all_to_all", "r", columns, rows),
        plan_of("slice", "r", whole, rows),
        plan_of("slice", "r", whole, columns),
        plan_of("all_reduce", "r", owed, whole, op="sum"),
        plan_of("reduce_scatter", "r", owed, rows, op="sum"),
        plan_of("reduce_scatter", "r", owed, columns, op="sum"),
        plan_of("all_gather", "b", square({0: "ab"}), square({0: "a"})),
        plan_of("all_gather", "ab", square({0: "a", 1: "b"}), square()),
        plan_of("all_gather", "ab", square({1: "ba"}), square()),
        plan_of("all_to_all", "a", square({0: "a"}), square({1: "a"})),
        plan_of("all_to_all", "ab", square({0: "ab"}), square({1: "ab"})),
        plan_of("permute", "ab", square({0: "a", 1: "b"}), square({0: "b", 1: "a"})),
        plan_of("exchange", "ab", square({0: "b"}), square({0: "a"})),
        plan_of("exchange", "ab", square({0: "b"}, a="sum"), square({1: "ab"}), op="sum"),
        plan_of("reduce_scatter", "a", square({0: "b"}, a="sum"), square({0: "ba"}), op="sum"),
        plan_of("all_reduce", "a", square({1: "b"}, a="sum"), square({1: "b"}), op="sum"),
        plan_of("reduce_scatter", "a", square(a="sum", b="sum"), square({0: "a"}, b="sum"), op="sum"),
        plan_of("mask", "ab", square({0: "a"}), square(a="sum", b="sum"), op="sum"),
        plan_of("mask", "a", square({0: "a", 1: "b"}), square({1: "b"}, a="max"), op="max"),
    ]


@pytest.mark.parametrize("shape", [(8, 8), (5, 3), (1, 7), (0, 4), (64, 48)])
def test_every_kind_of_step_gives_what_the_simulator_gives(world: World, shape: tuple[int, ...]) -> None:
    plans = classics(shape)
    check_against_simulator(world, plans, [value_of(shape) for _ in plans])


@pytest.mark.parametrize("shape", [(8, 8), (5, 3), (1, 7)])
def test_large_pieces_that_go_by_themselves_arrive_too(world: World, shape: tuple[int, ...]) -> None:
    plans = classics(shape)
    check_against_simulator(world, plans, [value_of(shape) for _ in plans], body=run_blocks_apart)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_moves(world: World, dtype: torch.dtype) -> None:
    plans = [p for s in ((8, 8), (5, 3)) for p in classics(s) if not p.source.owed() and not p.target.owed()]
    check_against_simulator(world, plans, [value_of(p.source.shape, dtype) for p in plans])


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d not in (torch.bool, torch.uint8)], ids=str)
def test_every_dtype_is_summed(world: World, dtype: torch.dtype) -> None:
    plans = [p for s in ((8, 8), (5, 3)) for p in classics(s) if p.source.owed()]
    small = [(value_of(p.source.shape) % 3).to(dtype) for p in plans]
    check_against_simulator(world, plans, small, seed=None)


@pytest.mark.parametrize("op", ["avg", "max", "min"])
def test_other_reductions(world: World, op: str) -> None:
    plans = []
    for shape in ((8, 8), (5, 3), (256, 260)):
        owed, whole, rows = layout(SQUARE, shape, a=op, b=op), layout(SQUARE, shape), layout(SQUARE, shape, {0: "ab"})
        plans += [plan_of("all_reduce", "ab", owed, whole, op=op), plan_of("reduce_scatter", "ab", owed, rows, op=op)]
    check_against_simulator(world, plans, [value_of(p.source.shape) for p in plans])
