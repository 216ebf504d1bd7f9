"""What cannot be written is the user's disk, not a fault of ours."""

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
