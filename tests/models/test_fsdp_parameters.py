"""Parameters of every kind in a group, against ``fully_shard`` written by hand: the same collectives, the same bits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import torch.distributed as dist
from attrs import frozen
from torch import Tensor, nn
from torch.distributed.fsdp import DataParallelMeshDims, FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.experimental import implicit_replication

import shardlang as sl
from shardlang.lower.placements import mesh_of
from shardlang.lower.torch_private import strided_shard
from shardlang.runtime.observe import Observer
from shardlang.runtime.record import Issued, Recorder
from tests.world import World

DIM, BATCH = 12, 8


class Net(nn.Module):
    """Two layers; ``scaled``: with a scalar behind them; ``tied``: of one weight."""

    def __init__(self, scaled: bool = False, tied: bool = False, width: int = DIM, bias: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(DIM, DIM, bias)
        self.last = nn.Linear(DIM, width, bias)
        self.scale = nn.Parameter(torch.tensor(1.5)) if scaled else None
        if tied:
            self.last.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        y = self.last(torch.tanh(self.first(x)))
        return y if self.scale is None else y * self.scale


@frozen
class Case:
    """What a file says of the model on ``mesh``, and what a careful user of torch writes for it."""

    lines: str
    build: Callable[[], Net] = Net
    mesh: str = "dp:4"
    over_tp: Mapping[str, Placement] = {}
    """How a parameter is cut over ``tp``, where it is."""
    frozen: tuple[str, ...] = ()
    dims: Mapping[str, int] = {}
    """What ``shard_placement_fn`` says, where not 0."""


CASES = {
    "all trained": Case("fsdp root over dp"),
    "a frozen layer": Case("freeze first.**\n  fsdp root over dp", frozen=("first.weight", "first.bias")),
    "one weight under two names": Case("fsdp root over dp", build=lambda: Net(tied=True)),
    "a scalar, which is left out": Case("fsdp root over dp", build=lambda: Net(scaled=True)),
    "a fused weight, in parts along dim 1": Case(
        "param first.weight : [(3 2/tp 2) d]\n  fsdp root over dp",
        build=lambda: Net(bias=False),  # by hand, torch gives the bias of a strided product its gradient twice
        mesh="dp:2 * tp:2",
        over_tp={"first.weight": strided_shard(0, 3)},
        dims={"first.weight": 1},
    ),
    "an uneven weight, in parts along dim 1": Case(
        "param last.weight : [o/~tp d]\n  fsdp root over dp",
        build=lambda: Net(width=7, bias=False),
        mesh="dp:2 * tp:2",
        over_tp={"last.weight": Shard(0)},
        dims={"last.weight": 1},
    ),
}


def by_hand(case: Case, mesh: Any) -> nn.Module:
    """All in one group, but for a scalar, which ``fully_shard`` does not take."""
    model = case.build()
    made: dict[nn.Parameter, nn.Parameter] = {}
    for name, parameter in list(model.named_parameters(remove_duplicate=False)):
        if parameter not in made:
            where = [Replicate(), case.over_tp.get(name, Replicate())][: mesh.ndim]
            whole = distribute_tensor(parameter.detach(), mesh, where, src_data_rank=None)
            made[parameter] = nn.Parameter(whole, requires_grad=name not in case.frozen)
        owner, _, last = name.rpartition(".")
        setattr(model.get_submodule(owner), last, made[parameter])
    dims = {model.get_parameter(name): dim for name, dim in case.dims.items()}
    fully_shard(
        model,
        mesh=mesh,
        dp_mesh_dims=DataParallelMeshDims(shard="dp"),
        reshard_after_forward=True,
        shard_placement_fn=lambda p: Shard(dims.get(p, 0)),
        ignored_params=None if model.scale is None else {model.scale},
    )
    assert isinstance(model, FSDPModule)
    model.set_gradient_divide_factor(1.0)
    model.set_force_sum_reduction_for_comms(True)

    def add_up(p: Any) -> None:
        p.grad = p.grad.redistribute(placements=p.placements)

    if model.scale is not None:
        model.scale.register_post_accumulate_grad_hook(add_up)
    whole = [Shard(0), Replicate()][: mesh.ndim]
    model.register_forward_hook(lambda _, args, out: out.redistribute(placements=whole))
    return model


def trained(model: nn.Module, mesh: Any) -> tuple[list[Tensor], list[Issued], list[str]]:
    """Two steps: gradients and weights as stored; what the second sent over dp, in order; how parameters are stored."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    kept: list[Any] = []
    issued: list[Issued] = []
    placements = [Shard(0), Replicate()][: mesh.ndim]
    for step in range(2):
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(BATCH, DIM, generator=generator)
        x = x.chunk(mesh["dp"].size())[mesh["dp"].get_local_rank()]
        with Recorder() as recorder, Observer(mesh_of(mesh), dist.get_rank()), implicit_replication():
            out = model(DTensor.from_local(x, mesh, placements, run_check=False))
            (out.square().sum() / BATCH).backward()
        issued = [i for i in recorder.issued if "dp" in i.axes]  # the boundary over tp is ours, by another plan
        kept += [p.grad.clone() for p in model.parameters() if p.grad is not None]
        optimizer.step()
        optimizer.zero_grad()
    parameters: list[tuple[str, Any]] = list(model.named_parameters())
    kept += [p.detach() for _, p in parameters]
    return [t.to_local() for t in kept], issued, [f"{n} {p.placements} {p.requires_grad}" for n, p in parameters]


TEXT = """
mesh m = {mesh}
model p on m {{
  param otherwise : whole
  call root (x: [n/dp d]) -> [n/dp _] eager
  {lines}
}}
"""


def both(name: str) -> tuple[bool, Any, Any]:
    case = CASES[name]
    program = sl.loads(TEXT.format(mesh=case.mesh, lines=case.lines))
    mesh = program.mesh("m").device_mesh("cpu")
    ours, sent, placed = trained(program.apply(case.build(), mesh), mesh)
    theirs, theirs_sent, theirs_placed = trained(by_hand(case, mesh), mesh)
    same = all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    return same, (sent, placed), (theirs_sent, theirs_placed)


@pytest.mark.parametrize("name", CASES)
def test_a_group_is_what_fully_shard_makes_of_it_by_hand(world: World, name: str) -> None:
    for same, ours, theirs in world.run(both, name):
        assert ours == theirs
        assert same
