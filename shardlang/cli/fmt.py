"""``shardlang fmt``: files written in the one way that the language has."""

from __future__ import annotations

import difflib
import os
import sys
from pathlib import Path

import click

from shardlang.diagnostics import Diagnostic, ShardlangError, sl02_names
from shardlang.diagnostics.render import render_all


@click.command("fmt")
@click.argument("files", nargs=-1, required=True, metavar="FILE..")
@click.option("--check", is_flag=True, help="Write nothing; exit 1 where a file is not formatted.")
@click.option("--diff", is_flag=True, help="Write nothing; print what would change, and exit 1 where anything would.")
def command(files: tuple[str, ...], check: bool, diff: bool) -> None:
    """Format FILES in place (`-` reads standard input and prints).

    Comments stay. Exit 0: done, or nothing to do; 1: a file does not parse, or with --check or --diff is not formatted.
    """
    from shardlang.syntax.format import format_source
    from shardlang.syntax.reading import read_source

    faults: list[Diagnostic] = []
    changed = False
    for file in files:
        name = "<stdin>" if file == "-" else file
        try:
            source = read_source(file)
            text = format_source(source)
        except ShardlangError as error:
            faults += error.diagnostics
            continue
        differs = text != source.text
        changed = changed or differs
        if diff:
            click.echo("".join(_diff(name, source.text, text)), nl=False)
        if check and differs:
            click.echo(f"{name} is not formatted", err=True)
        if check or diff:
            continue
        if file == "-":
            click.echo(text, nl=False)
        elif differs:
            try:
                Path(file).write_text(text, encoding="utf-8", newline="")
            except OSError as error:
                faults.append(sl02_names.unwritable_file(file, (error.strerror or str(error)).lower()))
    if faults:
        colour = sys.stderr.isatty() and "NO_COLOR" not in os.environ
        click.echo(render_all(faults, colour=colour), err=True)
    sys.exit(1 if faults or (changed and (check or diff)) else 0)


def _diff(name: str, old: str, new: str) -> list[str]:
    def rows(text: str) -> list[str]:
        """Its lines; one without an end gets one and says so, as ``diff`` does."""
        found = text.splitlines(keepends=True)
        if found and not found[-1].endswith("\n"):
            found[-1] += "\n\\ No newline at end of file\n"
        return found

    return list(difflib.unified_diff(rows(old), rows(new), name, f"{name} (formatted)"))
