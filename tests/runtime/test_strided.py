"""DTensors whose rows are interleaved (torch's ``_StridedShard``): read exactly as torch reads them, or not at all."""

from __future__ import annotations

import math
from collections import Counter
from itertools import product
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

import shardlang as sl
from shardlang.lower.placements import layout_of
from shardlang.mesh import Axis, Mesh
from tests.world import World, torch_mesh

MESHES = [(4,), (2, 2), (2, 3), (3, 2), (2, 2, 2)]
Rows = dict[int, list[int]]


def every() -> list[Any]:
    one = [Replicate(), Shard(0), *(_StridedShard(0, split_factor=f) for f in (2, 3, 4, 6))]
    return [(sizes, placed) for sizes in MESHES for placed in product(one, repeat=len(sizes))]


def as_torch_splits(sizes: tuple[int, ...], placed: tuple[Any, ...], rows: int) -> Rows:
    """The rows of each rank by torch's own splitting, one mesh dim after the other."""
    found = {}
    for rank, coordinate in enumerate(product(*map(range, sizes))):
        local = torch.arange(rows)
        for at, size, placement in zip(coordinate, sizes, placed, strict=True):
            if not isinstance(placement, Replicate):
                local = placement._split_tensor(local, size, with_padding=False, contiguous=False)[0][at]
        found[rank] = local.tolist()
    return found


def as_read(sizes: tuple[int, ...], placed: tuple[Any, ...], rows: int) -> Rows | None:
    """The rows of each rank by our layout; ``None`` where none says the placements."""
    mesh = Mesh("m", tuple(Axis(n, s) for n, s in zip("abc", sizes, strict=False)))
    try:
        layout = layout_of(mesh, placed, (rows,))
    except sl.ShardlangError as error:
        assert error.codes == ("SL0704",)  # noqa: PT017  # refusing is right where a layout cannot say it
        return None
    return {r: [i for a, b in layout.runs(r)[0] for i in range(a, b)] for r in mesh.ranks}


def test_interleaved_rows_are_read_as_torch_splits_them_or_refused() -> None:
    told: Counter[str] = Counter()
    for sizes, placed in every():
        factors = [p.split_factor for p in placed if isinstance(p, _StridedShard)]
        rows = 2 * math.prod(sizes) * math.prod(factors)
        ours = as_read(sizes, placed, rows)
        assert ours in (None, as_torch_splits(sizes, placed, rows)), (sizes, placed, rows)
        told["refused" if ours is None else "read"] += 1
        # One strided dim after which nothing but plain ones come can always be said.
        seen = [isinstance(p, _StridedShard) for p in placed if not isinstance(p, Replicate)]
        assert ours is not None or any(seen[1:]), (sizes, placed, rows)
    assert told == {"read": 221, "refused": 109}


def test_a_reading_that_is_not_torchs_has_blocks_of_other_sizes() -> None:
    """FSDP cuts uneven blocks of tensor parallelism otherwise than the placement by which it says so. Both come, and no
    size tells which where all agree, so they must not all agree."""
    differ = 0
    for sizes, placed in every():
        for rows in (5, 7, 13) if sizes in ((3, 2), (2, 2, 2)) else (7,):
            ours, theirs = as_read(sizes, placed, rows), as_torch_splits(sizes, placed, rows)
            if ours is not None and ours != theirs:
                differ += 1
                assert any(len(ours[r]) != len(theirs[r]) for r in ours), (sizes, placed, rows)
    assert differ


def interleaved() -> list[bool]:
    """A fused weight of three parts, as torch's own tensor parallelism hands it over, and cut once more across them."""
    mesh = torch_mesh((2, 2), ("a", "b"))
    value = torch.arange(48.0).view(24, 2)
    answers = []
    for placed in (
        [_StridedShard(0, split_factor=3), Replicate()],
        [_StridedShard(0, split_factor=3), Shard(0)],
        [_StridedShard(0, split_factor=6), Shard(1)],
    ):
        local = value
        for at, placement in zip(mesh.get_coordinate() or (), placed, strict=True):
            if not isinstance(placement, Replicate):
                local = placement._split_tensor(local, 2, with_padding=False, contiguous=True)[0][at]
        x = DTensor.from_local(local, mesh, placed, run_check=False, shape=value.shape, stride=value.stride())
        x.requires_grad_()
        whole = sl.reshard(x, "[n d]")
        rows = sl.reshard(x, "[n/b/a d]")
        (sl.reshard(x * 3, "[n d]").to_local() * value).sum().backward()
        answers += [
            torch.equal(whole.to_local(), value),
            torch.equal(rows.full_tensor(), value),
            torch.equal(sl.reshard(x.grad, "[n d]").to_local(), 3 * value),
        ]
    return answers


def test_interleaved_dtensors_are_resharded_with_their_gradients(world: World) -> None:
    assert world.run(interleaved) == [[True] * 9] * 4
