"""The page of real models is true: it has all of them, with as many lines as they have, and they are well written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from shardlang import compilation
from shardlang.source import Source
from shardlang.syntax.format import format_source
from tests.models.real import NAMES

ROOT = Path(__file__).parents[2] / "examples/models"
PAGE = (ROOT / "README.md").read_text()
ROWS = {m[1]: int(m[2]) for m in re.finditer(r"^\| \[(\w+)\]\(\1\.shard\) \| \w+ \| (\d+) \|", PAGE, re.MULTILINE)}


def test_the_page_has_every_model_and_the_tests_train_every_model() -> None:
    assert sorted(ROWS) == sorted(f.stem for f in ROOT.glob("*.shard")) == sorted(NAMES)


@pytest.mark.parametrize("name", sorted(ROWS))
def test_the_lines_are_counted(name: str) -> None:
    lines = (ROOT / f"{name}.shard").read_text().splitlines()
    assert ROWS[name] == sum(bool(line.strip()) and not line.strip().startswith("#") for line in lines)


@pytest.mark.parametrize("name", sorted(ROWS))
def test_the_files_are_formatted_and_free_of_faults(name: str) -> None:
    text = (ROOT / f"{name}.shard").read_text()
    source = Source(f"{name}.shard", text)
    assert format_source(source) == text
    program = compilation.Compilation(source).program
    assert list(program.models) == [name]
