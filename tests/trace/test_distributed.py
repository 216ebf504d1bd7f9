"""Functions on real processes: the same values and gradients as on one device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.distributed.tensor import DTensor, distribute_tensor

from shardlang.lower.placements import device_mesh, placements_of
from shardlang.mesh import Axis, Mesh
from shardlang.runtime.sharded import sharded
from shardlang.trace.capture import mark
from tests.trace import networks
from tests.trace.oracle import layout
from tests.world import World

MESH = Mesh("pod", (Axis("dp", 2), Axis("tp", 2)))


def close(got: torch.Tensor, want: torch.Tensor) -> bool:
    return bool(torch.allclose(got, want, rtol=1e-9, atol=1e-9))


def mlp_plain() -> list[bool]:
    @sharded("(x: [batch/dp s d], w1: [d f/tp], w2: [f/tp d]) -> [batch/dp s d]", MESH)
    def mlp(x: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.silu(x @ w1) @ w2

    torch.manual_seed(3)
    tensors = [torch.randn(s, dtype=torch.float64) for s in ((4, 3, 8), (8, 16), (16, 8))]
    ours = [t.clone().requires_grad_() for t in tensors]
    want = [t.clone().requires_grad_() for t in tensors]
    y = mlp(*ours)
    z = mlp.function(*want)
    weights = torch.arange(y.numel(), dtype=torch.float64).reshape(y.shape)
    (y * weights).sum().backward()
    (z * weights).sum().backward()
    return [close(y, z), *(close(a.grad, b.grad) for a, b in zip(ours, want, strict=True))]


def test_a_function_of_plain_tensors_takes_and_gives_global_values(world: World) -> None:
    assert world.run(mlp_plain) == [[True] * 4] * 4


def mlp_dtensors() -> list[Any]:
    mesh = device_mesh(MESH)

    @sharded("(x: [batch/dp s d], w1: [d f/tp], w2: [f/tp d]) -> [batch/dp s d]", mesh)
    def mlp(x: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.silu(x @ w1) @ w2

    torch.manual_seed(3)
    tensors = [torch.randn(s, dtype=torch.float64) for s in ((4, 3, 8), (8, 16), (16, 8))]
    specs = ["[b/dp s d]", "[d f/tp]", "[f/tp d]"]
    ours = []
    for tensor, spec in zip(tensors, specs, strict=True):
        placements = placements_of(layout(MESH, spec, tensor.shape))
        ours.append(distribute_tensor(tensor, mesh, placements).detach().requires_grad_())
    want = [t.clone().requires_grad_() for t in tensors]
    y, z = mlp(*ours), mlp.function(*want)
    assert isinstance(y, DTensor)
    weights = torch.arange(z.numel(), dtype=torch.float64).reshape(z.shape)
    (y * distribute_tensor(weights, mesh, y.placements)).sum().full_tensor().backward()
    (z * weights).sum().backward()
    sames = [close(a.grad.full_tensor(), b.grad) for a, b in zip(ours, want, strict=True)]
    kept = [a.grad.placements == a.placements for a in ours]
    return [str(y.placements), close(y.full_tensor(), z), *sames, *kept]


def test_dtensors_bring_their_layout_and_get_gradients_in_it(world: World) -> None:
    assert world.run(mlp_dtensors) == [["(Shard(dim=0), Replicate())", *[True] * 7]] * 4


def llama_step(stay: str) -> list[bool]:
    from shardlang.trace.capture import mark, tracing

    names = ["tokens", "targets", "table", "n1", "wq", "wk", "wv", "wo", "n2", "w1", "w2", "w3", "n3", "head"]
    signature = ", ".join(f"{n}: {s}" for n, s in zip(names, networks.LLAMA, strict=True))

    @sharded(f"({signature}) -> []", MESH)
    def step(tokens, targets, table, n1, wq, wk, wv, wo, n2, w1, w2, w3, n3, head):  # type: ignore[no-untyped-def]
        def reshard(x: torch.Tensor, spec: str) -> torch.Tensor:
            return mark(x, spec) if tracing() else x

        weights = (table, n1, wq, wk, wv, wo, n2, w1, w2, w3, n3, head)
        return networks.llama(tokens, targets, *weights, reshard=reshard, stay=stay, use="[b/dp s d]")

    tensors = networks.llama_tensors()
    ours = [t.clone().requires_grad_(t.is_floating_point()) for t in tensors]
    want = [t.clone().requires_grad_(t.is_floating_point()) for t in tensors]
    y, z = step(*ours), step.function(*want)
    y.backward()
    z.backward()
    return [close(y, z), *(close(a.grad, b.grad) for a, b in zip(ours[2:], want[2:], strict=True))]


def test_a_llama_layer_with_tensor_parallelism(world: World) -> None:
    assert world.run(llama_step, "[b/dp s d]") == [[True] * 13] * 4


def test_a_llama_layer_with_sequence_parallelism(world: World) -> None:
    assert world.run(llama_step, "[b/dp s/tp d]") == [[True] * 13] * 4


def compiled_whole(backend: str) -> list[bool]:
    @sharded("(x: [batch/dp s d], w1: [d f/tp], w2: [f/tp d]) -> [batch/dp s d]", device_mesh(MESH))
    def mlp(x: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.silu(x @ w1) @ w2

    torch.manual_seed(3)
    blocks = [torch.randn(s) for s in ((2, 3, 8), (8, 8), (8, 8))]
    specs = ["[4/dp 3 8]", "[8 16/tp]", "[16/tp 8]"]
    ours = [b.clone().requires_grad_() for b in blocks]
    theirs = [b.clone().requires_grad_() for b in blocks]
    layouts = [layout(MESH, s, n) for s, n in zip(specs, ((4, 3, 8), (8, 16), (16, 8)), strict=True)]
    local = mlp.local_for(layouts, [torch.empty(w.shape) for w in layouts])
    whole = torch.compile(local, fullgraph=True, backend=backend)
    (y,), (z,) = local(*ours), whole(*theirs)
    y.square().sum().backward()
    z.square().sum().backward()
    return [
        bool(torch.allclose(y, z)),
        *(bool(torch.allclose(a.grad, b.grad)) for a, b in zip(ours, theirs, strict=True)),
    ]


def test_the_local_program_is_one_graph_for_torch_compile(world: World) -> None:
    assert world.run(compiled_whole, "aot_eager", timeout=120) == [[True] * 4] * 4


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_inductor_takes_the_local_program_as_one_graph(world: World) -> None:
    assert world.run(compiled_whole, "inductor", timeout=500) == [[True] * 4] * 4


def moves_looked_into() -> list[str]:
    """What a compiler is given of a function that gathers, adds up and scatters."""
    graphs: list[str] = []

    @sharded("(x: [b/dp s/tp d], w: [d f/tp]) -> [b/dp s/tp f]", device_mesh(MESH))
    def gathers(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return mark(mark(x, "[b/dp s d]") @ mark(w, "[d f]"), "[b/dp s/tp f]")

    def watched(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(graph.code)
        return graph

    shapes = ((4, 6, 8), (8, 4))
    layouts = [layout(MESH, s, n) for s, n in zip(["[4/dp 6/tp 8]", "[8 4/tp]"], shapes, strict=True)]
    local = gathers.local_for(layouts, [torch.empty(s) for s in shapes])
    blocks = [torch.randn(w.local_shape(torch.distributed.get_rank())) for w in layouts]
    with torch.no_grad():
        (y,), (z,) = local(*blocks), torch.compile(local, fullgraph=True, backend=watched)(*blocks)
    assert torch.equal(y, z)
    return [name for name in ("all_gather_into_tensor", "shardlang.carry") if name in "".join(graphs)]


def test_torch_compile_looks_into_moves_of_equal_blocks(world: World) -> None:
    assert world.run(moves_looked_into, timeout=120) == [["all_gather_into_tensor"]] * 4
