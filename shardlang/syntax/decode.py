"""Bytes to text: what must hold before there is anything to parse."""

from __future__ import annotations

import re

from shardlang.diagnostics import ShardlangError, sl01_text
from shardlang.source import Source

MAX_BYTES = 1 << 20
"""No file of this language comes near 1 MiB; a larger one is not this language."""

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


def decode(name: str, data: bytes) -> Source:
    """The source of a file's bytes. Raises ``ShardlangError`` where they are no UTF-8, too many, or hold controls."""
    if len(data) > MAX_BYTES:
        raise ShardlangError(sl01_text.too_large(Source(name, "").whole(), len(data), MAX_BYTES))
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as fault:
        source = Source(name, data.decode("utf-8", "replace"))
        at = len(data[: fault.start].decode("utf-8"))
        raise ShardlangError(sl01_text.not_utf8(source.span(at, at + 1), data[fault.start])) from None
    source = Source(name, text)
    check_text(source)
    return source


def check_text(source: Source) -> None:
    """Holds the bounds on a text however it was read (a decorator's string has no bytes)."""
    text = source.text
    if len(text) > MAX_BYTES:
        raise ShardlangError(sl01_text.too_large(source.span(0, 0), len(text), MAX_BYTES))
    if text.startswith("\ufeff"):
        raise ShardlangError(sl01_text.byte_order_mark(source.span(0, 1)))
    for match in _CONTROL.finditer(text):
        if match.group() != "\r":
            raise ShardlangError(sl01_text.control_character(source.span(*match.span()), ord(match.group())))


__all__ = ["MAX_BYTES", "check_text", "decode"]
