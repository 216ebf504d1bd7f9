"""Torch's optimizers on placed parameters, and one that needs whole matrices: the weights of one device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

import shardlang as sl
from examples.train.muon import Muon, orthogonal
from shardlang.runtime.loss import whole_value
from shardlang.runtime.record import Recorder
from tests.models import nets
from tests.models.test_law import GROUPS, llama
from tests.world import World

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adamw, fused": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
    "adamw, foreach": lambda p: torch.optim.AdamW(p, lr=1e-2, foreach=True),
    "sgd, momentum": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, nesterov=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-3),
}


def optimizers_of(model: nn.Module, name: str) -> list[torch.optim.Optimizer]:
    parameters = [p for p in model.parameters() if p.requires_grad]
    if name in OPTIMIZERS:
        return [OPTIMIZERS[name](parameters)]
    named = dict(model.named_parameters())
    matrices = [p for n, p in named.items() if p.dim() == 2 and n.startswith("layers.")]
    others = [p for n, p in named.items() if p.dim() != 2 or not n.startswith("layers.")]
    return [Muon(matrices, lr=0.02), torch.optim.AdamW(others, lr=1e-2)]


def trained(model: nn.Module, name: str, place: Callable[[Any], Any]) -> list[torch.optim.Optimizer]:
    optimizers = optimizers_of(model, name)
    for step in range(3):
        with sl.global_view():
            total, count = nets.next_token(model, place(nets.tokens(step)))
            sl.global_mean(total, count).backward() if place is not same else (total / count).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return optimizers


def same(batch: Any) -> Any:
    return batch


def both(name: str, text: str) -> tuple[float, float, int, int]:
    """The greatest difference of a weight to one device's and how far the weights went; of the state tensors of a
    parameter's shape, how many there are and how many do not lie as the parameter does."""
    program = sl.loads(text)
    torch.manual_seed(0)
    plain = nets.llama()
    before = {n: p.detach().clone() for n, p in plain.named_parameters()}
    trained(plain, name, same)
    torch.manual_seed(0)
    placed = program.apply(nets.llama(), program.mesh("m").device_mesh("cpu"))
    optimizers = trained(placed, name, lambda b: sl.place(placed, b))
    right = dict(plain.named_parameters())
    wrong = max(float((whole_value(p) - right[n].detach()).abs().max()) for n, p in placed.named_parameters())
    went = max(float((right[n].detach() - before[n]).abs().max()) for n in right)
    states = [
        (p, value)
        for optimizer in optimizers
        for p, state in optimizer.state.items()
        for value in state.values()
        if isinstance(value, Tensor) and value.shape == p.shape and value.dim()
    ]
    astray = [v for p, v in states if not lies_alike(p, v)]
    return wrong, went, len(states), len(astray)


def lies_alike(parameter: Tensor, value: Tensor) -> bool:
    assert isinstance(parameter, DTensor)
    alike = isinstance(value, DTensor) and value.placements == parameter.placements
    return alike and value.to_local().shape == parameter.to_local().shape


STATES = {"sgd, momentum": 1, "rmsprop": 1, "muon": 1}
"""How many tensors a parameter's state has, where they are not two."""


@pytest.mark.parametrize("name", [*OPTIMIZERS, "muon"])
@pytest.mark.parametrize("groups", [GROUPS, ""], ids=["fsdp", "tensor parallel"])
def test_an_optimizer_gives_the_weights_of_one_device(world: World, name: str, groups: str) -> None:
    count = len(list(nets.llama().parameters()))
    for wrong, went, states, astray in world.run(both, name, llama(groups=groups)):
        assert wrong < 2e-4
        assert went > 1e-3
        assert astray == 0
        more = 0 if name != "muon" else sum(1 for n, p in nets.llama().named_parameters() if of_adamw(n, p))
        assert states == STATES.get(name, 2) * count + more


def of_adamw(name: str, parameter: Tensor) -> bool:
    return parameter.dim() != 2 or not name.startswith("layers.")


def sent_by_muon() -> tuple[int, int, int, int]:
    """Collectives of a step of Muon over two layers, the bytes of all matrices, those received and those by one."""
    program = sl.loads(llama())
    placed = program.apply(nets.llama(), program.mesh("m").device_mesh("cpu"))
    matrices = [p for n, p in placed.named_parameters() if p.dim() == 2 and n.startswith("layers.")]
    optimizer = Muon(matrices)
    for p in matrices:
        p.grad = torch.ones_like(p)
    optimizer.step()
    with Recorder() as recorder:
        optimizer.step()
    received = recorder.bytes_received
    lacking = sum((p.numel() - p.to_local().numel()) * 4 for p in matrices)
    return sum(i.count for i in recorder.issued), len(matrices), received, lacking


def test_whole_matrices_come_by_one_packed_plan_and_go_for_nothing(world: World) -> None:
    for count, matrices, received, lacking in world.run(sent_by_muon):
        assert matrices == 14
        assert count <= 4
        assert received == lacking


def test_orthogonal_is_orthogonal() -> None:
    torch.manual_seed(0)
    for shape in ((6, 10), (10, 6), (5, 5)):
        matrix = orthogonal(torch.randn(*shape), rounds=30)
        small = min(shape)
        gram = matrix @ matrix.mT if shape[0] == small else matrix.mT @ matrix
        assert torch.allclose(gram, torch.eye(small), atol=1e-4)
