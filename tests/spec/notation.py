"""Lines and tokens of the texts in the chapter on notations, counted in one way for all of them."""

from __future__ import annotations

import re

from shardlang.diagnostics.explanations import Fence, fences
from tests.spec.examples import SPEC

TOKEN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9]+(?:\.[0-9]+)?|[^\sA-Za-z0-9_]")
"""A word, a number, or one sign. Quotes and what is between them are counted like the rest."""


def code(text: str) -> list[str]:
    """The lines of a text that have something on them but a comment, without their comments."""
    lines = [re.sub(r"(?:^|\s)(?:#|//)\s.*", "", line).rstrip() for line in text.splitlines()]
    return [line for line in lines if line.strip()]


def count(text: str) -> tuple[int, int]:
    """Lines and tokens."""
    lines = code(text)
    return len(lines), sum(len(TOKEN.findall(line)) for line in lines)


def texts() -> dict[str, Fence]:
    """The text of each section of the chapter, by the section's heading."""
    chapter = (SPEC / "notation.md").read_text(encoding="utf-8")
    found = {}
    for section in re.split(r"^## ", chapter, flags=re.MULTILINE)[1:]:
        heading = section.partition("\n")[0]
        found[heading] = next(fences(section))
    return found


def table() -> str:
    """The rows of the chapter's table of counts, as they should be."""
    rows = []
    for heading, fence in texts().items():
        lines, tokens = count(fence.text)
        rows.append(
            f"| {heading[0].lower() + heading[1:] if heading == 'This language' else heading} | {lines} | {tokens} |"
        )
    return "\n".join(rows)


if __name__ == "__main__":
    print(table())
