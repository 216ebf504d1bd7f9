"""What a compiled call gives beside tensors comes out in its place."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from shardlang.runtime import compiled_calls
from tests.models.law import Outcome, train_beside
from tests.models.nets import DIM, squares, vectors
from tests.world import World

MODEL = """
mesh m = dp:2 * tp:2
model p on m {{
  param inner.up.weight   : [f/tp d]
  param inner.down.weight : [d f/tp]
  param otherwise         : whole
  call root (x: [n/dp d]) -> [n/dp d]
  call inner (x: [n/dp d]) -> {results}
  fsdp root over dp
}}
"""


class Several(nn.Module):
    """Gives a tensor among what is none, flat or in a dict."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(DIM, 32, bias=False), nn.Linear(32, DIM, bias=False)
        self.kind = kind

    def forward(self, x: Tensor) -> Any:
        hidden = self.up(x).relu()
        y = self.down(hidden)
        return (None, y, 3) if self.kind == "tuple" else {"hidden": None, "y": y, "flag": "on"}


class Outer(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.inner = Several(kind)

    def forward(self, x: Tensor) -> Tensor:
        given = self.inner(x)
        if self.inner.kind == "tuple":
            none, y, number = given
            assert none is None
            assert number == 3
            return y
        assert (given["hidden"], given["flag"]) == (None, "on")
        result: Tensor = given["y"]
        return result


def in_a_tuple() -> nn.Module:
    return Outer("tuple")


def in_a_dict() -> nn.Module:
    return Outer("dict")


def compiled(text: str, build: Any) -> tuple[Outcome, int]:
    """The outcome, and how many programs were made."""
    made: list[str] = []
    original = compiled_calls._compile

    def counted(*arguments: Any) -> Any:
        made.append(arguments[1])
        return original(*arguments)

    compiled_calls._compile = counted
    try:
        with torch.random.fork_rng():
            return train_beside(text, build, vectors, squares), len(made)
    finally:
        compiled_calls._compile = original


@pytest.mark.parametrize(
    ("build", "results"), [(in_a_tuple, "(_, [n/dp d], _)"), (in_a_dict, "(y: [n/dp d])")], ids=["tuple", "dict"]
)
def test_what_is_no_tensor_passes_through_a_compiled_call(world: World, build: Any, results: str) -> None:
    for found, programs in world.run(compiled, MODEL.format(results=results), build):
        assert found.holds()
        assert programs == 1
