"""From the place where parsing stopped to the mistake that was likely made there."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal

from shardlang.diagnostics import Diagnostic, sl01_syntax, sl01_text
from shardlang.diagnostics.characters import instead_of
from shardlang.source import Span
from shardlang.syntax.build import UNITS
from shardlang.syntax.place import DECLARATIONS, ITEMS, Place, signs

_CLOSERS = {")": "(", "]": "[", "}": "{"}
_LIMITS = ("memory", "peak", "forbid")
_FOREIGN = {
    "P": "a JAX PartitionSpec",
    "PS": "a JAX PartitionSpec",
    "PartitionSpec": "a JAX PartitionSpec",
    "NamedSharding": "a JAX NamedSharding",
    "Shard": "a DTensor placement",
    "Replicate": "a DTensor placement",
    "Partial": "a DTensor placement",
}
_ALPHABET = re.compile(r"[A-Za-z0-9_ \t\r\n=>,.:*@/()\[\]{}+~?!;<#-]")
_ARGUMENT = re.compile(r",\s*[A-Za-z_]\w*\s*:|:\s*(\w*\s*\[|whole\b)")
"""What follows a spec in a signature, where its bracket was forgotten: the next argument, from its comma or colon."""
_KEYWORD_LINE = r"^[ \t]*({})[ \t]+[A-Za-z0-9_*{{\[]"


def explain(place: Place) -> tuple[Diagnostic, int]:
    """The diagnostic of a place, and the offset from which on it says nothing of the text."""
    for find in _FINDERS:
        diagnostic = find(place)
        if diagnostic is not None:
            return diagnostic, _resume(place, diagnostic)
    return _plain(place), place.at + 1


def _resume(place: Place, diagnostic: Diagnostic) -> int:
    """Where a bracket should have closed, or behind the fault, which may be before the place where it was noticed."""
    if diagnostic.code == "SL0107":
        return min(diagnostic.labels[0].span.start, place.at)
    return min(diagnostic.span.start, place.at) + 1 if diagnostic.span is not None else place.at + 1


def _keyword_inside(place: Place) -> Diagnostic | None:
    """A declaration that began inside an open bracket: the bracket was never closed."""
    opener = place.opener
    if opener is None:
        return None
    of_model = opener.text == "{" and len(place.opened) == 1
    words = DECLARATIONS if of_model else (*DECLARATIONS, *ITEMS)
    text = place.source.text
    match = re.compile(_KEYWORD_LINE.format("|".join(words)), re.MULTILINE).search(text, opener.end, len(text))
    if match is None or match.start(1) > place.at:
        return None
    where = place.source.span(*match.span(1))
    return sl01_syntax.unclosed(where, opener)


def _closer(place: Place) -> Diagnostic | None:
    if place.word not in _CLOSERS:
        return None
    wanted = _CLOSERS[place.word]
    if place.opener is None or all(o.text != wanted for o in place.opened):
        return sl01_syntax.unopened(place.span, place.opener)
    if place.opener.text != wanted:
        return sl01_syntax.unclosed(place.span, place.opener)
    return None


def _unclosed(place: Place) -> Diagnostic | None:
    """The end of the text, or what cannot stand in brackets, while one is open."""
    opener = place.opener
    if opener is None:
        return None
    if not place.word:
        return sl01_syntax.unclosed(place.span, opener)
    if (opener.text in "([" and place.word in ("=>", "->")) or (opener.text == "[" and place.word == "{"):
        return sl01_syntax.unclosed(place.span, opener)
    if opener.text == "[" and _ARGUMENT.match(place.source.text, place.at):
        return sl01_syntax.unclosed(place.span, opener)
    return None


def _comment(place: Place) -> Diagnostic | None:
    if place.word in ("//", "/*", "--") and not place.in_spec and not place.accepts("/"):
        return sl01_syntax.wrong_comment(place.span)
    return None


def _foreign(place: Place) -> Diagnostic | None:
    if place.word != "(":
        return None
    match = re.search(r"[A-Za-z_]\w*$", place.before)
    if match is None or match.group() not in _FOREIGN:
        return None
    close = place.source.text.find(")", place.at)
    newline = place.source.text.find("\n", place.at)
    end = close + 1 if close >= 0 and (newline < 0 or close < newline) else place.at + 1
    return sl01_syntax.foreign_spec(place.source.span(match.start(), end), _FOREIGN[match.group()])


def _quote(place: Place) -> Diagnostic | None:
    if place.word not in ("'", '"', "“", "”", "‘", "’"):
        return None
    match = re.compile(r"['\"“‘][^'\"”’\n]*['\"”’]?").match(place.source.text, place.at)
    end = match.end() if match else place.at + 1
    return sl01_syntax.quoted(place.source.span(place.at, end))


def _in_spec(place: Place) -> Diagnostic | None:
    """What is often written between the brackets of a spec."""
    opener = place.opener
    if not place.in_spec or opener is None or opener.text == "{":
        return None
    if place.word == ",":
        return sl01_syntax.comma_between_dims(place.span)
    if place.word == "/" and place.source.text[place.at - 1 : place.at] == "/":
        return sl01_syntax.arithmetic_in_spec(place.source.span(place.at - 1, place.at + 1))
    if place.word in ("//", "+", "-", "%") and (not place.accepts("+") or place.start != "start"):
        return sl01_syntax.arithmetic_in_spec(place.span)
    if opener.text == "(" and place.word == "(":
        return sl01_syntax.nested_factors(place.span, opener)
    if opener.text == "(" and place.word == "...":
        return sl01_syntax.misplaced_rest(place.span, "stands among factors")
    if place.word == "/" and place.before.endswith("..."):
        end = len(place.before)
        return sl01_syntax.misplaced_rest(place.source.span(end - 3, end), "is cut")
    return None


def _arithmetic(place: Place) -> Diagnostic | None:
    """An operator in a constant that sizes do not have."""
    text = place.source.text
    if not text.startswith("let", place.declaration_start) or place.begins_line:
        return None
    if place.word == "*" and text[place.at - 1 : place.at] == "*":
        return sl01_syntax.no_such_operator(place.source.span(place.at - 1, place.at + 1))
    if place.word in ("-", "%", "/", "^", "<", ">", "|", "&") and (place.accepts("+") or place.word == "-"):
        return sl01_syntax.no_such_operator(place.span)
    return None


def _axes(place: Place) -> Diagnostic | None:
    """A comma after an axis, where another sign joins it to the next."""
    if place.word == "," and not place.in_spec:
        for sign in "/*":
            if place.accepts(sign):
                return sl01_syntax.comma_between_axes(place.span, sign)
    return None


def _trailing_comma(place: Place) -> Diagnostic | None:
    """A comma that nothing of its list follows: a bracket closes, or a declaration begins, which was read as a name."""
    before, previous = place.before, place.previous
    if previous is not None and previous.type == "NAME" and previous in (*DECLARATIONS, *ITEMS) and place.word != "=":
        before = place.source.text[: previous.start_pos].rstrip()
    elif place.word not in _CLOSERS:
        return None
    if not before.endswith(","):
        return None
    return sl01_syntax.trailing_comma(place.source.span(len(before) - 1, len(before)))


def _bare_spec(place: Place) -> Diagnostic | None:
    """Dims without their brackets: after a name, which was taken for a dtype, or at once."""
    previous = place.previous
    if place.accepts("[") and "WHOLE" in place.accepted and (place.word == "(" or place.word[:1].isdigit()):
        return sl01_syntax.spec_without_brackets(place.span)
    if place.accepted != {"LSQB"} or previous is None or previous.type != "NAME" or not place.word:
        return None
    start = previous.start_pos or 0
    line = place.source.text[place.source.text.rfind("\n", 0, start) + 1 : start]
    if previous in (*DECLARATIONS, *ITEMS) and not line.strip():
        return sl01_syntax.unexpected(place.source.span(start, start + len(previous)), ["a spec"], ())
    return sl01_syntax.spec_without_brackets(place.source.span(start, place.span.end))


def _equals(place: Place) -> Diagnostic | None:
    if place.word == "=" and place.accepts(":"):
        return sl01_syntax.equals_for_colon(place.span, _last_word(place.before))
    if place.word == ":" and place.accepts("="):
        return sl01_syntax.colon_for_equals(place.span)
    return None


def _last_word(text: str) -> str:
    match = re.search(r"[^\s(,]*$", text)
    return match.group() if match else ""


def _arrow(place: Place) -> Diagnostic | None:
    if place.word == "->" and place.accepts("=>"):
        return sl01_syntax.wrong_arrow(place.span, "=>", "source and target")
    if place.word == "=>" and place.accepts("->"):
        return sl01_syntax.wrong_arrow(place.span, "->", "what goes in and what comes out")
    return None


def _quantity(place: Place) -> Diagnostic | None:
    if "QUANTITY" not in place.accepted or not place.word[:1].isdigit():
        return None
    kind: Literal["bandwidth", "time", "bytes"] = "bytes"
    if place.source.text.startswith("link", place.declaration_start):
        kind = "time" if place.before.endswith(",") else "bandwidth"
    match = re.compile(r"[0-9][0-9A-Za-z_.]*").match(place.source.text, place.at)
    span = place.source.span(place.at, match.end() if match else place.at + 1)
    return sl01_syntax.bad_quantity(span, kind, UNITS[kind])


def _number(place: Place) -> Diagnostic | None:
    """A number that no size can be: with letters, a fraction, a leading zero."""
    text = place.source.text
    start = place.at
    if place.word == "." and text[start - 1 : start].isdigit():
        while text[start - 1 : start].isalnum():
            start -= 1
    elif not (place.word[:1].isdigit() and "INT" in place.accepted):
        return None
    match = re.compile(r"[0-9][0-9A-Za-z_]*(\.[0-9]+)?").match(text, start)
    if match is None:
        return None
    written = match.group()
    span = place.source.span(start, match.end())
    if "." in written:
        return sl01_syntax.bad_number(span, "sizes are whole numbers")
    if re.fullmatch(r"0+[0-9]+", written):
        return sl01_syntax.bad_number(span, "it begins with 0", written.lstrip("0") or "0")
    if re.fullmatch(r"[0-9]+(_[0-9]+)+", written):
        return sl01_syntax.bad_number(span, "`_` does not group digits", written.replace("_", ""))
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?[eE][0-9]*", written):
        return sl01_syntax.bad_number(span, "sizes have no exponent")
    if re.fullmatch(r"0[xXbBoO][0-9A-Fa-f]+", written):
        return sl01_syntax.bad_number(span, "sizes are written in decimal")
    if len(written) > 40:
        return sl01_syntax.bad_number(span, "a letter follows the digits")
    parts = re.fullmatch(r"([0-9]+)(.*)", written)
    assert parts is not None
    return sl01_syntax.bad_number(
        span, "a letter follows the digits", f"{parts[1]}{' ' if place.in_spec else '*'}{parts[2]}"
    )


def _path(place: Place) -> Diagnostic | None:
    previous = place.previous
    text = place.source.text
    if previous is not None and previous.type == "PATH" and previous.end_pos == place.at and place.word:
        run = re.compile(r"[^\s:(]*").match(text, place.at)
        span = place.source.span(previous.start_pos or 0, run.end() if run else place.at)
        if place.word == "*" or text[place.at - 2 : place.at] == "**":
            return sl01_syntax.bad_path(span) if run and run.group() else None
        if place.word in (".", "..", "...") or place.word == "[" or place.word == "{":
            return sl01_syntax.bad_path(span, _offender(span))
        return None
    if "PATH" in place.accepted and place.word not in ("", ":") and not place.begins_line:
        run = re.compile(r"[^\s:(]+").match(text, place.at)
        if run:
            span = place.source.span(place.at, run.end())
            return sl01_syntax.bad_path(span, _offender(span))
    return None


def _offender(span: Span) -> str:
    """The first part of a path that is malformed; empty where two dots follow each other or one begins it."""
    part = re.compile(r"([A-Za-z0-9_]|\*(?!\*)|\{\s*\w+(\s*,\s*\w+)*\s*\})+|\*\*|\[[0-9]+\.\.[0-9]+\]")
    rest = span.text
    while (match := part.match(rest)) and rest[match.end() : match.end() + 1] == ".":
        rest = rest[match.end() + 1 :]
    return rest.split(".")[0]


def _keyword(place: Place) -> Diagnostic | None:
    """A word where a declaration, a line of a model or a limit begins."""
    if not re.match(r"[A-Za-z_]", place.word):
        return None
    if "MEMORY" in place.accepted:
        return sl01_syntax.unknown_keyword(place.span, _LIMITS, "limit")
    if not place.begins_line and place.before and place.before[-1:] not in "{":
        return None
    if "LINK" in place.accepted:
        return sl01_syntax.unknown_keyword(place.span, DECLARATIONS, "declaration")
    if "PARAM" in place.accepted:
        return sl01_syntax.unknown_keyword(place.span, ITEMS, "line of a model")
    return None


def _stray(place: Place) -> Diagnostic | None:
    if place.word and not _ALPHABET.match(place.word):
        return sl01_text.stray_character(place.span, instead_of(place.word))
    if place.word in ("-", ";"):
        return sl01_text.stray_character(place.span, "" if place.word == ";" else None)
    return None


def _plain(place: Place) -> Diagnostic:
    expected = describe(place.accepted)
    if not place.word:
        return sl01_syntax.ended(place.span, expected)
    keywords = [name.lower() for name in place.accepted if name not in signs() and name.isalpha()]
    return sl01_syntax.unexpected(place.span, expected, keywords, _instead(place))


def _instead(place: Place) -> str | None:
    """What is meant by a sign or word of another notation."""
    if "AVG" in place.accepted and re.match(r"[A-Za-z_]", place.word):
        return {"sum": "+", "mean": "avg"}.get(place.word, f"+{place.word}")
    if place.word == "+" and place.accepts("{") and "GRAD" in place.accepted:
        axis = re.compile(r"\+\s*(\w+)").match(place.source.text, place.at)
        return f"{{+{axis[1]}}}" if axis else None
    if place.word in ("x", "X", "by") and place.accepts("*"):
        return "*"
    if (
        place.in_spec
        and place.word in (":", "@", "|")
        and place.accepts("/")
        and re.search(r"[\[\s]\w+$", place.before)
    ):
        return "/"
    return None


_WORDS = {
    "NAME": "a name",
    "INT": "an integer",
    "PATH": "a path",
    "QUANTITY": "a quantity",
    "RATIO": "a ratio such as `1.0x`",
    "REFERENCE": "`module:function`",
    "OPERATOR": "the name of an operator",
    "UNNAMED": "`_`",
    "$END": "the end of the text",
}
_GROUPS: tuple[tuple[frozenset[str], str], ...] = (
    (frozenset(w.upper() for w in DECLARATIONS), "a declaration"),
    (frozenset(w.upper() for w in ITEMS), "a line of the model"),
    (frozenset({"WHOLE", "LSQB", "NAME"}), "a spec"),
    (frozenset({"WHOLE", "LSQB"}), "a spec"),
    (frozenset({"REST", "UNNAMED", "INT", "NAME", "LPAR"}), "a dim"),
    (frozenset({"UNNAMED", "INT", "NAME"}), "a factor"),
    (frozenset({"INT", "NAME", "LPAR"}), "a size"),
    (frozenset({"MEMORY", "PEAK", "FORBID"}), "a limit"),
)


def describe(accepted: frozenset[str]) -> list[str]:
    """What could have stood in a place, in words; the same set gives the same words."""
    groups: list[str] = []
    left = set(accepted)
    if {"LINK", "$END"} <= left:
        left.discard("$END")
    for names, text in _GROUPS:
        if names <= left:
            left -= names
            groups.append(text)
    return [*(_WORDS.get(name) or f"`{signs().get(name, name.lower())}`" for name in sorted(left)), *groups]


_FINDERS: tuple[Callable[[Place], Diagnostic | None], ...] = (
    _keyword_inside,
    _closer,
    _unclosed,
    _comment,
    _foreign,
    _quote,
    _in_spec,
    _arithmetic,
    _trailing_comma,
    _axes,
    _equals,
    _arrow,
    _quantity,
    _number,
    _path,
    _keyword,
    _bare_spec,
    _stray,
)
