"""A compiled call takes in what is inside it: by their ``call`` lines, and as they are where they have hooks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from shardlang import compilation
from shardlang.check.model import check_model
from shardlang.diagnostics import ShardlangError
from shardlang.lower.facts import facts_of
from shardlang.runtime import compiled_calls
from shardlang.runtime.step_plan import StepPlan, plan_step
from shardlang.source import Source
from tests.models.law import train_beside
from tests.models.nets import DIM, squares, vectors
from tests.world import World

TEXT = """
mesh m = dp:2 * tp:2
model stack on m {{
  param layers.*.up.weight   : [f/tp d]
  param layers.*.down.weight : [d f/tp]
  param otherwise            : whole
  call root (x: [n/dp d]) -> [n/dp d]
  call layers.* (x: [n/dp d]) -> {results}
{lines}
}}
"""
FSDP = "  fsdp layers.* over dp\n  fsdp root over dp"


class Cache:
    """An object of a model's own that holds a tensor."""

    def __init__(self) -> None:
        self.kept: list[Tensor] = []


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(DIM, 32, bias=False), nn.Linear(32, DIM, bias=False)
        self.norm = nn.LayerNorm(DIM)

    def forward(self, x: Tensor, scale: Tensor, cache: Cache | None = None, flag: str = "") -> tuple[Tensor, Any]:
        if cache is not None:
            cache.kept.append(x)
        y = x + self.down(F.gelu(self.up(self.norm(x)))) * scale
        return y, Cache() if flag == "gives" else None


class Stack(nn.Module):
    """Two layers between operators of its own; a tensor that no ``call`` line names goes into each."""

    def __init__(self, flag: str = "", cached: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.gain = nn.Parameter(torch.arange(1.0, DIM + 1) / DIM)
        self.flag, self.cached = flag, cached

    def forward(self, x: Tensor) -> Tensor:
        scale = torch.arange(DIM) * 0.1
        cache = Cache() if self.cached else None
        for layer in self.layers:
            x, _ = layer(x * 2, scale, cache=cache, flag=self.flag)
        return F.rms_norm(x, (DIM,), self.gain)


def stack() -> nn.Module:
    return Stack()


def gives_an_object() -> nn.Module:
    return Stack(flag="gives")


def hands_on_an_object() -> nn.Module:
    return Stack(cached=True)


def text(lines: str, results: str = "([n/dp d], _)") -> str:
    return TEXT.format(lines=lines, results=results)


LINES = {
    "nothing": "",
    "fsdp": FSDP,
    "checkpoint": f"  checkpoint layers.*\n{FSDP}",
    "eager inside": FSDP.replace("  fsdp layers.* over dp\n", ""),
}


@pytest.mark.parametrize("case", LINES)
def test_a_model_whose_root_is_compiled_trains_as_on_one_device(world: World, case: str) -> None:
    written = text(LINES[case])
    if case == "eager inside":
        written = written.replace("-> ([n/dp d], _)", "-> ([n/dp d], _) eager")
    found = world.run(train_beside, written, stack, vectors, squares, 2)
    assert all(o.holds() for o in found)


def planned(written: str, build: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[StepPlan, list[str]]:
    """The plan of a step, and of which modules programs were made."""
    made: list[str] = []
    original = compiled_calls._compile

    def noted(body: Any, *rest: Any) -> Any:
        found = original(body, *rest)
        calls = [i.name for i in found.program.inner]
        made.append(f"{body.path or 'root'}: {', '.join(calls)}" if calls else body.path or "root")
        return found

    monkeypatch.setattr(compiled_calls, "_compile", noted)
    session = compilation.Compilation(Source("stack.shard", written))
    layouts = check_model(next(iter(session.program.models.values())), facts_of(build()))
    return plan_step(layouts, build, vectors, squares), made


def test_modules_without_hooks_are_compiled_into_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    _, made = planned(text(""), stack, monkeypatch)
    assert made == ["root"]


def test_modules_with_groups_are_called_from_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    _, made = planned(text(FSDP), stack, monkeypatch)
    assert sorted(made) == ["layers.0", "layers.1", "root: layers.0, layers.1"]


def test_a_checkpointed_module_is_called_from_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    _, made = planned(text("  checkpoint layers.*"), stack, monkeypatch)
    assert "root: layers.0, layers.1" in made


def test_the_compiled_root_sends_what_the_eager_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled, _ = planned(text(FSDP), stack, monkeypatch)
    eager, made = planned(text(FSDP).replace("call root (x: [n/dp d]) -> [n/dp d]", ""), stack, monkeypatch)
    assert "root" not in "".join(made)
    assert compiled.collectives == eager.collectives


@pytest.mark.parametrize(
    ("code", "build", "results"),
    [
        ("SL0657", hands_on_an_object, "([n/dp d], _)"),
        ("SL0658", gives_an_object, "([n/dp d], _)"),
        ("SL0659", stack, "(_, _)"),
    ],
)
def test_what_cannot_pass_into_or_out_of_a_module_called_as_it_is(
    code: str, build: Any, results: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ShardlangError) as caught:
        planned(text(FSDP, results), build, monkeypatch)
    assert caught.value.codes == (code,)


def test_an_object_passes_where_nothing_is_called_as_it_is(world: World) -> None:
    assert all(o.holds() for o in world.run(train_beside, text(""), hands_on_an_object, vectors, squares, 1))


class GivesCache(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(DIM, 32, bias=False)

    def forward(self, x: Tensor) -> dict[str, Any]:
        cache = Cache()
        cache.kept += [x * 2, self.up(x)]
        return {"y": self.up(x).sum(-1), "cache": cache, "also": cache}


def cached() -> list[bool]:
    import shardlang as sl
    from shardlang.runtime.loss import whole_value

    program = sl.loads(
        "mesh m = dp:2 * tp:2\nmodel one on m {\n  param up.weight : [f/tp d]\n"
        "  call root (x: [n/dp d]) -> (y: [n/dp])\n}\n"
    )
    torch.manual_seed(0)
    plain = GivesCache()
    torch.manual_seed(0)
    placed = program.apply(GivesCache(), program.mesh("m").device_mesh("cpu"))
    whole = vectors(0)["x"]
    part = whole.chunk(2)[torch.distributed.get_rank() // 2]
    first, second, due = placed(part), placed(part + 1), plain(whole)
    return [
        type(first["cache"]) is Cache,
        first["cache"] is not second["cache"],
        bool(torch.allclose(whole_value(first["y"]), due["y"])),
        *(bool(torch.allclose(whole_value(a), b)) for a, b in zip(first["cache"].kept, due["cache"].kept, strict=True)),
    ]


def test_an_object_that_a_model_gives_comes_out_anew_with_its_tensors(world: World) -> None:
    assert world.run(cached) == [[True] * 5] * 4
