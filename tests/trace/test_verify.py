"""``shardlang verify`` holds a file's functions and transitions to one device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from shardlang.cli import main

FILE = """
mesh pod = dp:2 * tp:2
let d = 8
fn mlp on pod (x: bf16[batch/dp seq d], w1: bf16[d 4*d/tp], w2: bf16[4*d/tp d]) -> bf16[batch/dp seq d]
fn look on pod (table: [vocab/tp d], tokens: i64[batch/dp seq]) -> [batch/dp seq d]
reshard cache on pod: bf16[b/dp s kv/tp 4] => [b/dp s/tp kv 4]
reshard uneven on pod: f32[5/~dp 7] => [5 7/~tp]
"""
CODE = """
import torch
import torch.nn.functional as F

def mlp(x, w1, w2):
    return F.silu(x @ w1) @ w2

def look(table, tokens):
    return F.embedding(tokens, table)
"""


def test_functions_and_reshards_of_a_file_are_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("f.shard").write_text(FILE)
    Path("verified_functions.py").write_text(CODE)
    done = CliRunner().invoke(main, ["verify", "f.shard", "--functions", "verified_functions", "--format", "json"])
    assert done.exit_code == 0, done.output
    held = {v["name"]: v for v in json.loads(done.stdout)["held"]}
    assert held["mlp"]["gradients"] == 3
    assert held["mlp"]["collectives"] == 4
    assert held["look"]["shapes"] == {"table": [6, 8], "tokens": [4, 4]} or held["look"]["gradients"] == 1
    assert set(held) == {"mlp", "look", "cache", "uneven"}


def test_a_function_with_parameters_of_its_own_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("f.shard").write_text("mesh pod = dp:2 * tp:2\nfn net on pod (x: [b/dp/tp 4]) -> [b/dp 6]\n")
    Path("verified_layers.py").write_text(
        "import torch\nlayer = torch.nn.Linear(4, 6)\ndef net(x): return layer(x).relu()\n"
    )
    done = CliRunner().invoke(main, ["verify", "f.shard", "--functions", "verified_layers"])
    assert done.exit_code == 0, done.output
    assert "held     fn net" in done.output


def test_rules_of_a_file_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("f.shard").write_text(
        "mesh pod = tp:2\nrule aten.fft_fft: [... i!] -> [... i!]\nfn spectrum(x: [b/tp d]) -> [b/tp d]\n"
    )
    Path("verified_spectra.py").write_text("import torch\ndef spectrum(x): return torch.fft.fft(x).real\n")
    done = CliRunner().invoke(main, ["verify", "f.shard", "--functions", "verified_spectra"])
    assert done.exit_code == 0, done.output
    assert "held     fn spectrum" in done.output


MODEL = """
mesh pod = dp:2 * tp:1
model net from verified_models:build on pod {
  param up.weight : [f d]
  param otherwise : whole
  call root (x: [n/dp d]) -> [n/dp f]
  fsdp root over dp
}
"""
MODULE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(4, 6)
    def forward(self, x):
        return self.up(x).relu()

def build():
    return Net()
"""
STEP = """
def batch(step):
    return {"x": torch.arange(32.0).view(8, 4) / 32}

def loss(model, batch):
    factor = FACTOR
    return (model(batch["x"]) * factor).square().sum(), 8
"""


def verified(text: str, code: str, folder: Path, *options: str) -> tuple[int, dict[str, Any]]:
    """``verify`` of a file in a folder, in a process of its own: its ranks import what lies there."""
    (folder / "m.shard").write_text(text)
    (folder / "verified_models.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "-m", "shardlang", "verify", "m.shard", "--format", "json", *options],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=110,
    )
    return done.returncode, json.loads(done.stdout)


def test_a_model_of_a_file_is_held_on_ranks_of_this_machine(tmp_path: Path) -> None:
    code, found = verified(MODEL, MODULE + STEP.replace("FACTOR", "1"), tmp_path)
    assert code == 0, found
    (held,) = found["held"]
    assert (held["kind"], held["name"], held["gradients"]) == ("model", "net", 2)
    assert held["shapes"] == {"x": [8, 4]}
    assert held["collectives"] > 0
    assert found["skipped"] == []


def test_a_model_that_is_another_one_on_a_mesh_breaks_the_law(tmp_path: Path) -> None:
    factor = "2 if 'FSDP' in type(model).__name__ else 1"
    code, found = verified(MODEL, MODULE + STEP.replace("FACTOR", factor), tmp_path)
    assert code == 1
    assert [d["code"] for d in found["diagnostics"]] == ["SL0524"]
    assert found["held"] == []


def test_a_model_whose_module_says_no_batch_and_loss_cannot_be_held(tmp_path: Path) -> None:
    code, found = verified(MODEL, MODULE, tmp_path)
    assert code == 1
    assert [d["code"] for d in found["diagnostics"]] == ["SL0637"]


def test_a_model_that_this_machine_cannot_stand_for_is_told_as_skipped(tmp_path: Path) -> None:
    code, found = verified(MODEL.replace("dp:2 * tp:1", "dp:64 * tp:1"), MODULE, tmp_path)
    assert (code, found["held"]) == (0, [])
    assert "64" in found["skipped"][0] or "63" in found["skipped"][0]
    code, found = verified(MODEL.replace(" from verified_models:build", ""), MODULE, tmp_path)
    assert (code, len(found["skipped"])) == (0, 1)


def test_what_is_chosen_is_said_where_it_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("f.shard").write_text(
        "mesh pod = dp:2 * tp:2\nlet d = 256, n = 512\nfn two(x: [n/dp d], w: [d d/?]) -> [n/dp d/tp]\n"
    )
    Path("verified_choices.py").write_text("def two(x, w): return x @ w\n")
    command = ["verify", "f.shard", "--functions", "verified_choices", "--explain"]
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 0, done.output
    assert "held     fn two: x [512, 256], w [256, 256]" in done.output
    assert "`w`: the axis left open is chosen: [256 256/" in done.output
    assert "next best" in done.output
    as_json = json.loads(CliRunner().invoke(main, [*command, "--format", "json"]).stdout)
    assert "modelled, forward and backward" in as_json["held"][0]["choices"]
