"""Each mistake gets its code, at its own characters; several of one file are found together."""

import pytest

from shardlang.diagnostics import REGISTRY, ShardlangError
from shardlang.source import Source
from shardlang.syntax.decode import MAX_BYTES, decode
from shardlang.syntax.parse import MAX_FAULTS, parse, parse_axes, parse_change, parse_signature, parse_spec

MODEL = "model m on pod {\n  param otherwise : whole\n  "

# text with the place marked by « and », and the code
MISTAKES = [
    ("let d = «9223372036854775808»", "SL0119"),
    ("let d = «99999999999999999999999999999999»", "SL0119"),
    ("mesh pod = tp«=»8", "SL0112"),
    ("fn f(x«=»[b]) -> [b]", "SL0112"),
    ("let d«:» 4", "SL0134"),
    ("mesh pod«:» tp:8", "SL0134"),
    ("link ib«:» 50 GB/s, 12 us", "SL0134"),
    ("fn f(x: [b«,» s]) -> [b s]", "SL0113"),
    ('fn f(x: «P("dp", None)») -> [b]', "SL0114"),
    ("fn f(x: «Shard(0)») -> [b]", "SL0114"),
    ("fn f(x: [b/«'tp'»]) -> [b]", "SL0116"),
    ("fn f(x: «“[b]”») -> [b]", "SL0116"),
    ("reshard c: [b] «->» [b/tp]", "SL0115"),
    ("transfer a «->» b", "SL0115"),
    ("fn f(x: [b]) «=>» [b/tp]", "SL0115"),
    ("«mehs» pod = tp:8", "SL0111"),
    ("«Mesh» pod = tp:8", "SL0111"),
    ("let d = 4\n«x» = 5", "SL0111"),
    (MODEL + "«parm» a : [d]\n}", "SL0111"),
    ("budget m { «memry» <= 1 GiB }", "SL0111"),
    ("mesh pod = tp:8 «rank» 0..7", "SL0109"),
    ("mesh pod = tp «8»", "SL0109"),
    ("let d = 4«]»", "SL0108"),
    ("fn f(x: [b s]«]») -> [b]", "SL0108"),
    ("«}»", "SL0108"),
    ("fn f(x: «[»b s) -> [b]", "SL0107"),
    ("fn f(x: «[»b s, w: [d]) -> [b]", "SL0107"),
    ("fn f(x: [b «(»s t]) -> [b]", "SL0107"),
    ("fn f«(»x: [b]", "SL0107"),
    ("reshard c: «[»b s => [b s]", "SL0107"),
    ("model m on pod «{»\n  param a : [d]\n\nlet d = 4", "SL0107"),
    (MODEL + "param a : «[»d\n  param b : [d]\n}", "SL0107"),
    ("let d =«»", "SL0110"),
    ("mesh\n\n# the end«»", "SL0110"),
    ("let d = «007»", "SL0120"),
    ("let d = «2kv»", "SL0120"),
    ("let d = «1.5»", "SL0120"),
    ("let d = «1_000»", "SL0120"),
    ("let d = «0x10»", "SL0120"),
    ("fn f(x: [«2kv»/tp]) -> [b]", "SL0120"),
    ("link ib = «50», 12 us", "SL0121"),
    ("link ib = 50 GB/s, «12»", "SL0121"),
    ("link ib = 400 «Gb/s», 12 us", "SL0121"),
    ("link ib = 50 «GB», 12 us", "SL0121"),
    ("link ib = 50 GB/s, 12 «usec»", "SL0121"),
    ("budget m { memory <= «60» }", "SL0121"),
    ("link ib = «0 GB/s», 12 us", "SL0133"),
    ("let d = 4 «×» 5", "SL0117"),
    ("let d = «-»4", "SL0138"),
    ("let d = 8 «-» 4", "SL0138"),
    ("let d = 8 «/» 4", "SL0138"),
    ("let d = 8 «%» 4", "SL0138"),
    ("let d = 2«**»4", "SL0138"),
    ("let d = «1e6»", "SL0120"),
    ("mesh pod = t«р»:2", "SL0117"),
    ("mesh pod = tp«\u200b»:2", "SL0117"),
    ("let d = 4«;» let e = 5", "SL0117"),
    ("let d = 4 «$» 5", "SL0117"),
    ("let gr«ö»sse = 5", "SL0117"),
    ("«//» sizes\nlet d = 4", "SL0118"),
    ("«/*» sizes */", "SL0118"),
    ("fn f(x: [(a «(»b c))]) -> [b]", "SL0125"),
    ("fn f(x: [(a «...»)]) -> [b]", "SL0126"),
    ("fn f(x: [d «...»]) -> [b]", "SL0126"),
    ("fn f(x: [«...»/tp d]) -> [b]", "SL0126"),
    ("fn f(x: [s«/.»/tp]) -> [b]", "SL0127"),
    ("fn f(x: [s«/?»/tp]) -> [b]", "SL0127"),
    ("fn f(x: [(s«/?» t)]) -> [b]", "SL0127"),
    ("fn f(x: [s«//»tp]) -> [b]", "SL0128"),
    ("fn f(x: [s«+»1]) -> [b]", "SL0128"),
    ("fn f(x: [s«-»1]) -> [b]", "SL0128"),
    (MODEL + "param «layers..w» : [d]\n}", "SL0129"),
    (MODEL + "param «layers.w**» : [d]\n}", "SL0129"),
    (MODEL + "param «layers.[0-3].w» : [d]\n}", "SL0129"),
    (MODEL + "param «.w» : [d]\n}", "SL0129"),
    (MODEL + "freeze «$x»\n}", "SL0129"),
    (MODEL + "fsdp root over fsdp { «reshrad» no }\n}", "SL0122"),
    (MODEL + "fsdp root over fsdp { prefetch «yes» }\n}", "SL0123"),
    (MODEL + "fsdp root over fsdp { reshard «maybe» }\n}", "SL0123"),
    (MODEL + "fsdp root over fsdp { param «32» }\n}", "SL0123"),
    (MODEL + "fsdp root over fsdp { reshard no, «reshard» yes }\n}", "SL0124"),
    ("split pod.tp = a:«?» * b:4", "SL0130"),
    ("mesh pod = tp:8 ranks «7..0»", "SL0131"),
    (MODEL + "param «layers.[3..0].w» : [d]\n}", "SL0131"),
    ("mesh pod = tp:«0»", "SL0132"),
    ("fn f(x: [b]«,») -> [b]", "SL0137"),
    ("let a = 1«,»\nlet b = 2", "SL0137"),
    ("let a = 1«,»\n\nmesh pod = tp:8", "SL0137"),
    (MODEL + "fsdp root over fsdp { reshard no«,» }\n}", "SL0137"),
    (MODEL + "fsdp root over fsdp «{» reshard no\n  param b : [d]\n}", "SL0107"),
    ("mesh pod = dp:2«,» tp:4", "SL0135"),
    ("split pod.tp = tp0:2«,» tp1:4", "SL0135"),
    (MODEL + "fsdp root over dp«,» fsdp\n}", "SL0135"),
    ("rules on pod {\n  batch -> dp«,» fsdp\n}", "SL0135"),
    ("fn f(x: «batch seq») -> [b]", "SL0136"),
    ("fn f(x: «b/»dp d) -> [b]", "SL0136"),
    ("fn f(x: «(»b d)) -> [b]", "SL0136"),
    (MODEL + "param a : «f/»tp d\n}", "SL0136"),
    ("reshard r: «8»/a 8 => [8 8]", "SL0136"),
    ("fn f(x: [b/dp«:»2 s]) -> [b]", "SL0109"),
    ("fn f(x: «[»b s w: [d]) -> [b]", "SL0107"),
    (MODEL + "param a :\n  «param» b : [d]\n}", "SL0109"),
    ("fn f(x: [b]{«sum» tp}) -> [b]", "SL0109"),
    ("let d = " + "(" * 32 + "«(»1" + ")" * 33, "SL0105"),
    ("let d = «" + " + ".join(["1"] * 66) + "»", "SL0106"),
]


