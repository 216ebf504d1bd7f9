"""What is stored of a tensor, and by whom: the owners' chunks of any layout tile the tensor exactly once."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from shardlang.layout import Dim, Factor, Layout
from shardlang.mesh import Axis, Mesh
from shardlang.runtime.chunks import (
    BoxIndex,
    Chunk,
    chunks_of,
    common,
    copies,
    copy_index,
    owned,
    split_chunk,
    writers,
)
from shardlang.runtime.simulate import shard
from tests.state.layouts import fused, layouts

GRID = Mesh("grid", (Axis("dp", 2), Axis("tp", 2)))


def numbered(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.arange(1, 1 + int(torch.tensor(shape).prod()) if shape else 2).reshape(shape)


@given(layouts(), st.data())
def test_owned_chunks_tile_the_tensor_exactly_once(layout: Layout, data: st.DataObject) -> None:
    writer = data.draw(st.integers(0, copies(layout) - 1))
    count = torch.zeros(layout.shape, dtype=torch.int64)
    for rank in layout.mesh.ranks:
        for chunk in owned(layout, rank, writer):
            count[tuple(slice(a, b) for a, b in chunk.box)] += 1
    assert bool((count == 1).all())


@given(layouts())
def test_the_chunks_of_a_rank_are_its_block(layout: Layout) -> None:
    whole = numbered(layout.shape)
    for rank, block in shard(whole, layout).items():
        rebuilt = torch.zeros_like(block)
        for chunk in chunks_of(layout, rank):
            rebuilt[chunk.place] = whole[tuple(slice(a, b) for a, b in chunk.box)]
        assert torch.equal(rebuilt, block)


@given(layouts())
def test_ranks_with_one_block_are_numbered_apart(layout: Layout) -> None:
    seen: dict[tuple[Chunk, ...], list[int]] = {}
    for rank in layout.mesh.ranks:
        seen.setdefault(chunks_of(layout, rank), []).append(copy_index(layout, rank))
    for block, indices in seen.items():
        if block:
            assert sorted(indices) == list(range(copies(layout)))


@given(layouts(), st.integers(1, 20))
def test_pieces_of_a_chunk_are_within_the_limit_and_make_it_up(layout: Layout, limit: int) -> None:
    whole = numbered(layout.shape)
    for chunk in chunks_of(layout, layout.mesh.first_rank):
        rebuilt = torch.zeros_like(whole)
        for piece in split_chunk(chunk, limit):
            assert piece.numel <= limit
            shifts = [x - y for x, y in zip(piece.offsets, chunk.offsets, strict=True)]
            assert shifts == [x - y for x, y in zip(piece.local, chunk.local, strict=True)]
            rebuilt[tuple(slice(a, b) for a, b in piece.box)] += whole[tuple(slice(a, b) for a, b in piece.box)]
        place = tuple(slice(a, b) for a, b in chunk.box)
        assert torch.equal(rebuilt[place], whole[place])


@given(st.data())
def test_an_index_of_boxes_finds_just_those_that_meet(data: st.DataObject) -> None:
    source = data.draw(layouts())
    target = data.draw(layouts(shape=source.shape))
    boxes = [c.box for r in source.mesh.ranks for c in owned(source, r, 0)]
    index = BoxIndex(boxes)
    for rank in target.mesh.ranks:
        for chunk in chunks_of(target, rank):
            met = {(i, common(box, chunk.box)) for i, box in enumerate(boxes) if common(box, chunk.box) is not None}
            assert set(index.meeting(chunk.box)) == met
            assert sum(Chunk(b, ()).numel for _, b in met if b is not None) == chunk.numel


def test_a_fused_weight_stored_in_parts_is_several_chunks() -> None:
    layout = fused(GRID, heads=4, width=2, columns=3, tp="tp", dp="dp")
    found = [[c.box[0] for c in chunks_of(layout, rank)] for rank in GRID.ranks]
    assert found == [[(0, 4), (8, 10)], [(4, 8), (12, 14)], [(10, 12), (16, 20)], [(14, 16), (20, 24)]]


def test_copies_share_the_writing_by_bytes() -> None:
    whole = [Layout(GRID, (Dim((Factor(n),)),)) for n in (8, 4, 3, 1)]
    chosen = writers({name: (layout, 4) for name, layout in zip("abcd", whole, strict=True)})
    assert chosen == {"a": 0, "b": 1, "c": 2, "d": 3}


def test_a_scalar_is_one_chunk_written_once() -> None:
    layout = Layout(GRID, ())
    assert chunks_of(layout, 3) == (Chunk((), ()),)
    assert sum(len(owned(layout, rank, 2)) for rank in GRID.ranks) == 1


def test_axes_of_one_name_on_two_meshes_are_told_apart() -> None:
    wide = Layout(Mesh("wide", (Axis("tp", 4),)), (Dim((Factor(64),)),))
    narrow = Layout(Mesh("narrow", (Axis("tp", 2),)), (Dim((Factor(8),)),))
    chosen = writers({f"{w}{i}": (layout, 4) for i in range(4) for w, layout in (("w", wide), ("n", narrow))})
    assert sorted(chosen[f"w{i}"] for i in range(4)) == [0, 1, 2, 3]
    assert sorted(chosen[f"n{i}"] for i in range(4)) == [0, 0, 1, 1]
