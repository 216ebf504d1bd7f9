"""Commands that need no torch import none; what goes wrong inside is a code, not a traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from shardlang import cli
from shardlang.cli import main

TEXT = """mesh m = dp:2 * tp:2
model net from net:build on m {
  param otherwise : whole
}
"""
LIGHT = [["--help"], ["check", "--no-model", "m.shard"], ["check", "plain.shard"], ["compile", "--no-model", "m.shard"]]


@pytest.mark.parametrize("arguments", LIGHT, ids=" ".join)
def test_no_torch_is_imported(arguments: list[str], tmp_path: Path) -> None:
    (tmp_path / "m.shard").write_text(TEXT)
    (tmp_path / "plain.shard").write_text("mesh m = dp:2\nreshard r: [8/dp] => [8]\n")
    command = [sys.executable, "-X", "importtime", "-m", "shardlang", *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "shardlang.cli" in imported
    assert not {name for name in imported if name.split(".")[0] in ("torch", "numpy", "safetensors")}


def test_every_command_is_listed_and_has_help() -> None:
    listed = CliRunner().invoke(main, ["--help"]).stdout
    for name in cli.COMMANDS:
        assert f"  {name} " in listed
        result = CliRunner().invoke(main, [name, "--help"])
        assert result.exit_code == 0
        assert "Usage:" in result.stdout


def test_a_fault_of_ours_is_a_code_and_exit_2(monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    def command() -> None:
        raise RuntimeError("a thing\nthat nobody foresaw")

    monkeypatch.delenv("SHARDLANG_TRACEBACK", raising=False)
    monkeypatch.setattr(main, "get_command", lambda ctx, name: command)
    result = CliRunner().invoke(main, ["check"])
    assert result.exit_code == 2
    assert result.stderr.startswith("error[SL0901]: shardlang failed: RuntimeError: a thing\n")
    assert "Traceback" not in result.stderr
