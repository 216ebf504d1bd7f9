"""Codes SL01: bytes and characters that are no text of the language."""

from __future__ import annotations

from shardlang.diagnostics.characters import described
from shardlang.diagnostics.diagnostic import Diagnostic, Fix, message
from shardlang.source import Span


@message("SL0101", "text too large")
def too_large(span: Span, size: int, most: int) -> Diagnostic:
    return Diagnostic(
        f"the text has {size} bytes and may have {most}",
        span,
        notes=("a `.shard` file declares layouts; the tensors themselves live elsewhere",),
        helps=("split the text into several files",),
    )


@message("SL0102", "not UTF-8")
def not_utf8(span: Span, byte: int) -> Diagnostic:
    return Diagnostic(
        f"byte 0x{byte:02x} is not UTF-8",
        span,
        label="not text",
        helps=("save the file as UTF-8",),
    )


@message("SL0103", "control character")
def control_character(span: Span, ordinal: int) -> Diagnostic:
    name = "a NUL character" if ordinal == 0 else f"the control character U+{ordinal:04X}"
    return Diagnostic(f"{name} in the text", span, helps=("remove it",), fix=Fix(span, ""))


@message("SL0104", "byte order mark")
def byte_order_mark(span: Span) -> Diagnostic:
    return Diagnostic(
        "the text begins with a byte order mark", span, helps=("save the file as UTF-8 without one",), fix=Fix(span, "")
    )


@message("SL0117", "character of no word")
def stray_character(span: Span, instead: str | None) -> Diagnostic:
    character = span.text
    shown = f"`{character}`" if character.isprintable() else f"the character U+{ord(character):04X}"
    foreign = (f"this is {described(character)}; names are made of the letters a to z, digits and `_`",)
    return Diagnostic(
        f"{shown} has no meaning here",
        span,
        notes=() if character.isascii() else foreign,
        helps=(f"write `{instead}`",) if instead else ("remove it",) if instead == "" else (),
        fix=Fix(span, instead) if instead is not None else None,
    )
