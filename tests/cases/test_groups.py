"""Process groups on a mesh of three axes: made once each, few, and none by flattening the user's mesh."""

from __future__ import annotations

from itertools import product

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import shardlang as sl
from shardlang.runtime import groups
from tests.world import World

SPECS = ["[n d]", "[n/a d]", "[n/c d/a]", "[n d/a/b/c]", "[n/b/c d]"]


def on_three_axes() -> tuple[int, int, bool, list[bool]]:
    """Every transition of five layouts, and sums over each axis: groups held, again the same, and the user's mesh."""
    mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("a", "b", "c"))
    groups.release()
    value = torch.arange(128.0).view(16, 8)
    right = []
    counts = []
    for _ in range(2):
        for start, end in product(SPECS, SPECS):
            moved = sl.reshard(sl.distribute(value, start, mesh), end)
            right.append(torch.equal(sl.reshard(moved, "[n d]").to_local(), value))
        for axes in ("a", "b", "c", "a/b", "a/c", "b/c", "a/b/c"):
            owed = sl.from_local(value, f"[n d]{{{', '.join('+' + a for a in axes.split('/'))}}}", mesh)
            right.append(torch.equal(sl.reshard(owed, "[n d]").to_local(), value * 2 ** len(axes.split("/"))))
        counts.append(groups.open_groups())
    dist.barrier()
    groups.release()
    return counts[0], counts[1], not any(_has(mesh, name) for name in ("a_b", "a_c", "b_c", "a_b_c")), right


def _has(mesh: DeviceMesh, name: str) -> bool:
    """Is there a mesh dim of this name, as a flattened one has that of its parts?"""
    try:
        mesh[name]
    except KeyError:
        return False
    return True


def test_three_axes_of_eight_ranks_need_a_group_for_each_set_of_axes_and_no_more() -> None:
    """Seven sets of axes, and one group for words: whatever is moved, a rank is in eight groups at most."""
    with World(8) as eight:
        answers = eight.run(on_three_axes, timeout=300)
    for first, again, unflattened, right in answers:
        assert all(right)
        assert 4 <= first == again <= 8
        assert unflattened
