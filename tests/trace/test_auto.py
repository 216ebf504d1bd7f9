"""Under ``auto`` the cheapest program is found, with what it chose and why; ``/?`` leaves the axis of a dim to it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import shardlang as sl
from shardlang.diagnostics import ShardlangError
from shardlang.mesh import Axis, Mesh
from shardlang.trace.compile import modelled_time
from tests.trace.oracle import check, layout, mesh_of, program, reals

POD = Mesh("pod", (Axis("dp", 2), Axis("tp", 4)))


def test_a_misfit_takes_the_cheaper_way_and_says_so() -> None:
    @sl.sharded("(x: [b/dp d], w: [d f/tp], v: [f d]) -> [b/dp d]", POD, auto=True)
    def network(x: Any, w: Any, v: Any) -> Any:
        return torch.softmax(torch.relu(x @ w), -1) @ v

    network.program_for(torch.empty(4096, 1024), torch.empty(1024, 4096), torch.empty(4096, 1024))
    assert "taken" in network.choices
    assert "next best" in network.choices
    assert 'sl.reshard(relu, "[4096/dp 4096]")' in network.choices


def test_the_search_looks_past_the_next_operator() -> None:
    def network(x: Any, r: Any, w: Any) -> Any:
        return torch.tanh(x.sum(0) + r) * w

    mesh = mesh_of("tp:4")
    tensors = [torch.empty(8, 4096), torch.empty(4096), torch.empty(4096)]
    layouts = [layout(mesh, s, t.shape) for s, t in zip(["[n/tp d]", "[d]", "[d/tp]"], tensors, strict=True)]
    made = program(network, tensors, layouts, mesh, auto=True)
    # Scattering the sum once serves all that follows; masking `r` is free at first and dearer in the end.
    assert [s.kind for m in made.moves if m.forward for s in m.forward.steps if s.bytes_received] == ["reduce_scatter"]
    assert str(made.results[0]) == "[4096/tp]"
    assert modelled_time(made) > 0


def test_auto_gives_the_values_of_one_device() -> None:
    def network(x: Any, y: Any, w: Any) -> Any:
        h = torch.relu(x @ w + y)
        return torch.softmax(h, -1).mean(0), h.view(4, 2, 3).transpose(1, 2)

    check(network, [reals(4, 6), reals(4, 6), reals(6, 6)], ["[a/tp b]", "[a b/dp]", "[b/dp c/tp]"], auto=True)


@pytest.mark.parametrize(("specs", "chosen"), [("[d f/?]", "[8 16/tp]"), ("[d/? f]", "[8/tp 16]")])
def test_an_open_axis_is_chosen(specs: str, chosen: str) -> None:
    pod = Mesh("pod", (Axis("tp", 2),))

    @sl.sharded(f"(x: [b d], w: {specs}) -> [b f]", pod, auto=True)
    def product(x: Any, w: Any) -> Any:
        return x @ w

    made = product.program_for(torch.empty(4, 8), torch.empty(8, 16))
    assert chosen in product.local_source
    assert made.results[0].shape == (4, 16)


def test_an_open_axis_is_the_one_that_costs_least() -> None:
    pod = Mesh("pod", (Axis("dp", 2), Axis("tp", 2)))

    @sl.sharded("(x: [b/dp d], w: [d f/?]) -> [b/dp f/tp]", pod, auto=True)
    def product(x: Any, w: Any) -> Any:
        return x @ w

    product.program_for(torch.empty(4096, 1024), torch.empty(1024, 4096))
    assert "[1024 4096/tp]" in product.local_source


def test_an_open_axis_that_nothing_fits_is_an_error() -> None:
    pod = Mesh("pod", (Axis("tp", 2),))

    @sl.sharded("(x: [b/tp d/?]) -> [b/tp d]", pod, auto=True)
    def same(x: Any) -> Any:
        return x * 2

    with pytest.raises(ShardlangError) as caught:
        same.program_for(torch.empty(4, 8))
    assert caught.value.codes == ("SL0527",)
