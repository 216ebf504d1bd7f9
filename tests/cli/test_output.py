"""Where products go, and what is said where they cannot be written: the user's disk is no fault of ours."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the device that is always full is Linux's")
def test_a_full_disk_is_said_and_exits_2() -> None:
    command = [sys.executable, "-m", "shardlang", "plan", "[8/a] => [8]", "--mesh", "a:2"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr == "Error: the output cannot be written: no space left on device\n"


def test_a_dash_as_output_is_standard_output(tmp_path: Path) -> None:
    (tmp_path / "a.shard").write_text("mesh pod = a:2\n\nreshard r on pod: [8/a] => [8]\n")
    command = [sys.executable, "-m", "shardlang", "lock", "a.shard"]
    by_itself, by_dash = (
        subprocess.run(c, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True).stdout
        for c in (command, [*command, "-o", "-"])
    )
    assert by_dash == by_itself != ""
    assert [p.name for p in tmp_path.iterdir()] == ["a.shard"]
