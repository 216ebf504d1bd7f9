"""``shardlang run`` as a user starts it, and which processes of a run are alive."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def start(*arguments: str, out: Path, **environment: str) -> subprocess.Popen[str]:
    """Starts ``shardlang run ARGUMENTS``, with results under ``out``."""
    return subprocess.Popen(
        [sys.executable, "-m", "shardlang", "run", *arguments, "--out", str(out)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str], timeout: float = 300) -> tuple[int, str, str]:
    """Its exit code, standard output and standard error."""
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.terminate()
        process.communicate(timeout=20)
        raise
    return process.returncode, out, err


def run(*arguments: str, out: Path, **environment: str) -> tuple[int, str, str]:
    return finish(start(*arguments, out=out, **environment))


def alive(out: Path) -> list[int]:
    """The processes that were started for results under ``out``."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes().decode(errors="replace")
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if str(out) in command and state != "Z" and "shardlang.cli.worker" in command:
                found.append(int(entry.name))
    return found


def wait_until(condition: object, seconds: float) -> bool:
    """Waits for ``condition()`` to hold."""
    assert callable(condition)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.1)
    return bool(condition())
