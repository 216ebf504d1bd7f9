"""What an editor is told, as functions of the text: positions, hover, definitions, completion."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardlang.editor.complete import complete
from shardlang.editor.definition import definition
from shardlang.editor.document import Document
from shardlang.editor.hover import hover
from shardlang.editor.positions import Encoding, Lines
from shardlang.syntax import tree
from tests.syntax import corpus

HEAD = """\
link ib = 50 GB/s, 1 us
mesh pod = dp:2@ib * tp:4
let d = 4096
fn f on pod (x: bf16[batch/dp seq d]) -> [batch/dp seq d]
model llama from a:b on pod {
  param x.y : [d d/tp]
}
"""


def labels(text: str) -> list[str]:
    """What completion offers at the end of a text."""
    return [i.text for i in complete(Document("x", text), len(text)).items]


def shown(text: str, part: str) -> str:
    """What hover shows at a part of a text."""
    found = hover(Document("x", text), text.index(part))
    return "" if found is None else found.markdown


@given(st.text(alphabet="a\r\n\tä€𝄞"), st.sampled_from(["utf-8", "utf-16", "utf-32"]))
def test_offset_and_position_are_inverse(text: str, encoding: Encoding) -> None:
    lines = Lines(text, encoding)
    for offset in range(len(text) + 1):
        if text[max(0, offset - 1) : offset + 1] != "\r\n":
            assert lines.offset(*lines.position(offset)) == offset


@given(st.text(alphabet="a\r\nä€𝄞"), st.sampled_from(["utf-8", "utf-16", "utf-32"]))
def test_a_column_counts_the_code_units_of_its_encoding(text: str, encoding: Encoding) -> None:
    codec, size = {"utf-8": ("utf-8", 1), "utf-16": ("utf-16-le", 2), "utf-32": ("utf-32-le", 4)}[encoding]
    for offset in range(len(text) + 1):
        line, column = Lines(text, encoding).position(offset)
        before = re.split(r"\r\n|\n|\r", text[:offset] + ("\n" if text[offset - 1 : offset + 1] == "\r\n" else ""))
        if text[max(0, offset - 1) : offset + 1] != "\r\n":
            assert (line, column) == (len(before) - 1, len(before[-1].encode(codec)) // size)


def test_a_position_beyond_a_line_is_its_end() -> None:
    assert Lines("ab\ncd").offset(0, 99) == 2
    assert Lines("ab\r\ncd").offset(0, 99) == 2
    assert Lines("ab\ncd").offset(9, 0) == 5
    assert Lines("𝄞b").offset(0, 1) == 0


CASES = [
    ("fn g on ", ["pod"]),
    ("fn g on pod (x: b", ["bf16", "bool"]),
    ("fn g on pod (x: bf16[", ["batch", "d", "seq"]),
    ("fn g on pod (x: bf16[ba", ["batch"]),
    ("fn g on pod (x: bf16[batch/", ["dp", "tp"]),
    ("fn g on pod (x: bf16[batch/~t", ["tp"]),
    ("fn g on pod (x: bf16[(3 d/", ["dp", "tp"]),
    ("fn g on pod (x: bf16[batch]{+", ["dp", "tp"]),
    ("fn g on pod (x: bf16[batch]{max dp, m", ["max", "min"]),
    ("fn g on pod (x: bf16[batch] g", ["grad"]),
    ("fn g on pod (x: bf16[batch]) ", []),
    ("mesh q = a:2@", ["ib"]),
    ("mesh q = a:2 ra", ["ranks"]),
    ("transfer llama => ", ["llama"]),
    ("budget llama { ", ["forbid", "memory", "peak"]),
    ("budget llama { forbid all_g", ["all_gather"]),
    ("budget llama { forbid all_gather on ", ["ib"]),
    ("rules on pod { d -> ", ["dp", "tp"]),
    ("rules on pod { d -> dp el", ["else"]),
    ("split pod.", ["dp", "tp"]),
    ("let e = ", ["d"]),
    ("model m ", ["from", "on"]),
    ("model m from a:b on pod { ", ["call", "checkpoint", "compile", "freeze", "fsdp", "param"]),
    ("model m from a:b on pod { param ", ["otherwise"]),
    ("model m from a:b on pod { call ", ["root"]),
    ("model m from a:b on pod {\n  param x : ] oops\n  fsdp root over ", ["dp", "tp"]),
    ("model m from a:b on pod { fsdp root over dp { pre", ["prefetch"]),
    ("model m from a:b on pod { fsdp root over dp { reshard ", ["no", "yes"]),
    ("# re", []),
]


@pytest.mark.parametrize(("text", "offered"), CASES)
def test_completion_offers_what_fits(text: str, offered: list[str]) -> None:
    assert labels(HEAD + text) == offered


def test_a_broken_declaration_before_does_not_silence_completion() -> None:
    assert labels("mesh pod = dp:2\nlet = = 3\nfn f on pod (x: [b/") == ["dp"]


def test_hover_names_who_bound_a_size_across_an_arrow() -> None:
    text = "mesh m = a:2\nreshard r on m: [n/a 4] => [8 4/a]\n"
    assert "`n` = 8, by the other side of `=>`" in shown(text, "n/a")
    assert "a rank holds `[4 4]` of `r`" in shown(text, "n/a")


def test_hover_shows_the_local_shape_with_names_where_sizes_are_open() -> None:
    text = "mesh m = a:2 * b:? * c:1\nfn f (x: i8[s/a t/b u/c 9]) -> whole\n"
    assert shown(text, "i8") == "a rank holds `i8[s/2 t/b u 9]` of `x`"
    assert shown("mesh m = a:2\nfn f (x: i8[5/~a 3]) -> whole", "i8") == (
        "the first rank holds `i8[3 3]` of `x`, the last one `[2 3]`: 9 B"
    )
    assert "of the result; the value is the sum over `a` of" in shown("mesh m = a:2\nfn f () -> [d]{+a}", "[d]")


def test_hover_tells_of_links_meshes_parts_and_rules() -> None:
    text = corpus.EVERYTHING
    assert shown(text, "serve") == "mesh `serve`: `tp:8`, 8 ranks, 0 to 7"
    assert "made of `tp0:2` * `tp1:4`" in shown(text, "tp:8@nvlink   #")
    assert "a part of axis `tp`" in shown(text, "tp0:2")
    assert "split over `tp`, else whole" in shown(text, "vocab ->")


def test_definition_of_a_free_size_is_where_its_declaration_names_it_first() -> None:
    text = "mesh m = a:2\nfn f (x: [n]) -> [n/a]\nfn g (x: [n]) -> [n]\n"
    first = definition(Document("x", text), text.index("n/a"))
    assert first is not None
    assert first.start == text.index("n])")


def test_what_can_be_read_of_a_broken_text_keeps_its_places() -> None:
    text = corpus.EVERYTHING.replace("call  root", "call  ]root").replace("let d", "let [d")
    document = Document("x", text)
    assert document.diagnostics
    model = next(d for d in document.file.decls if isinstance(d, tree.Model))
    assert len(model.items) == 10
    assert model.items[-1].span.text == "freeze tok_embeddings.**"
    at = definition(document, text.index("fsdp replicate dp"))
    assert at is not None
    assert at.start == text.index("fsdp:4")


@settings(deadline=None, max_examples=60)
@given(
    st.one_of(
        st.text(max_size=80),
        st.text(alphabet="[](){}/~.?:=>-#@\n meshpodltfn1x*,", max_size=120),
        st.builds(lambda seed, cut: corpus.walk(seed, 30)[:cut], st.integers(0, 999), st.integers(0, 400)),
    ),
    st.data(),
)
def test_every_question_about_any_text_has_an_answer(text: str, data: st.DataObject) -> None:
    document = Document("x", text)
    assert isinstance(document.diagnostics, tuple)
    for offset in data.draw(st.lists(st.integers(0, len(text)), max_size=6)):
        hover(document, offset)
        definition(document, offset)
        complete(document, offset)
