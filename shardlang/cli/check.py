"""``shardlang check``: diagnostics, and nothing else."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from shardlang.cli.session import Given, session_options
from shardlang.diagnostics import Diagnostic, ShardlangError
from shardlang.diagnostics.formats import FORMATS, Format, show


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE..")
@session_options
@click.option("--format", "form", type=click.Choice(FORMATS), default="text", show_default=True)
@click.option("--fix", is_flag=True, help="Make the edits that are surely right, in place.")
def command(files: tuple[str, ...], form: Format, fix: bool, given: Given) -> None:
    """Report every fault of FILES (`-` is standard input), and of the models that they are for.

    Exit 0: no error; 1: errors; 2: wrong usage.
    """
    if fix and "-" in files:
        raise click.UsageError("--fix edits files in place, and standard input is none")
    found: list[Diagnostic] = []
    for file in files:
        found += _check(file, given, fix=fix)
    failed = any(d.severity == "error" for d in found)
    if form == "text":
        if found:
            colour = sys.stderr.isatty() and "NO_COLOR" not in os.environ
            click.echo(show(found, form, colour=colour), err=True)
    else:
        text = show(found, form)
        if text:
            click.echo(text)
    sys.exit(1 if failed else 0)


def _check(file: str, given: Given, *, fix: bool) -> tuple[Diagnostic, ...]:
    """The diagnostics of one file, after its fixes where they are asked for."""
    for _ in range(8):
        try:
            session = given.load(file)
        except ShardlangError as error:
            found = error.diagnostics
            source = next((d.fix.span.source for d in found if d.fix is not None), None)
        else:
            found, source = session.diagnose(), session.source
        edited = _fixed(source.text, found) if fix and source is not None else None
        if edited is None or source is None or source.name != file:
            return found
        Path(file).write_text(edited, encoding="utf-8", newline="")
    return found


def _fixed(text: str, found: tuple[Diagnostic, ...]) -> str | None:
    """The text with every fix made that touches no other; ``None`` where there is none."""
    fixes = sorted((d.fix for d in found if d.fix is not None), key=lambda f: (f.span.start, f.span.end))
    kept, end = [], -1
    for fix in fixes:
        if fix.span.start >= end and text[fix.span.start : fix.span.end] == fix.span.text:
            kept.append(fix)
            end = max(fix.span.end, fix.span.start + 1)
    for fix in reversed(kept):
        text = text[: fix.span.start] + fix.replacement + text[fix.span.end :]
    return text if kept else None
