"""``shardlang verify`` holds a file's functions and transitions to one device."""

from __future__ import annotations

import json
from pathlib import Path

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


def test_rules_of_a_file_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("f.shard").write_text(
        "mesh pod = tp:2\nrule aten.fft_fft: [... i!] -> [... i!]\nfn spectrum(x: [b/tp d]) -> [b/tp d]\n"
    )
    Path("verified_spectra.py").write_text("import torch\ndef spectrum(x): return torch.fft.fft(x).real\n")
    done = CliRunner().invoke(main, ["verify", "f.shard", "--functions", "verified_spectra"])
    assert done.exit_code == 0, done.output
    assert "held     fn spectrum" in done.output
