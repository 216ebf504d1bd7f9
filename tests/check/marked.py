"""Texts with the place of a fault marked by guillemets, so that a test shows what a diagnostic points at."""

from __future__ import annotations

from collections.abc import Mapping

from shardlang.check import Program, check
from shardlang.diagnostics import Diagnostic, ShardlangError
from shardlang.source import Source
from shardlang.syntax.parse import parse


def unmark(text: str) -> tuple[str, list[tuple[int, int]]]:
    """The text without marks, and what each pair of marks enclosed."""
    clean, spans, opened = "", [], []
    for character in text:
        if character == "«":
            opened.append(len(clean))
        elif character == "»":
            spans.append((opened.pop(), len(clean)))
        else:
            clean += character
    return clean, spans


def program(text: str, *, nproc: int | None = None, sets: Mapping[str, int] = {}) -> Program:
    return check(parse(Source("test.shard", text)), nproc=nproc, sets=sets)


def faults(text: str, *, nproc: int | None = None, sets: Mapping[str, int] = {}) -> tuple[Diagnostic, ...]:
    """What checking a text reports."""
    try:
        program(text, nproc=nproc, sets=sets)
    except ShardlangError as error:
        return error.diagnostics
    return ()


def assert_faults(text: str, *codes: str, nproc: int | None = None, sets: Mapping[str, int] = {}) -> None:
    """The text has just these faults, in order, each at one of the marks, in order."""
    clean, spans = unmark(text)
    found = faults(clean, nproc=nproc, sets=sets)
    assert [d.code for d in found] == list(codes), [str(ShardlangError(d)) for d in found]
    assert [(d.span.start, d.span.end) for d in found if d.span] == spans, [str(ShardlangError(d)) for d in found]