def marked(text: str) -> tuple[str, int, int]:
    start = text.index("«")
    end = text.index("»") - 1
    return text.replace("«", "").replace("»", ""), start, end


@pytest.mark.parametrize(("text", "code"), MISTAKES)
def test_mistake_has_its_code_at_its_place(text: str, code: str) -> None:
    plain, start, end = marked(text)
    with pytest.raises(ShardlangError) as caught:
        parse(Source("test.shard", plain))
    [diagnostic] = caught.value.diagnostics
    assert diagnostic.code == code, str(caught.value)
    assert diagnostic.span is not None
    assert (diagnostic.span.start, diagnostic.span.end) == (start, end), str(caught.value)


def test_every_syntax_code_but_those_of_bytes_is_in_the_list() -> None:
    of_bytes = {"SL0101", "SL0102", "SL0103", "SL0104"}
    syntax = {code for code in REGISTRY if code.startswith("SL01")}
    assert {code for _, code in MISTAKES} == syntax - of_bytes


@pytest.mark.parametrize(
    ("data", "code", "column"),
    [
        (b"#" * (MAX_BYTES + 1), "SL0101", 1),
        (b"let d = 4 # \xff", "SL0102", 13),
        ("# é\u4e2d".encode() + b"\xe4", "SL0102", 5),
        (b"let d\x00 = 4", "SL0103", 6),
        (b"let d \x1b= 4", "SL0103", 7),
        (b"\xef\xbb\xbflet d = 4", "SL0104", 1),
    ],
)
def test_bytes_that_are_no_text(data: bytes, code: str, column: int) -> None:
    with pytest.raises(ShardlangError) as caught:
        decode("test.shard", data)
    [diagnostic] = caught.value.diagnostics
    assert diagnostic.code == code
    assert diagnostic.span is not None
    assert diagnostic.span.begin == (1, column)


