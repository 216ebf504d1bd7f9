"""How diagnostics look."""

import json

from shardlang.diagnostics import Diagnostic, Label, ShardlangError
from shardlang.diagnostics.formats import github, show
from shardlang.diagnostics.render import render
from shardlang.source import Source, Span


def place(source: Source, text: str, nth: int = 0) -> Span:
    """The span of the n-th occurrence of a text."""
    start = -1
    for _ in range(nth + 1):
        start = source.text.index(text, start + 1)
    return source.span(start, start + len(text))


def drawn(diagnostic: Diagnostic) -> list[str]:
    return render(diagnostic).split("\n")


def test_a_diagnostic_looks_as_designed() -> None:
    source = Source("mlp.shard", "\n\n\nfn f(w: [embed/tp mlp/tp]) -> ...")
    diagnostic = Diagnostic(
        "mesh axis `tp` splits two dims of `w`",
        place(source, "tp", 1),
        code="SL0203",
        label="used again here",
        labels=(Label(place(source, "tp"), "first used here"),),
        notes=("an axis may split at most one dim of a tensor",),
        helps=("remove one use of `tp`",),
    )
    assert drawn(diagnostic) == [
        "error[SL0203]: mesh axis `tp` splits two dims of `w`",
        " --> mlp.shard:4:23",
        "  |",
        "4 | fn f(w: [embed/tp mlp/tp]) -> ...",
        "  |                -- first used here",
        "  |                       ^^ used again here",
        "  = note: an axis may split at most one dim of a tensor",
        "  = help: remove one use of `tp`",
    ]


def test_the_gutter_is_as_wide_as_the_largest_line_number() -> None:
    source = Source("a", "\n" * 9 + "x\n" + "\n" * 89 + "y")
    diagnostic = Diagnostic("m", place(source, "y"), labels=(Label(place(source, "x"), "here"),), notes=("n",))
    assert drawn(diagnostic)[1:] == [
        "   --> a:100:1",
        "    |",
        " 10 | x",
        "    | - here",
        "...",
        "100 | y",
        "    | ^",
        "    = note: n",
    ]


def test_a_span_of_several_lines_is_marked_in_its_first_and_last() -> None:
    source = Source("a", "fn f(\n  x: [b]\n)")
    assert drawn(Diagnostic("m", source.span(3, len(source.text)), label="all of it"))[3:] == [
        "1 | fn f(",
        "  |    ^^",
        "...",
        "3 | )",
        "  | ^ all of it",
    ]


def test_a_span_that_ends_with_its_line_stays_in_it() -> None:
    source = Source("a", "let\nlet")
    assert drawn(Diagnostic("m", source.span(0, 4)))[3:] == ["1 | let", "  | ^^^"]


def test_tabs_and_wide_characters_keep_marks_in_place() -> None:
    source = Source("a", "\tx\t# 日本 é e\u0301 !")
    assert drawn(Diagnostic("m", place(source, "x")))[3:5] == ["1 |     x   # 日本 é e\u0301 !", "  |     ^"]
    assert drawn(Diagnostic("m", place(source, "!")))[4] == "  |" + " " * 20 + "^"
    assert drawn(Diagnostic("m", place(source, "日本")))[4] == "  |" + " " * 11 + "^^^^"


def test_the_end_of_the_text_can_be_marked() -> None:
    source = Source("a", "let")
    assert drawn(Diagnostic("m", source.span(3, 3)))[1:] == [" --> a:1:4", "  |", "1 | let", "  |    ^"]


def test_a_fault_without_text_has_no_excerpt() -> None:
    assert drawn(Diagnostic("m", code="SL0901", notes=("n",))) == ["error[SL0901]: m", "  = note: n"]


def test_a_file_whose_text_is_not_at_hand_is_named_alone() -> None:
    assert drawn(Diagnostic("m", Source("a", "").whole(), notes=("n",)))[1:] == [" --> a", "  = note: n"]


