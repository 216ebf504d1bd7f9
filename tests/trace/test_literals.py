"""Errors point into the string literals of the user's Python file, however the string is written there."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardlang.trace.literals import placed

FILE = '''\
f = sharded("(x: [b/dp d/TQ]) -> [b]")
@sharded(
    "(x: [b/dp d], "  # a comment
    r"w: [d f/TQ])"
        " -> [b]", pod)
def g(x, w): ...
f = sharded("""
    (x: [b],
     w: [d/TQ])
""")
é = sharded("(y: [d/TQ]) -> [d]")
f = sharded("(x: [b],\\n w: [d/TQ]) -> [b]")
'''


@pytest.mark.parametrize(
    ("text", "line", "place"),
    [
        ("(x: [b/dp d/TQ]) -> [b]", 1, (1, 26)),
        ("(x: [b/dp d], w: [d f/TQ]) -> [b]", 2, (4, 15)),
        ("\n    (x: [b],\n     w: [d/TQ])\n", 7, (9, 12)),
        ("(y: [d/TQ]) -> [d]", 11, (11, 21)),
    ],
)
def test_a_literal_is_found_where_it_stands(text: str, line: int, place: tuple[int, int], tmp_path: Path) -> None:
    path = tmp_path / "user.py"
    path.write_text(FILE)
    source = placed(text, str(path), line)
    at = text.index("TQ")
    span = source.span(at, at + 2)
    assert source.name == str(path)
    assert (span.begin, span.finish) == (place, (place[0], place[1] + 2))
    assert source.line(place[0])[place[1] - 1 :][:2] == "TQ"


def test_what_ends_with_one_literal_does_not_end_in_the_next(tmp_path: Path) -> None:
    path = tmp_path / "user.py"
    path.write_text(FILE)
    text = "(x: [b/dp d], w: [d f/TQ]) -> [b]"
    span = placed(text, str(path), 2).span(0, text.index("w:"))
    assert (span.begin, span.finish) == ((3, 6), (3, 20))


def test_a_string_with_escapes_is_shown_by_itself(tmp_path: Path) -> None:
    path = tmp_path / "user.py"
    path.write_text(FILE)
    assert placed("(x: [b],\n w: [d/TQ]) -> [b]", str(path), 12).name == "<signature>"