def test_a_string_is_held_to_the_same_bounds() -> None:
    for text, code in (("let d\x00", "SL0103"), ("\ufefflet", "SL0104"), ("#" * (MAX_BYTES + 1), "SL0101")):
        with pytest.raises(ShardlangError) as caught:
            parse(Source("test.shard", text))
        assert caught.value.codes == (code,)


def test_the_largest_text_is_read() -> None:
    assert parse(decode("test.shard", b"#" * MAX_BYTES)).decls == ()


def test_the_faults_of_a_file_are_found_together() -> None:
    text = """\
mesh pod = tp=8
fn f(x: [b, s]) -> [b]
let d = 4096
model m on pod {
  param a..b : [d]
  param good : [d]
  param c : [d,
    e]
  call root (x: [b) -> [b]
  fsdp root over fsdp { parm bf16, prefetch x }
}
reshard r: [b] -> [b]
link ib = 400 Gb/s, 1 us
"""
    with pytest.raises(ShardlangError) as caught:
        parse(Source("test.shard", text))
    found = [(d.code, d.span.begin[0]) for d in caught.value.diagnostics if d.span]
    assert found == [
        ("SL0112", 1),
        ("SL0113", 2),
        ("SL0129", 5),
        ("SL0113", 7),
        ("SL0107", 9),
        ("SL0122", 10),
        ("SL0123", 10),
        ("SL0115", 12),
        ("SL0121", 13),
    ]


def found(text: str) -> list[tuple[str, int]]:
    with pytest.raises(ShardlangError) as caught:
        parse(Source("test.shard", text))
    return [(d.code, d.span.begin[0]) for d in caught.value.diagnostics if d.span]


