"""``shardlang lsp`` without the package that it needs."""

import sys

import pytest
from click.testing import CliRunner

from shardlang.cli import main


def test_without_pygls_the_command_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in sys.modules if n.partition(".")[0] in ("pygls", "lsprotocol") or n == "shardlang.lsp"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pygls", None)
    monkeypatch.setitem(sys.modules, "lsprotocol", None)
    result = CliRunner().invoke(main, ["lsp"])
    assert result.exit_code == 2
    assert "pip install 'shardlang[lsp]'" in result.stderr
