"""The command line as a whole: its commands by name."""

from click.testing import CliRunner

from shardlang.cli import COMMANDS, main


def test_a_command_that_is_none_is_met_with_the_nearest() -> None:
    result = CliRunner().invoke(main, ["chekc", "x"])
    assert result.exit_code == 2
    assert "there is no command `chekc`; did you mean `check`?" in result.stderr


def test_every_command_shows_its_help() -> None:
    for name in COMMANDS:
        result = CliRunner().invoke(main, [name, "--help"])
        assert result.exit_code == 0, name
        assert "Usage:" in result.stdout
