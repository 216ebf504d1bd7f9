"""``shardlang import``: text on standard output, what is left out on standard error, and the exit code."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from shardlang.cli import main


def run(*arguments: str, stdin: str = "") -> Result:
    return CliRunner().invoke(main, list(arguments), input=stdin)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("jax", {"mesh": {"a": 2}, "specs": {"w": ["a"]}, "shapes": {"w": [4, 3]}}),
        ("hf", {"tp_plan": {"q": "colwise"}, "mesh": {"tp": 2}, "parameters": {"q.weight": [4, 4]}}),
    ],
)
def test_what_is_written_passes_check_and_fmt(kind: str, said: object, tmp_path: Path) -> None:
    result = run("import", kind, "-", stdin=json.dumps(said))
    assert (result.exit_code, result.stderr) == (0, "")
    file = tmp_path / "imported.shard"
    file.write_text(result.stdout)
    assert run("check", "--no-model", str(file)).exit_code == 0
    assert run("fmt", "--check", str(file)).exit_code == 0


def test_a_warning_leaves_the_exit_code_at_zero_and_an_error_does_not() -> None:
    warned = run("import", "hf", "-", stdin='{"q": "colwise"}')
    assert warned.exit_code == 0
    assert "warning[SL0262]" in warned.stderr
    left_out = run("import", "hf", "-", stdin='{"q": "colwise", "r": "local"}')
    assert left_out.exit_code == 1
    assert "error[SL0261]" in left_out.stderr
    assert "param q.weight" in left_out.stdout


def test_a_text_that_is_no_json_leaves_standard_output_empty() -> None:
    result = run("import", "jax", "-", stdin="{")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "error[SL0250]" in result.stderr
