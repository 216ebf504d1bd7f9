"""Hypothesis strategies for texts of the language, as lists of words, and for what stands between the words.

Every strategy gives a tuple of words that the grammar takes in this order; ``texts`` puts blanks, newlines and comments
between them. A number never touches a name, so at least one blank is always there.
"""

from __future__ import annotations

from hypothesis import strategies as st

KEYWORDS = ("mesh", "fsdp", "param", "on", "max", "grad", "over", "rule", "else", "from", "call", "let")
Words = tuple[str, ...]

names = st.one_of(
    st.sampled_from(("a", "b", "dp", "tp", "seq", "d_model", "_x", "B2")),
    st.sampled_from(KEYWORDS),
)
ints = st.integers(0, 2**63 - 1).map(str) | st.integers(0, 9).map(str)
sizes_of_axes = st.integers(1, 4096).map(str)
numbers = st.one_of(st.integers(1, 999).map(str), st.decimals(1, 99, places=2).map(str))


def seq(*parts: object) -> st.SearchStrategy[Words]:
    """One after the other: words, strategies of words, and strategies of single words."""
    strategies = [p if isinstance(p, st.SearchStrategy) else st.just(p) for p in parts]
    return st.tuples(*strategies).map(flat)


def flat(parts: object) -> Words:
    if isinstance(parts, str):
        return (parts,) if parts else ()
    assert isinstance(parts, tuple | list)
    return tuple(word for part in parts for word in flat(part))


def maybe(part: object) -> st.SearchStrategy[Words]:
    return st.just(()) | seq(part)


def listed(part: st.SearchStrategy[object], between: str, least: int = 1, most: int = 3) -> st.SearchStrategy[Words]:
    """``part`` some times, with a word between."""

    def joined(items: list[object]) -> Words:
        words: list[str] = []
        for index, item in enumerate(items):
            words += flat((between, item)) if index else flat((item,))
        return tuple(words)

    return st.lists(part, min_size=least, max_size=most).map(joined)


quantity = st.tuples(numbers, st.sampled_from(("GiB", "MB", "B"))).map(lambda q: f"{q[0]} {q[1]}")
bandwidth = st.tuples(numbers, st.sampled_from(("GB/s", "MiB/s"))).map(lambda q: f"{q[0]}{q[1]}")
time = st.tuples(numbers, st.sampled_from(("us", "ms", "ns"))).map(lambda q: f"{q[0]} {q[1]}")
axis = seq(names, ":", sizes_of_axes | st.just("?"), maybe(seq("@", names)))
part = seq(names, ":", sizes_of_axes, maybe(seq("@", names)))
axes = listed(axis, "*")

expr: st.SearchStrategy[Words] = st.recursive(
    seq(names | ints),
    lambda inner: st.one_of(
        seq(inner, st.sampled_from(("+", "*", "//")), inner),
        seq("(", inner, ")"),
    ),
    max_leaves=6,
)

one_cut = seq("/", maybe("~"), names)
cuts = st.one_of(st.just(()), st.just(("/", ".")), st.just(("/", "?")), listed(one_cut, ""))
factor_cuts = st.one_of(st.just(()), st.just(("/", ".")), listed(one_cut, ""))
size = seq(names | ints, listed(seq("*", names | ints), "", least=0, most=2))
dim = st.one_of(
    seq(st.one_of(size, st.just(("_",))), cuts),
    seq("(", listed(seq(st.one_of(size, st.just(("_",))), factor_cuts), ""), ")", cuts),
)
pending = seq("{", listed(seq(st.sampled_from(("+", "avg", "max", "min")), names), ","), "}")
tensor = seq(
    st.sampled_from(("", "bf16", "f32", "i64")), "[", maybe("..."), listed(dim, "", least=0), "]", maybe(pending)
)
part_of_spec = st.one_of(tensor, st.just(("whole",)))
spec = seq(part_of_spec, maybe(seq("grad", st.one_of(part_of_spec, pending))))
change = seq(spec, "=>", spec)
arg = seq(names, ":", spec)
result = st.one_of(arg, spec, st.just(("_",)))
signature = seq("(", listed(arg, ",", least=0), ")", "->", st.one_of(spec, seq("(", listed(result, ","), ")")))

component = st.one_of(
    names, st.sampled_from(("*", "**", "0", "{a,b}", "{ wq , wk }", "[0..3]", "w{1, 3}", "*_proj", "a*{b}*"))
)
path = st.lists(component, min_size=1, max_size=4).map(".".join) | st.sampled_from(("root", "otherwise"))
option = st.one_of(
    seq(st.sampled_from(("param", "reduce", "output")), st.sampled_from(("bf16", "f32"))),
    seq("reshard", st.sampled_from(("yes", "no", "4"))),
    seq("prefetch", "2"),
    seq("offload", st.sampled_from(("yes", "no"))),
    seq("all_gather", "float8"),
)
options = st.lists(option, max_size=3, unique_by=lambda words: words[0]).map(
    lambda found: ("{", *(w for i, o in enumerate(found) for w in ((",", *o) if i else o)), "}")
)
over = listed(names, "/")
item = st.one_of(
    seq("param", path, ":", spec),
    seq("call", path, signature, maybe("eager")),
    seq("fsdp", path, "over", over, maybe(seq("replicate", over)), maybe(options)),
    seq("checkpoint", path),
    seq("compile", path, maybe(seq("{", maybe(seq("backend", names)), "}"))),
    seq("freeze", path),
)
limit = st.one_of(
    seq("memory", "<=", quantity),
    seq("peak", "<=", numbers.map(lambda n: f"{n}x")),
    seq("forbid", names, "on", names),
)
factor = seq(names | ints | st.just("..."), maybe(st.sampled_from(("+", "!"))))
pattern = seq("[", listed(st.one_of(factor, seq("(", listed(factor, ""), ")")), "", least=0), "]")
rule_line = seq(listed(names, ","), "->", over, maybe(st.just(("else", "whole"))))

declaration = st.one_of(
    seq("link", names, "=", bandwidth, ",", time),
    seq("mesh", names, "=", axes, maybe(seq("ranks", "0", "..", "7"))),
    seq("split", names, ".", names, "=", listed(part, "*")),
    seq("let", listed(seq(names, "=", expr), ",")),
    seq("rules", "on", names, "{", listed(rule_line, "", least=0), "}"),
    seq("fn", names, maybe(seq("on", names)), signature),
    seq("reshard", names, maybe(seq("on", names)), ":", change),
    seq("model", names, maybe(seq("from", "pkg.mod:build")), "on", names, "{", listed(item, "", least=0), "}"),
    seq("transfer", names, "=>", names),
    seq("budget", names, "{", listed(limit, ";", least=0), "}"),
    seq("rule", "aten.mm", ":", listed(pattern, ""), "->", listed(pattern, "", most=2)),
)
declarations = st.lists(declaration, max_size=5).map(flat)

comments = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), max_size=8).map(
    lambda text: f" #{text}\n"
)
blanks = st.one_of(st.just(" "), st.sampled_from((" ", "  ", "\n", "\n\n", "\n\n\n  ", "\t", "\r\n")), comments)


def texts(words: st.SearchStrategy[Words] = declarations) -> st.SearchStrategy[str]:
    """Texts that parse: words with blanks and comments between them."""

    @st.composite
    def text(draw: st.DrawFn) -> str:
        parts: list[str] = []
        for word in draw(words):
            parts += [word, draw(blanks)]
        return draw(blanks) + "".join(parts)

    return text()
