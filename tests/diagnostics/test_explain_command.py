"""``shardlang explain``."""

from click.testing import CliRunner

from shardlang.cli import main
from shardlang.diagnostics import REGISTRY
from shardlang.diagnostics.explanations import explanation


def test_explain_prints_the_explanation() -> None:
    for spelling in ("SL0113", "sl0113", "0113", "113"):
        result = CliRunner().invoke(main, ["explain", spelling])
        assert result.exit_code == 0
        assert result.stdout == explanation("SL0113")


def test_explain_lists_every_code() -> None:
    result = CliRunner().invoke(main, ["explain"])
    assert result.exit_code == 0
    assert [line.split()[0] for line in result.stdout.splitlines()] == sorted(REGISTRY)


def test_unknown_code_is_misuse() -> None:
    for wrong in ("SL9999", "nonsense", "../SL0101"):
        result = CliRunner().invoke(main, ["explain", wrong])
        assert result.exit_code == 2
        assert "is no code" in result.stderr
