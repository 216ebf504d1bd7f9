"""``compile`` lines: modules through ``torch.compile`` train as on one device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import shardlang as sl
from shardlang.check.model import check_model
from shardlang.diagnostics import ShardlangError
from shardlang.lower.facts import facts_of
from shardlang.lower.model import lower_model
from shardlang.runtime.loss import whole_value
from shardlang.runtime.torch_compile import compilers
from tests.models import nets
from tests.models.test_law import llama
from tests.world import World

GROUPS = "fsdp layers.* over dp\n  fsdp root over dp { reshard no }"
AT_HAND = "compile layers.* { backend watched }"


GRAPHS: list[tuple[str, ...]] = []


def watched(graph: torch.fx.GraphModule, inputs: Any, **options: Any) -> Any:
    import torch._dynamo as dynamo

    GRAPHS.append(tuple(str(n.target) for n in graph.graph.nodes if n.op.startswith("call")))
    return dynamo.lookup_backend("aot_eager")(graph, inputs, **options)


def trained(text: str, build: Any) -> tuple[list[float], list[float], list[tuple[str, ...]]]:
    """Losses and norms of three steps, and the operators of each graph that the backend was given. Torch compiles
    nothing while collectives are watched, so that they are not."""
    import torch._dynamo as dynamo

    dynamo.reset()
    GRAPHS.clear()
    if "watched" not in torch.compiler.list_backends(exclude_tags=()):
        dynamo.register_backend(watched, name="watched")
    program = sl.loads(text)
    torch.manual_seed(0)
    sl.manual_seed(0)
    model = program.apply(build(), program.mesh("m").device_mesh("cpu"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses, norms = [], []
    for step in range(3):
        with sl.global_view():
            mean = sl.global_mean(*nets.next_token(model, sl.place(model, nets.tokens(step))))
            mean.backward()
        losses.append(float(whole_value(mean)))
        norms.append(float(sl.clip_grad_norm_(model.parameters(), 1.0)))
        optimizer.step()
        optimizer.zero_grad()
    return losses, norms, list(GRAPHS)


def near(found: list[float], right: list[float]) -> bool:
    return all(abs(a - b) <= 1e-5 * abs(b) for a, b in zip(found, right, strict=True))


def compiled(world: World, plain: str, line: str, build: Any = nets.llama) -> list[tuple[str, ...]]:
    """The graphs of a model with a ``compile`` line, which has trained as it does without."""
    right = world.run(trained, plain, build)[0]
    assert right[2] == []
    found = world.run(trained, plain.replace("  call root", f"  {line}\n  call root"), build, timeout=110)
    for losses, norms, graphs in found:
        assert near(losses, right[0])
        assert near(norms, right[1])
        assert graphs == found[0][2]
    return found[0][2]


def test_the_programs_of_calls_are_graphs_of_their_own(world: World) -> None:
    """Attention and feed-forward of two layers, each whole with its collective; what is between them on DTensors."""
    graphs = compiled(world, llama(groups=GROUPS), AT_HAND)
    programs = [g for g in graphs if "shardlang.carry" in g]
    assert len(programs) == 4
    assert sum(any("attention" in op for op in g) for g in programs) == 2
    assert [any("rsqrt" in op for op in g) for g in graphs if g not in programs] == [True, True, False]


def test_a_block_with_a_call_line_is_one_graph(world: World) -> None:
    text = llama(groups=GROUPS).replace(
        "  call layers.*.attention",
        "  call layers.* (x: [batch/dp seq/tp d]) -> [batch/dp seq/tp d]\n  call layers.*.attention",
    )
    graphs = compiled(world, text, AT_HAND)
    assert len(graphs) == 2
    assert all(sum("silu" in op for op in g) == sum("attention" in op for op in g) == 1 for g in graphs)


def test_what_is_computed_again_is_compiled_as_well(world: World) -> None:
    graphs = compiled(world, llama(groups=f"checkpoint layers.*\n  {GROUPS}"), AT_HAND)
    assert sum("shardlang.carry" in g for g in graphs) == 4


class Dropped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(nets.VOCAB, nets.DIM)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(nets.DIM, nets.DIM), nn.Dropout(0.5), nn.Linear(nets.DIM, nets.DIM))
            for _ in range(2)
        )
        self.output = nn.Linear(nets.DIM, nets.VOCAB)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = x + layer(x)
        return self.output(x)


DROPPED = """
mesh m = dp:2 * tp:2
model d on m {
  param layers.*.0.weight : [f/tp d]
  param layers.*.0.bias   : [f/tp]
  param layers.*.2.weight : [d f/tp]
  param otherwise         : whole
  call root (tokens: [n/dp s]) -> [n/dp s v]
  call layers.* (input: [n/dp s d]) -> [n/dp s d]
  fsdp layers.* over dp
  fsdp root over dp
}
"""


def test_dropout_draws_in_a_graph_what_it_draws_without(world: World) -> None:
    """A mask is one operator of the seed, which is an argument: the same graph in every step."""
    graphs = compiled(world, DROPPED, AT_HAND, Dropped)
    assert len(graphs) == 2
    assert all(g.count("shardlang.mask") == 1 for g in graphs)


@pytest.mark.nightly
def test_the_default_backend_gives_the_same(world: World) -> None:
    assert compiled(world, llama(groups=GROUPS), "compile layers.*") == []


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        ("compile layers.*\n  compile layers.0", "SL0660"),
        ("compile layers.* { backend inductr }", "SL0661"),
        ("compile blocks.*", "SL0601"),
    ],
)
def test_a_line_that_cannot_be_is_refused(lines: str, code: str) -> None:
    declared, facts = sl.loads(llama(groups=lines)).declared_model(), facts_of(nets.llama())
    with pytest.raises(ShardlangError) as raised:
        compilers(lower_model(check_model(declared, facts)))
    assert raised.value.codes == (code,)
