"""``shardlang lock``: what a file comes down to, as text for reviews."""

from __future__ import annotations

import click

from shardlang.cli.session import Given, session_options, write
from shardlang.diagnostics import ShardlangError, sl06_budgets
from shardlang.report.difference import differences
from shardlang.report.lock import lock_text, read_lock
from shardlang.syntax.reading import read_bytes


@click.command()
@click.argument("file", metavar="FILE")
@click.option("-o", "--output", type=click.Path(dir_okay=False), metavar="LOCK", help="Write here; default: stdout.")
@click.option("--check", "against", metavar="LOCK", help="Write nothing; exit 1 where LOCK says something else.")
@session_options
def command(file: str, output: str | None, against: str | None, given: Given) -> None:
    """Write what FILE comes down to: layouts of all parameters, calls, collectives, memory, plans.

    Keep the text beside FILE: a change of what is declared then shows as a change of what it means.
    """
    if output is not None and against is not None:
        raise click.UsageError("--check excludes --output")
    lock = given.load(file).lock
    if against is None:
        write(lock_text(lock), output)
        return
    found = differences(read_lock(*read_bytes(against)), lock)
    if found:
        raise ShardlangError(sl06_budgets.lock_out_of_date(file, against, found))