def test_every_line_of_a_model_is_read_by_itself() -> None:
    text = """\
mesh pod = tp:2

model net on pod {
  param a : [d/tp, e]
  parm b : [d]
  param c : [d
  param good : [d]
  call f (x [d]) -> [d]
  fdsp root over tp
  freeze a**
  call g (
    x: [d],
    y: [e]
  ) -> [d]
  checkpiont x
  fsdp root over tp { reshrd yes }
}

modell other on pod {
  param x : [d,]
}

fn f(x: [b) -> [b]
reshrad r: [8] => [8]
lett d = 4
let e = 1,
    f = 07
"""
    assert found(text) == [
        ("SL0113", 4),
        ("SL0111", 5),
        ("SL0107", 6),
        ("SL0109", 8),
        ("SL0111", 9),
        ("SL0129", 10),
        ("SL0111", 15),
        ("SL0122", 16),
        ("SL0111", 19),
        ("SL0113", 20),
        ("SL0107", 23),
        ("SL0111", 24),
        ("SL0111", 25),
        ("SL0120", 27),
    ]


@pytest.mark.parametrize(
    "good",
    [
        "mesh pod = dp:2\n  * tp:2\nranks 0..3\n",
        "fn f\non pod\n(x: [b],\ny: [c]) -> [b]\ngrad {+dp}\n",
        "rules on pod {\nlet -> dp\nmesh -> tp else\nwhole\n}\n",
        "model m\nfrom a:b\non pod {\nfsdp root\nover dp\nreplicate tp\n  param a\n  : [d\n e f]\n}\n",
        "let a = 1,\nb = 2,\nc = a *\nb\n",
        "rule aten.mm: [i k+]\n[k+ j] ->\n[i j]\n",
        "budget m {\nmemory <= 1 GiB;\npeak <= 1.0x\n}\n",
        "model m on pod {\n  call root (x: [b]) ->\n    [b] eager\n  call a () -> (_, _)\n}\n",
    ],
)
def test_what_is_right_behind_a_mistake_yields_no_other(good: str) -> None:
    assert [line for _, line in found("let d = 4 5\n" + good)] == [1]
    assert [line for _, line in found("model x on pod {\n  parm a : [d]\n}\n" + good)] == [2]


def test_a_model_that_is_never_closed_is_told_beside_the_faults_of_its_lines() -> None:
    text = "let d = 4 5\nmodel m on pod {\n  parm a : [d]\n  param b : [d]\n\nmesh pod = dp:2\n"
    assert found(text) == [("SL0109", 1), ("SL0107", 2), ("SL0111", 3)]


def test_a_dim_named_like_a_keyword_at_the_start_of_a_line_is_no_declaration() -> None:
    text = "fn f(\n  x: [b s\n    mesh t, u],\n  y: [b]\n) -> [b]"
    with pytest.raises(ShardlangError) as caught:
        parse(Source("test.shard", text))
    assert caught.value.codes[0] in ("SL0107", "SL0113")


def test_faults_are_bounded() -> None:
    with pytest.raises(ShardlangError) as caught:
        parse(Source("test.shard", "let d\n" * 500))
    assert len(caught.value.diagnostics) == MAX_FAULTS


def test_an_unclosed_bracket_points_at_what_came_too_early() -> None:
    text = "fn f(x: [b s, w: [d]) -> [b]"
    with pytest.raises(ShardlangError) as caught:
        parse(Source("test.shard", text))
    [diagnostic] = caught.value.diagnostics
    assert diagnostic.labels[0].span.start == text.index(",")


def test_near_words_are_suggested() -> None:
    for text, near in (
        ("mehs pod = tp:8", "mesh"),
        ("MESH pod = tp:8", "mesh"),
        ("mesh pod = tp:8 rank 0..7", "ranks"),
        (MODEL + "fsdp root over fsdp { reshrad no }\n}", "reshard"),
        ("link ib = 400 gb/s, 12 us", "GB/s"),
        ("link ib = 400 GB/s, 12 US", "us"),
    ):
        with pytest.raises(ShardlangError) as caught:
            parse(Source("test.shard", text))
        assert caught.value.diagnostics[0].helps == (f"did you mean `{near}`?",)


