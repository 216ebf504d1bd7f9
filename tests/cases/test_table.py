"""The table of cases: every number has a row, and every row names tests that exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
CASES = 43


@cache
def names_in(path: str) -> frozenset[str]:
    """The functions of a file that pytest collects."""
    body = ast.parse((ROOT / path).read_text()).body
    return frozenset(d.name for d in body if isinstance(d, ast.FunctionDef) and d.name.startswith("test_"))


def test_every_case_has_a_row_and_every_row_names_tests_that_exist() -> None:
    table = (Path(__file__).parent / "README.md").read_text()
    rows = re.findall(r"^\| (\d+) \|.*\| ([^|]+) \|$", table, re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, CASES + 1))
    named = [name.split("::") for _, cell in rows for name in cell.split(", ")]
    assert [f"{path}::{test}" for path, test in named if test not in names_in(path)] == []
