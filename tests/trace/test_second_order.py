"""Second derivatives through the moves of compiled functions are those of one device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import shardlang as sl
from shardlang import testing
from shardlang.runtime import lockstep
from shardlang.trace.capture import erased
from tests.trace.networks import feed_forward
from tests.trace.operators import EXAMPLES, Example
from tests.trace.oracle import layout, mesh_of, program, reals
from tests.trace.second_order import second_differences
from tests.trace.test_operators import compiled
from tests.world import World, torch_mesh

CURVED = [e for e in EXAMPLES if e.name in ("linear bias", "layer_norm", "softmax", "mul")]
"""Operators with a second derivative, each with moves, sums and rewrites of its own."""


@pytest.mark.parametrize("example", CURVED, ids=str)
@settings(max_examples=2, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None,
          phases=[Phase.generate])  # fmt: skip
@given(data=st.data())
def test_second_derivatives_under_random_layouts(example: Example, data: st.DataObject) -> None:
    holds(example, data)


@pytest.mark.nightly
@pytest.mark.parametrize("example", [e for e in EXAMPLES if not e.name.startswith("attention")], ids=str)
@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck), database=None,
          phases=[Phase.generate])  # fmt: skip
@given(data=st.data())
def test_second_derivatives_of_every_operator(example: Example, data: st.DataObject) -> None:
    """Torch's attention has none on the CPU."""
    holds(example, data)


def holds(example: Example, data: st.DataObject) -> None:
    mesh = data.draw(testing.meshes(most=6))
    given = [data.draw(testing.layouts(mesh, tuple(t.shape), pending=t.is_floating_point())) for t in example.tensors]
    made = compiled(example, mesh, given)
    assert made is None or second_differences(made, example.function, example.tensors, mesh) in ([], None)


def swiglu(x: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, w3: torch.Tensor) -> torch.Tensor:
    return sl.reshard(feed_forward(sl.reshard(x, "[b/dp s d]"), w1, w2, w3), "[b/dp s/tp d]")


def two_products(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.tanh(sl.reshard(torch.tanh(x @ w) @ v, "[b/dp d]"))


def test_a_layer_with_reshards_and_sums_of_gradients_has_second_derivatives() -> None:
    tensors = [reals(4, 4, 6), reals(8, 6), reals(6, 8), reals(8, 6, seed=1)]
    mesh = mesh_of("dp:2 * tp:2")
    specs = ["[b/dp s/tp d]", "[f/tp d]", "[d f/tp]", "[f/tp d]"]
    layouts = [layout(mesh, s, t.shape) for s, t in zip(specs, tensors, strict=True)]
    made = program(swiglu, tensors, layouts, mesh)
    assert second_differences(made, swiglu, tensors, mesh) == []


def test_a_second_derivative_that_goes_another_way_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were it to go back by the plan of the gradient, and not as the value went."""
    right = vars(lockstep._Move)["backward"]

    def wrong(ctx: Any, *grads: torch.Tensor) -> Any:
        ctx.there = None
        return right.__func__(ctx, *grads)

    monkeypatch.setattr(lockstep._Move, "backward", staticmethod(wrong))
    tensors = [reals(4, 6), reals(6, 8), reals(8, 6)]
    mesh = mesh_of("dp:2 * tp:2")
    specs = ["[b/dp d]", "[d f/tp]", "[f/tp d]"]
    layouts = [layout(mesh, s, t.shape) for s, t in zip(specs, tensors, strict=True)]
    made = program(two_products, tensors, layouts, mesh)
    assert second_differences(made, two_products, tensors, mesh)


def penalised() -> list[bool]:
    """A loss with the square of the gradient of its input in it, on process groups and on one device."""
    mesh = torch_mesh((2, 2), ("dp", "tp"))
    torch.manual_seed(0)
    numbers = [torch.randn(*s, dtype=torch.float64) for s in ((4, 4, 8), (12, 8), (8, 12))]

    def body(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        h = F.rms_norm(sl.reshard(x, "[b/dp s d]"), (8,))
        return sl.reshard(F.linear(torch.tanh(F.linear(h, w)), v), "[b/dp s/tp d]")

    net = sl.sharded("(x: [b/dp s/tp d], w: [f/tp d], v: [d f/tp]) -> [b/dp s/tp d]", mesh)(body)
    split = [[Shard(0), Shard(1)], [Replicate(), Shard(0)], [Replicate(), Shard(1)]]
    placed = [distribute_tensor(t, mesh, p).requires_grad_() for t, p in zip(numbers, split, strict=True)]
    alone = [t.clone().requires_grad_() for t in numbers]
    found = []
    for call, tensors in ((net, placed), (body, alone)):
        with erased() if call is body else torch.enable_grad():
            y = call(*tensors)
        (slope,) = torch.autograd.grad((y * y).sum(), tensors[:1], create_graph=True)
        ((y * y).sum() + (slope * slope).sum()).backward()
    for one, whole in zip(placed, alone, strict=True):
        assert isinstance(one.grad, DTensor)
        assert whole.grad is not None
        found.append(torch.allclose(one.grad.full_tensor(), whole.grad, rtol=1e-9, atol=1e-9))
        found.append(one.grad.placements == one.placements)
    return found


def test_a_gradient_penalty_is_that_of_one_device(world: World) -> None:
    assert world.run(penalised) == [[True] * 6] * 4
