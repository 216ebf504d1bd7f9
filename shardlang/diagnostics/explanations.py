"""The explanation of each code: its cause, an example that yields just it, and the repair; one Markdown file a code."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from attrs import frozen

FOLDER = Path(__file__).parent / "explain"


@frozen
class Fence:
    """A fenced block of a Markdown text: its language, the words after it, its text, and the line it begins at."""

    language: str
    words: tuple[str, ...]
    text: str
    line: int


def explanation(code: str) -> str | None:
    """The explanation of a code as Markdown; ``None`` where there is none."""
    path = FOLDER / f"{code}.md"
    return path.read_text(encoding="utf-8") if path.is_file() else None


def fences(markdown: str) -> Iterator[Fence]:
    """The fenced blocks of a Markdown text, in order."""
    opened: list[str] | None = None
    body: list[str] = []
    start = 0
    for number, line in enumerate(markdown.split("\n"), 1):
        if not line.startswith("```"):
            body.append(line)
        elif opened is None:
            opened, body, start = line[3:].split() or [""], [], number
        else:
            yield Fence(opened[0], tuple(opened[1:]), "\n".join(body) + "\n", start)
            opened = None


__all__ = ["FOLDER", "Fence", "explanation", "fences"]
