"""Codes SL01: syntax. Each function takes meaning and writes the prose."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from shardlang.diagnostics.diagnostic import Diagnostic, Fix, Label, message
from shardlang.source import Span


def _or(items: Iterable[str]) -> str:
    """``a, b or c``."""
    words = list(items)
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " or " + words[-1]


def _and(items: Iterable[str]) -> str:
    """``a, b and c``."""
    words = list(items)
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]


def _shown(text: str) -> str:
    """A piece of the text as a message quotes it: in one line, and not longer than a line."""
    text = " ".join(text.split())
    return f"`{text}`" if len(text) <= 60 else f"`{text[:60]}..`"


def _near(word: str, known: Iterable[str]) -> list[str]:
    """The words that may have been meant, the nearest first; one that differs in case only is alone."""
    known = list(known)
    if word in known:
        return [word]
    return get_close_matches(word, known, n=3, cutoff=0.6)


def _meant(near: list[str]) -> tuple[str, ...]:
    return (f"did you mean `{near[0]}`?",) if near else ()


def _sure(span: Span, near: list[str]) -> Fix | None:
    """The edit to the word that was meant, where no other is near."""
    return Fix(span, near[0]) if len(near) == 1 else None


@message("SL0105", "nested too deep")
def too_deep(span: Span, most: int) -> Diagnostic:
    return Diagnostic(
        f"brackets are nested more than {most} deep",
        span,
        helps=("name parts of the expression with `let`",),
    )


@message("SL0106", "expression too long")
def too_long(span: Span, most: int) -> Diagnostic:
    return Diagnostic(
        f"a size is made of more than {most} parts", span, helps=("name parts of the expression with `let`",)
    )


# Brackets


@message("SL0107", "unclosed bracket")
def unclosed(span: Span, opener: Span) -> Diagnostic:
    closer = {"(": ")", "[": "]", "{": "}"}[opener.text]
    found = _shown(span.text) if span.text else "the end of the text"
    return Diagnostic(
        f"`{opener.text}` is never closed",
        opener,
        label="opened here",
        labels=(Label(span, f"`{closer}` was due before {found}"),),
        helps=(f"add `{closer}`",),
    )


@message("SL0108", "closing bracket without an opening one")
def unopened(span: Span, opener: Span | None) -> Diagnostic:
    if opener is None:
        return Diagnostic(f"`{span.text}` closes nothing", span, helps=(f"remove `{span.text}`",))
    return Diagnostic(
        f"`{span.text}` does not close `{opener.text}`",
        span,
        labels=(Label(opener, "this is open"),),
    )


# Words and signs


@message("SL0109", "unexpected text")
def unexpected(span: Span, expected: Iterable[str], keywords: Iterable[str], instead: str | None = None) -> Diagnostic:
    near = _near(span.text.lower(), keywords)
    helps = (f"write `{instead}`",) if instead else _meant(near)
    return Diagnostic(f"expected {_or(expected)}, found {_shown(span.text)}", span, helps=helps)


@message("SL0110", "text ends too early")
def ended(span: Span, expected: Iterable[str]) -> Diagnostic:
    return Diagnostic(f"the text ends where {_or(expected)} was expected", span)


@message("SL0111", "unknown keyword")
def unknown_keyword(span: Span, known: Iterable[str], place: str) -> Diagnostic:
    known = sorted(known)
    near = _near(span.text.lower(), known)
    return Diagnostic(
        f"{_shown(span.text)} begins no {place}",
        span,
        notes=(f"{'an' if place[0] in 'aeiou' else 'a'} {place} begins with {_or(f'`{k}`' for k in known)}",),
        helps=_meant(near),
        fix=_sure(span, near),
    )


@message("SL0112", "`=` in place of `:`")
def equals_for_colon(span: Span, name: str) -> Diagnostic:
    return Diagnostic(
        f"`=` follows {_shown(name)} where `:` belongs",
        span,
        notes=("an axis is `name:size`, a tensor `name: spec`; only `let`, `link`, `mesh` and `split` take `=`",),
        helps=("write `:`",),
        fix=Fix(span, ":"),
    )


@message("SL0113", "comma in a spec")
def comma_between_dims(span: Span) -> Diagnostic:
    after = span.source.text[span.end : span.end + 1]
    return Diagnostic(
        "a comma stands between dims",
        span,
        notes=("the dims of a spec are set apart by blanks: `[b s d]`",),
        helps=("remove the comma",),
        fix=Fix(span, "" if after.isspace() or after == "]" else " "),
    )


@message("SL0114", "spec in another notation")
def foreign_spec(span: Span, notation: str) -> Diagnostic:
    return Diagnostic(
        f"{notation} is no spec of this language",
        span,
        notes=('a spec names each dim and its axes: `P("dp", None)` is `[batch/dp seq]`',),
    )


@message("SL0115", "wrong arrow")
def wrong_arrow(span: Span, right: str, ends: str) -> Diagnostic:
    return Diagnostic(
        f"between {ends} stands `{right}`, found {_shown(span.text)}",
        span,
        helps=(f"write `{right}`",),
        fix=Fix(span, right),
    )


@message("SL0116", "name in quotes")
def quoted(span: Span) -> Diagnostic:
    return Diagnostic("a name stands in quotes", span, helps=("remove the quotes",))


@message("SL0118", "wrong sign for a comment")
def wrong_comment(span: Span) -> Diagnostic:
    return Diagnostic("a comment begins with `#`", span, helps=("write `#`",))


# Numbers


@message("SL0119", "integer too large")
def huge_integer(span: Span, most: int) -> Diagnostic:
    return Diagnostic(f"the integer is larger than {most}", span)


@message("SL0120", "malformed number")
def bad_number(span: Span, reason: str, instead: str | None = None) -> Diagnostic:
    return Diagnostic(
        f"{_shown(span.text)} is no size: {reason}",
        span,
        helps=(f"write `{instead}`",) if instead else (),
    )


@message("SL0121", "malformed quantity")
def bad_quantity(span: Span, kind: str, units: Iterable[str], unit: str | None = None, note: str = "") -> Diagnostic:
    units = list(units)
    folded = {u.lower(): u for u in units}
    near = ([folded[unit.lower()]] if unit.lower() in folded else _near(unit, units)) if unit else []
    amount = {"bytes": "an amount of memory"}.get(kind, f"a {kind}")
    return Diagnostic(
        f"{amount} is a number and a unit" if unit is None else f"{_shown(unit)} is no unit of {amount}",
        span,
        notes=(*((note,) if note else ()), f"the units of {amount} are {_and(f'`{u}`' for u in units)}"),
        helps=_meant(near),
    )


# Forms that the grammar alone cannot refuse, or not with good words


@message("SL0122", "unknown option of `fsdp` or `compile`")
def unknown_option(span: Span, keyword: str, known: Iterable[str]) -> Diagnostic:
    known = list(known)
    near = _near(span.text, known)
    return Diagnostic(
        f"`{keyword}` has no option {_shown(span.text)}",
        span,
        notes=(f"the options are {_and(f'`{k}`' for k in known)}" if known[1:] else f"its option is `{known[0]}`",),
        helps=_meant(near),
        fix=_sure(span, near),
    )


@message("SL0123", "value of the wrong kind")
def bad_option_value(span: Span, option: str, wanted: str) -> Diagnostic:
    return Diagnostic(f"the option `{option}` takes {wanted}, found {_shown(span.text)}", span)


@message("SL0124", "option given twice")
def repeated_option(span: Span, first: Span) -> Diagnostic:
    return Diagnostic(
        f"the option {_shown(span.text)} is given twice",
        span,
        label="given again here",
        labels=(Label(first, "first given here"),),
        helps=("remove one of them",),
    )


@message("SL0125", "factors inside factors")
def nested_factors(span: Span, opener: Span) -> Diagnostic:
    return Diagnostic(
        "factors stand inside factors",
        span,
        labels=(Label(opener, "the dim is opened here"),),
        notes=("a dim is one list of factors, major to minor: `(3 kv/tp k)`",),
        helps=("write one list",),
    )


@message("SL0126", "`...` out of place")
def misplaced_rest(span: Span, reason: str) -> Diagnostic:
    return Diagnostic(
        f"`...` {reason}",
        span,
        notes=("`...` stands for any number of leading dims, none of them split: `[... d/tp]`",),
    )


@message("SL0127", "`/.` or `/?` beside other cuts")
def misplaced_cut(span: Span, reason: str) -> Diagnostic:
    return Diagnostic(f"{_shown(''.join(span.text.split()))} {reason}", span)


@message("SL0128", "arithmetic in a spec")
def arithmetic_in_spec(span: Span) -> Diagnostic:
    return Diagnostic(
        f"`{span.text}` in a spec",
        span,
        notes=("the size of a dim is a name, an integer or a product",),
        helps=(
            *(("for a split write `/`",) if span.text == "//" else ()),
            "give the size a name: `let half = d//2`, then `[half]`",
        ),
    )


@message("SL0129", "malformed path")
def bad_path(span: Span, part: str | None = None) -> Diagnostic:
    if part is None:
        reason = "`**` stands alone between dots"
    else:
        reason = f"{_shown(part)} is no part of one" if part else "a name is missing beside a dot"
    return Diagnostic(
        f"the path is malformed: {reason}",
        span,
        notes=("between dots stands a name, in which `*` and `{a,b}` may be, or `**` or `[0..3]` alone",),
    )


@message("SL0130", "`?` for the size of a sub-axis")
def open_part(span: Span) -> Diagnostic:
    return Diagnostic(
        "the size of a sub-axis is `?`",
        span,
        notes=("only an axis of a `mesh` can take what the launch has left",),
        helps=("write its size",),
    )


@message("SL0131", "range that runs backwards")
def backward_range(span: Span) -> Diagnostic:
    return Diagnostic(
        f"the range {_shown(''.join(span.text.split()))} has nothing in it", span, notes=("both ends are included",)
    )


@message("SL0132", "axis of size 0")
def zero_axis(span: Span, name: str) -> Diagnostic:
    return Diagnostic(f"axis {_shown(name)} has size 0", span, helps=("give it a size of 1 or more, or `?`",))


@message("SL0133", "bandwidth of 0")
def zero_bandwidth(span: Span) -> Diagnostic:
    return Diagnostic("a link has a bandwidth of 0", span, helps=("give what one device sends in a second",))


@message("SL0134", "`:` in place of `=`")
def colon_for_equals(span: Span) -> Diagnostic:
    return Diagnostic(
        "`:` stands where `=` belongs",
        span,
        notes=("`let`, `link`, `mesh` and `split` give a name its meaning with `=`",),
        helps=("write `=`",),
        fix=Fix(span, "="),
    )


@message("SL0135", "comma between axes")
def comma_between_axes(span: Span, sign: str) -> Diagnostic:
    where = "the axes of a mesh are" if sign == "*" else "several axes on one dim, or in one group, are"
    return Diagnostic(
        "a comma stands between axes",
        span,
        notes=(f"{where} joined by `{sign}`",),
        helps=(f"write `{sign}`",),
        fix=Fix(span, " *" if sign == "*" else sign),
    )


@message("SL0136", "spec without square brackets")
def spec_without_brackets(span: Span) -> Diagnostic:
    return Diagnostic(
        "a spec stands in square brackets",
        span,
        notes=("the dims of a tensor are written `[batch/dp seq d]`, after its dtype where there is one",),
        helps=("write `[` and `]` around the dims",),
    )


@message("SL0137", "comma at the end of a list")
def trailing_comma(span: Span) -> Diagnostic:
    return Diagnostic("nothing follows the comma", span, helps=("remove the comma",), fix=Fix(span, ""))


@message("SL0138", "an operator that sizes do not have")
def no_such_operator(span: Span) -> Diagnostic:
    instead = {"/": "//", "%": None, "-": None}.get(span.text)
    return Diagnostic(
        f"`{span.text}` is no operator of sizes",
        span,
        notes=("sizes are added with `+`, multiplied with `*` and divided, rounding down, with `//`",),
        helps=(f"write `{instead}`",) if instead else ("write the value as a number, or the size that it is made of",),
        fix=Fix(span, instead) if instead else None,
    )
