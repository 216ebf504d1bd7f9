"""Writes what every mistake of ``test_mistakes`` looks like: ``python -m tests.syntax.messages``."""

from pathlib import Path

from shardlang.diagnostics import ShardlangError
from shardlang.source import Source
from shardlang.syntax.parse import parse
from tests.syntax.test_mistakes import MISTAKES, marked

GOLDEN = Path(__file__).with_name("messages.txt")


def shown() -> str:
    """The diagnostics of all mistakes, as the command line prints them."""
    return "\n\n".join(_shown(marked(text)[0]) for text, _ in MISTAKES) + "\n"


def _shown(text: str) -> str:
    try:
        parse(Source("file.shard", text))
    except ShardlangError as error:
        return str(error)
    raise AssertionError(f"no mistake: {text}")


if __name__ == "__main__":
    GOLDEN.write_text(shown(), encoding="utf-8")
