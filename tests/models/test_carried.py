"""Placements under which DTensors carry parameters: torch reads them right or not at all, and we know them again."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attrs import evolve
from hypothesis import given
from torch.distributed.tensor import Replicate

from shardlang import testing
from shardlang.layout import Cut, Dim, Factor, Layout
from shardlang.lower.model import on_leaves
from shardlang.lower.placements import carried, layout_of, placements_of
from shardlang.lower.torch_private import is_strided_shard, split_factor
from shardlang.mesh import Axis, Mesh

GRID = Mesh("m", (Axis("dp", 2), Axis("tp", 2)))
FLAT = testing.meshes().map(on_leaves)


def torchs_block(layout: Layout, placements: tuple[Any, ...], rank: int) -> torch.Tensor:
    """The block of a rank as torch cuts it: one mesh dim after the other."""
    block = torch.arange(layout.numel).reshape(layout.shape)
    for axis, placement in zip(layout.mesh.axes, placements, strict=True):
        if not isinstance(placement, Replicate):
            parts, _ = placement._split_tensor(block, axis.size, with_padding=False)
            block = parts[layout.mesh.coordinate(rank, axis.name)]
    return block


def our_block(layout: Layout, rank: int) -> torch.Tensor:
    block = torch.arange(layout.numel).reshape(layout.shape)
    for d, runs in enumerate(layout.runs(rank)):
        index = torch.tensor([i for a, b in runs for i in range(a, b)], dtype=torch.long)
        block = block.index_select(d, index)
    return block


@given(FLAT.flatmap(lambda mesh: testing.layouts(mesh, pending=False)))
def test_every_layout_is_known_again_and_torch_cuts_what_it_says(layout: Layout) -> None:
    placements = carried(layout)
    assert layout_of(layout.mesh, placements, layout.shape).equivalent(layout)
    if all(split_factor(p) > 0 for p in placements):
        for rank in layout.mesh.ranks:
            assert torch.equal(torchs_block(layout, placements, rank), our_block(layout, rank))


FUSED = Layout(GRID, (Dim((Factor(3), Factor(4, ("tp",)), Factor(5))), Dim((Factor(8),))))


def test_a_fused_weight_has_torchs_own_strided_placement() -> None:
    assert placements_of(FUSED) is None
    kept, cut = carried(FUSED)
    assert kept == Replicate()
    assert is_strided_shard(cut)
    assert split_factor(cut) == 3


def test_a_flat_cut_across_its_factors_has_a_number_that_torch_does_not_take() -> None:
    rows = evolve(FUSED.dims[0], flat=(Cut("dp", uneven=True),))
    layout = Layout(GRID, (rows, FUSED.dims[1]))
    placements = carried(layout)
    assert all(split_factor(p) < 0 for p in placements)
    with pytest.raises((AssertionError, RuntimeError)):
        torchs_block(layout, placements, 0)
