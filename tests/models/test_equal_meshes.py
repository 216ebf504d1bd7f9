"""Two device meshes may be equal and yet two."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard

import shardlang as sl
from tests.world import World, torch_mesh

TEXT = """mesh pod = dp:2 * tp:2
model net on pod {
  param weight : [f/tp d]
  param otherwise : whole
  call root (input: [n/dp d]) -> [n/dp f/tp]
  fsdp root over dp
}
"""


def grouped_after_another_mesh() -> tuple[bool, bool]:
    other = torch_mesh((2, 2), ("dp", "tp"))
    mine = sl.loads(TEXT).mesh("pod").device_mesh("cpu")
    net = nn.Linear(6, 4, bias=False)
    # Torch remembers what a parameter of this form, on the other mesh, was detached to.
    nn.Parameter(DTensor.from_local(torch.zeros(2, 6), other, [Replicate(), Shard(0)], run_check=False))
    placed = sl.loads(TEXT).apply(net, mine)
    return other == mine and other is not mine, bool(torch.isfinite(placed(torch.ones(2, 6)).to_local()).all())


def test_a_model_is_placed_on_a_mesh_that_equals_an_earlier_one(world: World) -> None:
    assert world.run(grouped_after_another_mesh) == [(True, True)] * 4
