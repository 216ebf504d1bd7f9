"""``shardlang plan`` on what one may give it: edges of the notation, and options that are none."""

import pytest
from click.testing import CliRunner, Result

from shardlang.cli import main


def plan(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["plan", *arguments])


def test_a_scalar_stays_where_it_is_and_has_a_picture() -> None:
    result = plan("[] => []", "--mesh", "a:2")
    assert result.exit_code == 0, result.stderr
    assert "nothing to do" in result.stdout
    assert "| 0 1 |" in result.stdout


@pytest.mark.parametrize("cap", ["nan", "inf", "-inf", "foo", ""])
def test_a_cap_is_a_finite_number_or_none(cap: str) -> None:
    result = plan("[8/a] => [8]", "--mesh", "a:2", "--cap", cap)
    assert result.exit_code == 2
    assert f"`{cap}` is neither a number nor `none`" in result.stderr


def test_a_mesh_without_a_name_is_called_the_mesh() -> None:
    result = plan("[8/a] => [8]", "--mesh", "a:2 * a:2")
    assert result.exit_code == 1
    assert "error[SL0212]: two axes of the mesh are called `a`" in result.stderr
