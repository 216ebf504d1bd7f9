"""Writes the chapter on the grammar: ``python -m tests.spec.grammar_chapter``."""

import re
from pathlib import Path

HEAD = """\
# The grammar

Generated from `grammar/shardlang.lark`; LALR(1) with a contextual lexer, which looks only for what the grammar can take
in a place. `A?` is optional, `A*` any number, `A+` at least one, `[A]` optional as well, `A | B` either. Names in
capitals are terminals, given as regular expressions at the end; a number after a terminal's name is its priority.
"""


def chapter(grammar: str) -> str:
    """The chapter's text: the grammar's sections, each under its heading."""
    out = [HEAD]
    for block in re.split(r"\n\n+", grammar.strip()):
        lines = block.splitlines()
        if len(lines) == 1 and lines[0].startswith("// "):
            out.append(f"## {lines[0].removeprefix('// ')}\n")
        elif all(line.startswith("// ") for line in lines):
            continue
        else:
            out.append("```text\n" + block + "\n```\n")
    return "\n".join(out)


if __name__ == "__main__":
    from shardlang.syntax.grammar import grammar_text

    path = Path(__file__).parents[2] / "spec" / "grammar.md"
    path.write_text(chapter(grammar_text()), encoding="utf-8")
