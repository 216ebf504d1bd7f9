"""Steps that go through DTensor's own dispatch are planned, or it is said which operator ends them and what helps."""

from __future__ import annotations

import sys
import types

import pytest
import torch
from torch import Tensor, nn

import shardlang as sl
from shardlang.diagnostics import Diagnostic


class Attention(nn.Module):
    """Queries apart, keys and values in one fused weight."""

    def __init__(self, d: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.kv, self.out = nn.Linear(d, d), nn.Linear(d, 2 * d, bias=False), nn.Linear(d, d, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        rows, length, d = x.shape
        q = self.q(x).view(rows, length, self.heads, -1).transpose(1, 2)
        k, v = self.kv(x).view(rows, length, 2, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        return x + self.out(mixed.transpose(1, 2).reshape(rows, length, d))


class Windows(nn.Module):
    """An operator that DTensor has no rule for."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x).unfold(-1, 2, 1).sum(-1)


def plan(monkeypatch: pytest.MonkeyPatch, build: object, shape: tuple[int, ...], lines: str) -> list[tuple[str, ...]]:
    """Kinds and axes of what a step of the model sends."""
    home = types.ModuleType("net_of_this_test")
    vars(home).update(
        build=build,
        batch=lambda step: {"x": torch.randn(shape)},
        loss=lambda model, batch: (model(batch["x"]).square().sum(), 1),
    )
    monkeypatch.setitem(sys.modules, "net_of_this_test", home)
    text = f"mesh m = dp:2 * tp:2\nmodel net from net_of_this_test:build on m {{\n{lines}\n}}\n"
    return [(t.kind, *t.axes) for t in sl.loads(text).compilation.step_plan("net").collectives]


def fault(monkeypatch: pytest.MonkeyPatch, lines: str) -> Diagnostic:
    with pytest.raises(sl.ShardlangError) as caught:
        plan(monkeypatch, Windows, (4, 8), f"param otherwise : whole\n{lines}")
    (found,) = caught.value.diagnostics
    return found


def test_fused_weights_outside_of_compiled_calls_are_planned(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    lines = """
        param *.q.weight : [(h/tp 4) d]
        param *.q.bias : [(h/tp 4)]
        param *.kv.weight : [(2 h/tp 4) d]
        param *.out.weight : [d (h/tp 4)]
        call root (input: [b/dp s d]) -> [b/dp s d]
        fsdp * over dp"""
    sent = plan(monkeypatch, lambda: nn.Sequential(Attention(16, 4), Attention(16, 4)), (4, 6, 16), lines)
    assert ("all_gather", "dp") in sent
    assert ("all_reduce", "tp") in sent or ("reduce_scatter", "tp") in sent
    assert "alltoall" not in capfd.readouterr().err


def test_an_operator_that_dtensor_does_not_carry_out_is_named_with_the_line_that_helps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = fault(monkeypatch, "call root (x: [b/dp d]) -> (_) eager")
    assert found.code == "SL0666"
    assert found.message == "DTensor does not carry out `aten.unfold` in model `net`"
    assert found.notes[0].startswith("in module `root`, at ")
    assert found.notes[0].rpartition(":")[0].endswith("test_plan_through_dtensor.py")
    assert found.helps[0].startswith("remove `eager` from the `call` line of `root`")
    found = fault(monkeypatch, "call root (x: [b/dp d]) -> (_)\nfsdp inner over dp")
    assert found.code == "SL0666"
    assert found.helps[0].startswith("write a `call` line for `inner`: ")
    found = fault(monkeypatch, "fsdp root over dp")
    assert found.helps[0].startswith("write a `call` line for the module around it")


def test_what_a_step_raises_is_shown_with_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    class Asks(Windows):
        def forward(self, x: Tensor) -> Tensor:
            y = self.inner(x)
            return y if y.sum().item() > 0 else -y

    with pytest.raises(sl.ShardlangError) as caught:
        plan(monkeypatch, Asks, (4, 8), "param otherwise : whole\ncall root (x: [b/dp d]) -> [b/dp d] eager")
    (found,) = caught.value.diagnostics
    assert found.code == "SL0736"
    assert found.notes[0].startswith("raised in module `root`, at ")
    assert found.helps == ("keep it a tensor: no `.item()`, `int(..)` or `if` of one",)
