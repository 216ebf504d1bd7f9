"""The table of operators in the reference is the one that the rules give."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_table_of_operators_is_current() -> None:
    # In a process of its own: other tests declare rules.
    done = subprocess.run(
        [sys.executable, "-m", "tests.trace.operator_table"], cwd=ROOT, capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == (ROOT / "spec" / "operators.md").read_text(), (
        "run: python -m tests.trace.operator_table > spec/operators.md"
    )
