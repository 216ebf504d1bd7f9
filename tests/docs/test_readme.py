"""The README is true: its files are the repository's, its commands print what it shows, its Python runs."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from shardlang.cli import main

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
BLOCK = re.compile(r"(?:<!-- file: (?P<file>\S+) -->\n)?```(?P<kind>\w+)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks(kind: str) -> list[tuple[str | None, str]]:
    return [(m["file"], m["text"]) for m in BLOCK.finditer(README) if m["kind"] == kind]


def test_the_demos_file_is_shown_as_it_is() -> None:
    shown = dict(blocks("shard"))
    assert shown["examples/llama/llama.shard"] == (ROOT / "examples/llama/llama.shard").read_text()


@pytest.mark.parametrize("text", [text for _, text in blocks("console")])
def test_commands_print_what_is_shown(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for file, content in blocks("shard"):
        if file is not None and "/" not in file:
            (tmp_path / file).write_text(content)
    monkeypatch.chdir(tmp_path)
    first, shown = text.split("\n", 1)
    words = shlex.split(first.removeprefix("$ "))
    assert words[0] == "shardlang"
    result = CliRunner().invoke(main, words[1:], prog_name="shardlang")
    said = [line.rstrip() for line in result.output.rstrip().split("\n")]
    assert said == [line.rstrip() for line in shown.rstrip().split("\n")]


def test_python_runs_as_shown() -> None:
    names: dict[str, object] = {"__name__": "readme"}
    for _, text in blocks("python"):
        exec(compile(text, "README.md", "exec"), names)
    assert "all_reduce tp" in str(names["mlp"].plan)


def test_the_picture_is_what_its_command_draws() -> None:
    found = re.search(r"`(shardlang viz [^`]+)`\):\n\n!\[[^]]*\]\(([^)]+)\)", README)
    assert found is not None
    result = CliRunner().invoke(main, shlex.split(found[1])[1:])
    assert result.output.strip() == (ROOT / found[2]).read_text().strip()


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target
