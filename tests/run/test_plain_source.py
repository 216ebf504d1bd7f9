"""A model written out in torch's words alone trains as on one device, with no shardlang to import."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.fsdp
from click.testing import CliRunner

import shardlang as sl
from shardlang.cli import main
from shardlang.runtime.loss import whole_value
from tests.world import World

NET = """
import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.up = nn.Linear(16, 32)
        self.down = nn.Linear(32, 16, bias=False)

    def forward(self, x, gain=None):
        return x + self.down(F.gelu(self.up(self.norm(x)))) * (1.0 if gain is None else gain)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(24, 16)
        self.layers = nn.ModuleList(Block() for _ in range(3))
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.head = nn.Linear(16, 24, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("gain", torch.full((16,), 0.5))

    def forward(self, tokens):
        x = self.embed(tokens) * self.scale
        for layer in self.layers:
            x = layer(x, gain=self.gain)
        return self.head(x)


def build():
    return Net()


def batch(step):
    drawn = torch.randint(24, (8, 7), generator=torch.Generator().manual_seed(step))
    return {"tokens": drawn[:, :6].contiguous(), "targets": drawn[:, 1:].contiguous()}


def loss(model, batch):
    logits = model(batch["tokens"])
    return F.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten(), reduction="sum"), batch["targets"].numel()
"""

DECLARED = """mesh pod = dp:2 * tp:2
let n = 2
model net from net:build on pod {
  param embed.weight         : [v/tp d]
  param layers.*.up.weight   : [f/tp d]
  param layers.*.up.bias     : [f/tp]
  param layers.*.down.weight : [d f/tp]
  param otherwise            : whole
  call root (tokens: [b/dp s]) -> [b/dp s v]
  call layers.* (x: [b/dp s d]) -> [b/dp s d]
  call embed () -> [b/dp s d]
  checkpoint layers.*
  freeze layers.0.norm.**
  fsdp layers.* over dp { prefetch 1 }
  fsdp root over dp { reshard no }
}
"""

WITHOUT_US = "import sys\nsys.modules['shardlang'] = None\n"


def lines(command: list[str], folder: Path) -> list[dict[str, Any]]:
    """The JSON lines that a program prints, run where nobody can import shardlang."""
    environment = {**os.environ, "PYTHONPATH": str(folder / "bare"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project: a model, its declaration, and a Python that has no shardlang."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "sitecustomize.py").write_text(WITHOUT_US)
    (tmp_path / "net.py").write_text(NET)
    (tmp_path / "m.shard").write_text(DECLARED)
    yield tmp_path
    sys.modules.pop("net", None)


def alone(steps: int) -> list[dict[str, float]]:
    """The loss and the gradient's norm of each step on one device."""
    net = importlib.import_module("net")
    torch.manual_seed(0)
    model = net.build()
    for parameter in model.layers[0].norm.parameters():
        parameter.requires_grad_(False)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-3, weight_decay=0.1)
    found: list[dict[str, float]] = []
    for step in range(steps):
        total, count = net.loss(model, net.batch(step))
        (total / count).backward()
        norm = torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        found.append({"step": step, "loss": float(total.detach() / count), "grad_norm": float(norm)})
    return found


def written(*arguments: str) -> str:
    result = CliRunner().invoke(main, ["compile", "m.shard", "--emit", "python", *arguments])
    assert result.exit_code == 0, result.stderr
    return result.stdout


@pytest.mark.timeout(240)
def test_the_written_model_trains_as_one_device_does(folder: Path) -> None:
    (folder / "plain.py").write_text(written())
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "4", "--standalone"]
    ran = lines([*launch, "plain.py", "3"], folder)
    for ours, theirs in zip(ran, alone(3), strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-5)
        assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-4)


FUSED = """
import torch
from torch import nn
from torch.nn import functional as F
from net import batch, loss


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(16, 48)
        self.out = nn.Linear(16, 16)
        self.nothing = nn.Parameter(torch.zeros(0, 4))

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (4, 4)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(mixed.transpose(1, 2).flatten(2)) + self.nothing.sum()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(24, 16)
        self.layers = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(16, 23)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return F.pad(self.head(x), (0, 1), value=-10.0)


def build():
    return Net()
"""

OPTIONS = """mesh pod = {mesh}
let h = 4
model net from fused:build on pod {{
  param layers.*.qkv.weight : [(3 h/tp k) d]
  param layers.*.qkv.bias   : [(3 h/tp k)]
  param layers.*.out.weight : [d (h/tp k)]
  param otherwise           : whole
  call root (tokens: [b/{dp} s]) -> [b/{dp} s v]
  call layers.* (x: [b/{dp} s d]) -> [b/{dp} s d]
  compile {compiled} {{ backend aot_eager }}
  checkpoint layers.0
  fsdp layers.* {over} {{ {options} }}
  fsdp root {over} {{ reshard no }}
}}
"""
EVERY = {
    "fused": ("dp:2 * tp:2", "dp", "over dp", "reshard yes"),
    "to fewer ranks, kept on the host": ("dp:4 * tp:1", "dp", "over dp", "reshard 2, offload yes, prefetch 1"),
    "repeated, in half": ("r:2 * s:2 * tp:1", "r/s", "over s replicate r", "param bf16, reduce f32, output f32"),
}


