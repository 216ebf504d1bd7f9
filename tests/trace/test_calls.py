"""The bodies of a model's calls are compiled, and send what DTensor's dispatch would have sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from examples.llama import model
from shardlang import compilation
from shardlang.check.model import check_model
from shardlang.lower.facts import facts_of
from shardlang.runtime import compiled_calls
from shardlang.runtime.observe import Tally
from shardlang.runtime.step_plan import plan_step
from shardlang.source import Source

FILE = "examples/llama/llama.shard"


def planned(monkeypatch: pytest.MonkeyPatch, eager: bool) -> tuple[dict[tuple[str, tuple[str, ...]], Tally], int]:
    """The collectives of a step by kind and axes, and how many programs were made."""
    made: list[str] = []
    original = compiled_calls._compile

    def counted(*arguments: Any) -> Any:
        made.append(arguments[1])
        return original(*arguments)

    monkeypatch.setattr(compiled_calls, "_compile", counted)
    text = Path(FILE).read_text()
    if eager:
        lines = [
            f"{ln.split('#')[0].rstrip()} eager" if ln.strip().startswith("call ") else ln for ln in text.split("\n")
        ]
        text = "\n".join(lines)
    session = compilation.Compilation(Source(FILE, text))
    declared = next(iter(session.program.models.values()))
    layouts = check_model(declared, facts_of(model.build()))
    plan = plan_step(layouts, model.build, model.batch, model.loss)
    return {(t.kind, t.axes): t for t in plan.collectives}, len(made)


def test_compiled_calls_send_what_eager_ones_do(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled, programs = planned(monkeypatch, eager=False)
    eager, none = planned(monkeypatch, eager=True)
    layers = len(model.build().layers)
    assert programs == 2 * layers + 2  # attention and feed-forward of each layer, the embedding and the head
    assert none == 0
    assert compiled == eager
