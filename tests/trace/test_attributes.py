"""Plain tensors that modules keep as attributes are whole, and looked up at every call."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import shardlang as sl
from shardlang.runtime.loss import whole_value
from tests.models.law import train_beside
from tests.models.nets import DIM, squares, vectors
from tests.world import World

TEXT = """
mesh m = dp:2 * tp:2
model net on m {
  param inner.up.weight   : [f/tp d]
  param inner.down.weight : [d f/tp]
  param otherwise         : whole
  call root (x: [n/dp d]) -> [n/dp d]
  LINES
}
"""


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(DIM, 32, bias=False), nn.Linear(32, DIM, bias=False)
        self.scale = torch.arange(1.0, 33.0) / 32
        self.tables = [torch.full((DIM,), 0.5), torch.arange(float(DIM))]
        self.named = {"shift": torch.ones(DIM)}

    def forward(self, x: Tensor) -> Tensor:
        y = self.down(self.up(x).relu() * self.scale)
        return y * self.tables[0] + self.tables[1] * 0.1 + self.named["shift"]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()
        self.offset = torch.arange(float(DIM))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x + self.offset * 0.01)


def test_a_model_with_plain_tensors_trains_as_on_one_device(world: World) -> None:
    for lines in ("", "call inner (x: [n/dp d]) -> [n/dp d]\n  fsdp inner over dp\n  fsdp root over dp"):
        found = world.run(train_beside, TEXT.replace("LINES", lines), Net, vectors, squares, 2)
        assert all(o.holds() for o in found)


def changed() -> list[bool]:
    program = sl.loads(TEXT.replace("LINES", ""))
    torch.manual_seed(0)
    plain = Net()
    torch.manual_seed(0)
    placed = program.apply(Net(), program.mesh("m").device_mesh("cpu"))
    whole = vectors(0)["x"]
    part = whole.chunk(2)[torch.distributed.get_rank() // 2]
    same = [bool(torch.allclose(whole_value(placed(part)), plain(whole), atol=1e-5))]
    for model in (plain, placed):
        model.offset = torch.full((DIM,), 7.0)
        model.inner.tables[0] = torch.full((DIM,), 3.0)
        model.inner.named["shift"].mul_(2)
    same.append(bool(torch.allclose(whole_value(placed(part)), plain(whole), atol=1e-5)))
    return same


def test_a_tensor_put_there_later_counts(world: World) -> None:
    assert world.run(changed) == [[True, True]] * 4
