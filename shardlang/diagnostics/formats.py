"""Diagnostics for machines: the list of ``--format json`` and the workflow commands of ``--format github``."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Literal

from shardlang.diagnostics.diagnostic import Diagnostic
from shardlang.diagnostics.render import render_all

Format = Literal["text", "json", "github"]
FORMATS: tuple[Format, ...] = ("text", "json", "github")


def show(diagnostics: Iterable[Diagnostic], form: Format, *, colour: bool = False) -> str:
    """Diagnostics in one of the forms of ``--format``, without a newline at the end; no diagnostics are ``[]`` as JSON
    and nothing otherwise."""
    if form == "json":
        return json.dumps([d.to_json() for d in diagnostics], indent=2)
    if form == "github":
        return "\n".join(github(d) for d in diagnostics)
    return render_all(diagnostics, colour=colour)


def github(diagnostic: Diagnostic) -> str:
    """The workflow command by which GitHub shows a diagnostic beside the line it is about."""
    properties = {"title": diagnostic.code}
    if diagnostic.span is not None:
        (line, column), (end_line, end_column) = diagnostic.span.begin, diagnostic.span.finish
        properties = {"file": diagnostic.span.source.name, "line": str(line), "endLine": str(end_line), **properties}
        if line == end_line:
            # Columns are only allowed where the span is in one line; GitHub's end is included.
            properties |= {"col": str(column), "endColumn": str(max(column, end_column - 1))}
    text = "\n".join((diagnostic.message, *diagnostic.notes, *diagnostic.helps))
    given = ",".join(f"{key}={_escape(value, ':,')}" for key, value in properties.items())
    return f"::{diagnostic.severity} {given}::{_escape(text)}"


def _escape(text: str, more: str = "") -> str:
    for character in "%\r\n" + more:
        text = text.replace(character, f"%{ord(character):02X}")
    return text


__all__ = ["FORMATS", "Format", "github", "show"]
