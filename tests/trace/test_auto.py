"""Under ``auto`` the cheapest program is found, with what it chose and why; ``/?`` leaves the axis of a dim to it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import shardlang as sl
from shardlang.diagnostics import ShardlangError
from shardlang.mesh import Axis, Mesh
from shardlang.trace.compile import modelled_time
from tests.trace.oracle import check, layout, mesh_of, program, reals

POD = Mesh("pod", (Axis("dp", 2), Axis("tp", 4)))


def network(x: Any, w: Any, v: Any) -> Any:
    return torch.softmax(torch.relu(x @ w), -1) @ v


def explained(function: Any, specs: list[str], shapes: list[tuple[int, ...]], results: list[str], mesh: str) -> str:
    on = mesh_of(mesh)
    tensors = [torch.empty(shape) for shape in shapes]
    layouts = [layout(on, s, t.shape) for s, t in zip(specs, tensors, strict=True)]
    finals = [layout(on, r, (shapes[0][0], shapes[-1][-1])) for r in results]
    made = program(function, tensors, layouts, on, finals, auto=True)
    assert made.explain is not None
    return made.explain()


def test_each_reshard_is_explained_by_its_price_and_the_next_best() -> None:
    specs = ["[b/dp d]", "[d f/tp]", "[f d]"]
    text = explained(network, specs, [(4096, 1024), (1024, 4096), (4096, 1024)], ["[b/dp d]"], "dp:2 * tp:4")
    assert "modelled, forward and backward" in text
    heads = [line for line in text.splitlines() if line.startswith("test_auto.py:")]
    assert heads
    assert text.count("  taken      ") == len(heads) == text.count("  next best  ")
    assert all("in all: `" in line for line in text.splitlines() if line.startswith("  next best  "))


def test_what_the_signature_demands_is_told_apart() -> None:
    text = explained(lambda x, w: x @ w, ["[b d/tp]", "[d/tp f]"], [(512, 512), (512, 512)], ["[b f]"], "tp:2")
    assert text.splitlines()[1:] == [
        "nothing is moved in the body",
        "demanded by the signature:",
        "  `matmul` to [512 512]  31.0 us, 1.0 MiB  all_reduce tp; its gradient as it is",
    ]


def test_the_largest_block_that_is_made_is_named_since_memory_is_not_weighed() -> None:
    specs, shapes = ["[b/dp/tp d]", "[d f/tp]"], [(65536, 1024), (1024, 1024)]
    text = explained(lambda x, w: torch.relu(x @ w), specs, shapes, ["[b/dp/tp f]"], "dp:2 * tp:4")
    told = [line for line in text.splitlines() if line.startswith("memory is not weighed: ")]
    # A rank has a quarter of the weight, 1024 x 256 numbers of 4 bytes, and gets all of it.
    assert told == ["memory is not weighed: the largest block made is `x1` to [1024 1024], 1.0 MiB -> 4.0 MiB a rank"]


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


def test_an_open_axis_is_the_one_that_costs_least_and_says_so() -> None:
    pod = Mesh("pod", (Axis("dp", 2), Axis("tp", 2)))

    @sl.sharded("(x: [b/dp d], w: [d f/?]) -> [b/dp f/tp]", pod)
    def product(x: Any, w: Any) -> Any:
        return x @ w

    tensors = [torch.empty(4096, 1024), torch.empty(1024, 4096)]
    whole = [layout(pod, "[b d]", t.shape) for t in tensors]
    made = product.program_in(whole, tensors)
    assert "[1024 4096/tp]" in product.local_source
    assert str(made.results[0]) == "[4096/dp 4096/tp]"
    lines = product.explain().splitlines()
    at = lines.index("`w`: the axis left open is chosen: [1024 4096/tp]")
    assert lines[at + 1].startswith("  next best  [1024 4096/dp]: ")


@pytest.mark.parametrize(("spec", "chosen"), [("[d f/?]", "[8 16/tp]"), ("[d/? f]", "[8/tp 16]")])
def test_an_open_axis_is_chosen(spec: str, chosen: str) -> None:
    pod = Mesh("pod", (Axis("tp", 2),))

    @sl.sharded(f"(x: [b d], w: {spec}) -> [b f]", pod)
    def product(x: Any, w: Any) -> Any:
        return x @ w

    made = product.program_for(torch.empty(4, 8), torch.empty(8, 16))
    assert chosen in product.local_source
    assert made.results[0].shape == (4, 16)


def test_more_axes_may_be_open_than_ways_could_be_tried() -> None:
    # Four weights of two open axes each are 4096 combinations; they are one question.
    pod = Mesh("pod", (Axis("a", 2), Axis("b", 2)))
    names = "pqrs"
    signature = ", ".join(f"{n}: [d{i}/? d{i + 1}/?]" for i, n in enumerate(names))

    @sl.sharded(f"(x: [n d0], {signature}) -> [n/a/b d4]", pod)
    def chain(x: Any, p: Any, q: Any, r: Any, s: Any) -> Any:
        return x @ p @ q @ r @ s

    tensors = [torch.empty(256, 64), *(torch.empty(64, 64) for _ in names)]
    chain.program_for(*tensors)
    assert chain.explain().count("the axis left open is chosen") == 4


def test_an_open_axis_that_nothing_fits_is_an_error() -> None:
    pod = Mesh("pod", (Axis("tp", 2),))

    @sl.sharded("(x: [b/tp d/?]) -> [b/tp d]", pod, auto=True)
    def same(x: Any) -> Any:
        return x * 2

    with pytest.raises(ShardlangError) as caught:
        same.program_for(torch.empty(4, 8))
    assert caught.value.codes == ("SL0527",)


CHOOSE = """
from tests.trace.test_auto import explained, network
shapes = [(4096, 1024), (1024, 4096), (4096, 1024)]
print(explained(network, ["[b/dp d]", "[d f/tp]", "[f d]"], shapes, ["[b/dp d]"], "dp:2 * tp:4"))
"""


def test_every_process_chooses_the_same() -> None:
    said = {
        subprocess.run(
            [sys.executable, "-c", CHOOSE],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=True,
            timeout=100,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1
    assert "taken" in said.pop()