def test_what_a_terminal_would_act_on_is_replaced() -> None:
    source = Source("a\x1b[2J", "x \x1b[31m\u202e y")
    text = render(Diagnostic("m\x1b", place(source, "y")))
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_colour_changes_no_letter() -> None:
    source = Source("a", "let d = 4\nlet d = 5")
    span = place(source, "d", 1)
    diagnostic = Diagnostic("m", span, code="SL0201", label="l", labels=(Label(place(source, "d"), "o"),), helps=("h",))
    coloured = render(diagnostic, colour=True)
    assert "\x1b[" in coloured
    for sequence in ("\x1b[1;31m", "\x1b[1;34m", "\x1b[1m", "\x1b[0m"):
        coloured = coloured.replace(sequence, "")
    assert coloured == render(diagnostic)


def test_a_long_line_is_shown_in_part() -> None:
    source = Source("a", "x" * 5000 + "!" + "y" * 5000)
    lines = drawn(Diagnostic("m", place(source, "!")))
    assert max(map(len, lines)) < 200
    assert lines[3][lines[4].index("^")] == "!"


def test_a_string_in_a_python_file_is_shown_where_it_stands() -> None:
    whole = 'import x\n\n@sharded("(x: [b]) -> [b/tp]")\ndef f(x): ...\n'
    source = Source("m.py", "(x: [b]) -> [b/tp]", first_line=3, first_column=11, context=whole)
    assert drawn(Diagnostic("m", place(source, "tp")))[1:] == [
        " --> m.py:3:26",
        "  |",
        '3 | @sharded("(x: [b]) -> [b/tp]")',
        "  |                          ^^",
    ]


def test_a_string_whose_file_is_not_at_hand_is_shown_by_itself() -> None:
    source = Source("m.py", "(x: [b]) -> [b/tp]", first_line=3, first_column=11)
    assert drawn(Diagnostic("m", place(source, "tp")))[1:] == [
        " --> m.py:3:26",
        "  |",
        "3 | (x: [b]) -> [b/tp]",
        "  |                ^^",
    ]


def test_a_label_in_another_file_names_it() -> None:
    here, there = Source("a.shard", "let d = 4"), Source("b.shard", "\nlet d = 5")
    diagnostic = Diagnostic("m", place(here, "d"), labels=(Label(place(there, "d"), "bound here"),))
    assert drawn(diagnostic)[-3:] == [" ::: b.shard:2", "2 | let d = 5", "  |     - bound here"]


def test_errors_raised_together_are_printed_together() -> None:
    error = ShardlangError([Diagnostic("one", code="SL0901"), Diagnostic("two", code="SL0901")])
    assert str(error) == "error[SL0901]: one\n\nerror[SL0901]: two"


def test_json_gives_lines_and_columns() -> None:
    source = Source("a", "\nlet d = 5")
    [shown] = json.loads(show([Diagnostic("m", place(source, "d"), code="SL0201", helps=("h",))], "json"))
    assert shown == {
        "code": "SL0201",
        "severity": "error",
        "message": "m",
        "span": {"file": "a", "line": 2, "column": 5, "end_line": 2, "end_column": 6},
        "labels": [],
        "notes": [],
        "helps": ["h"],
    }
    assert show([], "json") == "[]"


def test_github_commands_escape_what_they_are_made_of() -> None:
    source = Source("a,b:c", "let d")
    diagnostic = Diagnostic("100%", place(source, "d"), code="SL0201", severity="warning", notes=("n",))
    assert github(diagnostic) == (
        "::warning file=a%2Cb%3Ac,line=1,endLine=1,title=SL0201,col=5,endColumn=5::100%25%0An"
    )
    assert github(Diagnostic("m", code="SL0901")) == "::error title=SL0901::m"


def test_of_very_many_diagnostics_the_first_errors_are_shown_and_the_rest_counted() -> None:
    source = Source("many.shard", "let a = 1")
    warnings = [Diagnostic("a warning", place(source, "a"), code="SL0222", severity="warning")]
    errors = [Diagnostic(f"error number {i}", place(source, "a"), code="SL0202") for i in range(500)]
    text = str(ShardlangError([*warnings, *errors]))
    assert "error number 99" in text
    assert "error number 100" not in text
    assert text.endswith("\n\nand 401 more")
    assert len(json.loads(show(errors, "json"))) == 500