def placed_run(folder: str, steps: int) -> list[dict[str, float]]:
    """What the program itself gives for the same."""
    sys.path.insert(0, folder)
    try:
        for name in ("fused", "net"):
            sys.modules.pop(name, None)
        home = importlib.import_module("fused")
    finally:
        sys.path.remove(folder)
    program = sl.load(f"{folder}/m.shard")
    torch.manual_seed(0)
    model = program.apply(home.build(), program.mesh("pod").device_mesh("cpu"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    found: list[dict[str, float]] = []
    for step in range(steps):
        with sl.global_view():
            mean = sl.global_mean(*home.loss(model, sl.place(model, home.batch(step))))
            mean.backward()
        norm = sl.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        found.append({"step": step, "loss": float(whole_value(mean)), "grad_norm": float(norm)})
    return found


@pytest.mark.nightly
@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", EVERY)
def test_the_written_model_does_all_that_the_program_does(world: World, folder: Path, name: str) -> None:
    mesh, dp, over, options = EVERY[name]
    (folder / "fused.py").write_text(FUSED)
    # Torch's compiler does not take strided products apart on DTensors.
    compiled = "head" if name == "fused" else "layers.1"
    (folder / "m.shard").write_text(OPTIONS.format(mesh=mesh, dp=dp, over=over, options=options, compiled=compiled))
    (folder / "plain.py").write_text(written())
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "4", "--standalone"]
    ran = lines([*launch, "plain.py", "3"], folder)
    near = 1e-2 if "bf16" in options else 1e-5
    for ours, theirs in zip(ran, world.run(placed_run, str(folder), 3, timeout=110)[0], strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=near)
        assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=10 * near)


def test_the_written_file_has_every_line_and_option(folder: Path) -> None:
    (folder / "fused.py").write_text(FUSED)
    options = {"dp": "dp", "over": "over dp", "options": "reshard 2", "compiled": "head"}
    (folder / "m.shard").write_text(OPTIONS.format(mesh="dp:4 * tp:2", **options))
    text = written()
    assert '"layers.*.qkv.weight": {"tp": strided_shard(0, 3)},' in text
    assert '("head", "aot_eager"),' in text
    assert '"layers.*.nothing",' in text
    assert '("layers.*", {"shard": ("dp",), "reshard": 2}),' in text
    assert "def strided_shard(" in text
    (folder / "m.shard").write_text(OPTIONS.format(mesh="dp:2 * tp:2", **options))
    assert '"reshard": 2' not in written()  # no fewer than it is stored over


def test_the_written_file_says_so_under_a_torch_whose_fsdp_takes_no_such_mesh(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(torch.distributed.fsdp, "DataParallelMeshDims")
    space: dict[str, Any] = {"__name__": "plain"}
    exec(compile(written(), "plain.py", "exec"), space)
    with pytest.raises(RuntimeError, match="newer torch"):
        space["make_groups"](torch.nn.Linear(2, 2), None)


def test_what_needs_more_than_torch_is_refused(folder: Path) -> None:
    """Float8 is torchao's; torch's compiler does not take products with strided placements."""
    (folder / "fused.py").write_text(FUSED)
    options = {"dp": "dp", "over": "over dp", "options": "reshard yes", "compiled": "layers.*"}
    for text in (
        DECLARED.replace("{ prefetch 1 }", "{ all_gather float8 }").replace("f/tp", "f"),
        OPTIONS.format(mesh="dp:2 * tp:2", **options),
    ):
        (folder / "m.shard").write_text(text)
        result = CliRunner().invoke(main, ["compile", "m.shard", "--emit", "python"])
        assert result.stderr.startswith("error[SL0664]")


def test_the_written_file_says_what_is_declared_and_imports_torch_alone(folder: Path) -> None:
    text = written()
    assert text == written()
    unknown = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F821", "-"],
        input=text, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert unknown.returncode == 0, unknown.stdout
    assert "shardlang" not in text.replace("written by shardlang", "").replace("``shardlang run``", "")
    assert '"layers.*.up.weight": {"tp": Shard(0)},' in text
    assert '"layers.0.norm.weight",' in text
    assert '"layers.*": ({"x": {"dp": Shard(0)}}, [("", {"dp": Shard(0)})]),' in text
    assert '("layers.*", {"shard": ("dp",), "prefetch": 1}),' in text
    assert '("", {"shard": ("dp",), "reshard": False}),' in text


def test_what_torch_has_no_word_for_is_a_fault(folder: Path) -> None:
    (folder / "m.shard").write_text(
        DECLARED.replace("(x: [b/dp s d]) -> [b/dp s d]", "(x: [(3/. b/dp) s d]) -> [_ s d]")
    )
    result = CliRunner().invoke(main, ["compile", "m.shard", "--emit", "python"])
    assert result.exit_code == 1
    assert result.stderr.startswith("error[SL0227]")


def test_an_open_axis_needs_its_size(folder: Path) -> None:
    (folder / "m.shard").write_text(DECLARED.replace("dp:2", "dp:?"))
    result = CliRunner().invoke(main, ["compile", "m.shard", "--emit", "python"])
    assert result.stderr.startswith("error[SL0316]")
    assert '"dp": 4,' in written("--nproc", "8")