def test_a_fix_repairs_the_text() -> None:
    for text, repaired in (
        ("mesh pod = tp=8", "mesh pod = tp:8"),
        ("let d: 4", "let d = 4"),
        ("fn f(x: [b, s]) -> [b]", "fn f(x: [b s]) -> [b]"),
        ("fn f(x: [b,s]) -> [b]", "fn f(x: [b s]) -> [b]"),
        ("fn f(x: [b,]) -> [b]", "fn f(x: [b]) -> [b]"),
        ("reshard c: [b] -> [b]", "reshard c: [b] => [b]"),
        ("let a = 1,\nlet b = 2", "let a = 1\nlet b = 2"),
        ("mesh pod = a:2, b:4", "mesh pod = a:2 * b:4"),
        ("let d = 4; let e = 5", "let d = 4 let e = 5"),
        ("fn f(x: [b]) => [b]", "fn f(x: [b]) -> [b]"),
        ("mehs pod = tp:8", "mesh pod = tp:8"),
        ("let d = 4 × 5", "let d = 4 * 5"),
    ):
        with pytest.raises(ShardlangError) as caught:
            parse(Source("test.shard", text))
        fix = caught.value.diagnostics[0].fix
        assert fix is not None
        mended = text[: fix.span.start] + fix.replacement + text[fix.span.end :]
        assert parse(Source("test.shard", mended)) == parse(Source("test.shard", repaired))


@pytest.mark.parametrize(
    ("text", "helps"),
    [
        ("mesh pod = tр:2", "write `p`"),
        ("mesh pod = tp：2", "write `:`"),
        ("mesh pod = tp\u200b:2", "remove it"),
        ("let größe = 4", None),
        ("fn f(x: [b]{tp}) -> [b]", "write `+tp`"),
        ("fn f(x: [b] +tp) -> [b]", "write `{+tp}`"),
        ("fn f(x: [b:tp]) -> [b]", "write `/`"),
        ("fn f(x: [b@tp]) -> [b]", "write `/`"),
        ("mesh pod = dp:2 x tp:2", "write `*`"),
        ("let d = 8 / 2", "write `//`"),
    ],
)
def test_what_another_notation_or_alphabet_writes_is_told(text: str, helps: str | None) -> None:
    with pytest.raises(ShardlangError) as caught:
        parse(Source("test.shard", text))
    assert caught.value.diagnostics[0].helps == (() if helps is None else (helps,))


def test_no_fix_is_offered_where_several_words_are_near() -> None:
    with pytest.raises(ShardlangError) as caught:
        parse(Source("test.shard", "ruless on pod {}"))
    assert caught.value.diagnostics[0].helps == ("did you mean `rules`?",)
    assert caught.value.diagnostics[0].fix is None


@pytest.mark.parametrize(
    ("read", "text", "code"),
    [
        (parse_spec, "", "SL0110"),
        (parse_spec, "[b] extra", "SL0109"),
        (parse_spec, "[b] => [b]", "SL0109"),
        (parse_spec, "[b, s]", "SL0113"),
        (parse_spec, "[b", "SL0107"),
        (parse_spec, 'P("tp")', "SL0114"),
        (parse_signature, "(x: [b] -> [b]", "SL0107"),
        (parse_change, "[b] -> [b]", "SL0115"),
        (parse_change, "[b]", "SL0110"),
        (parse_axes, "a=2 * b:4", "SL0112"),
        (parse_axes, "a:0", "SL0132"),
        (parse_axes, "", "SL0110"),
    ],
)
def test_pieces_have_the_same_messages(read, text: str, code: str) -> None:
    with pytest.raises(ShardlangError) as caught:
        read(Source("<argument>", text))
    assert caught.value.codes == (code,)
