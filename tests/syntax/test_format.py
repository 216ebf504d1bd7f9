"""The formatter: it changes no meaning, loses no comment, and has nothing to do a second time."""

from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings

from shardlang.cli import main
from shardlang.diagnostics import ShardlangError
from shardlang.source import Source
from shardlang.syntax import show
from shardlang.syntax.format import format_source
from shardlang.syntax.lines import WIDTH
from shardlang.syntax.parse import parse, parse_change, parse_signature, parse_spec
from tests.syntax import corpus, strategies
from tests.syntax.texts import DESIGN, RARE


def formatted(text: str) -> str:
    return format_source(Source("test.shard", text))


def comments(text: str) -> list[str]:
    return sorted(line[line.index("#") :].rstrip() for line in text.split("\n") if "#" in line)


def hold_the_laws(text: str) -> None:
    result = formatted(text)
    assert parse(Source("a", result)) == parse(Source("a", text))
    assert formatted(result) == result
    assert comments(result) == comments(text)
    assert not any(line != line.rstrip(" ") for line in result.split("\n") if "#" not in line)


@given(strategies.texts())
@settings(max_examples=300, deadline=None)
def test_formatting_keeps_meaning_and_comments_and_is_idempotent(text: str) -> None:
    hold_the_laws(text)


def parses(text: str) -> bool:
    try:
        parse(Source("test.shard", text))
    except ShardlangError:
        return False
    return True


def test_the_laws_hold_on_walks_through_the_grammar() -> None:
    texts = [text for text in map(corpus.walk, range(150)) if parses(text)]
    assert len(texts) > 20
    for text in texts:
        hold_the_laws(text)


@pytest.mark.parametrize("text", [DESIGN, RARE, *corpus.written().values()])
def test_the_laws_hold_on_written_texts(text: str) -> None:
    hold_the_laws(text)


@given(strategies.texts(strategies.spec))
@settings(deadline=None)
def test_a_spec_is_shown_as_it_is_read(text: str) -> None:
    spec = parse_spec(Source("a", text))
    assert parse_spec(Source("a", show.spec(spec))) == spec


@given(strategies.texts(strategies.signature))
@settings(deadline=None)
def test_a_signature_is_shown_as_it_is_read(text: str) -> None:
    signature = parse_signature(Source("a", text))
    assert parse_signature(Source("a", show.signature(signature))) == signature


@given(strategies.texts(strategies.change))
@settings(deadline=None)
def test_a_change_is_shown_as_it_is_read(text: str) -> None:
    change = parse_change(Source("a", text))
    assert parse_change(Source("a", show.change(change))) == change


def test_neighbouring_lines_are_aligned() -> None:
    assert (
        formatted(
            """
link nvlink=450 GB/s,3us # fast
link ib = 50 GB/s, 12 us # slow
model m on pod {
 param a.weight: [d/tp]
 param layers.*.bias :[d]   # each
 call root(x:[b d])->[b d]
 fsdp layers.* over fsdp
 fsdp root over fsdp replicate dp {reshard no,prefetch 1}
}"""
        )
        == """\
link nvlink = 450 GB/s, 3 us  # fast
link ib     = 50 GB/s, 12 us  # slow
model m on pod {
  param a.weight      : [d/tp]
  param layers.*.bias : [d]  # each
  call  root (x: [b d]) -> [b d]
  fsdp  layers.* over fsdp
  fsdp  root     over fsdp replicate dp { reshard no, prefetch 1 }
}
"""
    )


def test_comments_stay_where_they_belong() -> None:
    text = """\
# of the file

# of d
let d = 4,  # of d again
    # of e
    e = 5

fn f(  # of f
  x: [b],  # of x
  y: [b]
  # of what comes out
) -> [b]  # of all

model m on pod {
  # first
  param a : [b]

  # second
  param b : [b]
  # last
}
# end
"""
    assert formatted(text) == text


def test_blank_lines_are_kept_once_and_not_at_the_edges_of_blocks() -> None:
    assert (
        formatted("\n\nlet a = 1\n\n\n\nlet b = 2\nrules on m {\n\n a -> b\n\n\n c -> d\n\n}\n\n\n")
        == "let a = 1\n\nlet b = 2\nrules on m {\n  a -> b\n\n  c -> d\n}\n"
    )


def test_a_comment_inside_a_short_line_goes_above_it() -> None:
    assert formatted("mesh pod = a:2 * # why\n  b:4 # beside") == "# why\nmesh pod = a:2 * b:4  # beside\n"


def test_wide_declarations_take_a_line_a_part() -> None:
    args = ", ".join(f"argument{i}: [batch/dp seq d]" for i in range(4))
    result = formatted(f"fn f({args}) -> [batch/dp seq d]\nlet {', '.join(f'name{i} = {i}*1000' for i in range(12))}")
    assert max(map(len, result.split("\n"))) < WIDTH
    assert result.startswith("fn f(\n  argument0: [batch/dp seq d],\n")
    assert "\n) -> [batch/dp seq d]\nlet name0 = 0*1000,\n    name1 = 1*1000,\n" in result


def test_brackets_stay_where_they_count() -> None:
    assert formatted("let x = (a+b)*c + (d*e) + ((f)) + (g+h) // 2*(i*j)") == (
        "let x = (a + b)*c + d*e + f + (g + h)//2*(i*j)\n"
    )


def test_no_text_stays_none() -> None:
    assert formatted("") == ""
    assert formatted("\n\n") == ""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "good.shard").write_text("let d = 4\n")
    (tmp_path / "loose.shard").write_text("let d=4")
    (tmp_path / "wrong.shard").write_text("let d 4")
    return tmp_path


def run(*args: str, stdin: str | None = None) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, ["fmt", *args], input=stdin)
    return result.exit_code, result.stdout, result.stderr


def test_fmt_writes_in_place(folder: Path) -> None:
    assert run(str(folder / "loose.shard"), str(folder / "good.shard")) == (0, "", "")
    assert (folder / "loose.shard").read_text() == "let d = 4\n"


def test_fmt_check_writes_nothing_and_tells(folder: Path) -> None:
    name = str(folder / "loose.shard")
    assert run("--check", name) == (1, "", f"{name} is not formatted\n")
    assert run("--check", str(folder / "good.shard")) == (0, "", "")
    assert (folder / "loose.shard").read_text() == "let d=4"


def test_fmt_diff_shows_what_would_change(folder: Path) -> None:
    name = str(folder / "loose.shard")
    code, out, _ = run("--diff", name)
    assert code == 1
    assert out == (
        f"--- {name}\n+++ {name} (formatted)\n@@ -1 +1 @@\n-let d=4\n\\ No newline at end of file\n+let d = 4\n"
    )
    assert (folder / "loose.shard").read_text() == "let d=4"


def test_fmt_reads_standard_input() -> None:
    assert run("-", stdin="let d=4") == (0, "let d = 4\n", "")
    assert run("--check", "-", stdin="let d=4")[0] == 1


def test_fmt_leaves_a_file_that_does_not_parse(folder: Path) -> None:
    code, out, err = run(str(folder / "wrong.shard"), str(folder / "loose.shard"))
    assert (code, out) == (1, "")
    assert "error[SL0109]" in err
    assert (folder / "wrong.shard").read_text() == "let d 4"
    assert (folder / "loose.shard").read_text() == "let d = 4\n"


def test_fmt_says_where_it_cannot_write(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "write_text", refuse)
    code, _, err = run(str(folder / "loose.shard"))
    assert code == 1
    assert "error[SL0225]" in err


def test_fmt_needs_files() -> None:
    assert run()[0] == 2
