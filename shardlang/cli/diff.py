"""``shardlang diff``: what a change of a file means."""

from __future__ import annotations

import json
import sys

import click

from shardlang.cli.session import Given, session_options
from shardlang.report.difference import differences
from shardlang.report.lock import Lock, is_lock, read_lock
from shardlang.syntax.reading import read_bytes


@click.command()
@click.argument("old", metavar="OLD")
@click.argument("new", metavar="NEW")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
@session_options
def command(old: str, new: str, form: str, given: Given) -> None:
    """Say what differs between two versions, each a `.shard` file, its compiled JSON, or a lock.

    Exit 0 where both mean the same, 1 where they differ.
    """
    if old == new == "-":
        raise click.UsageError("only one of the two can be standard input")

    found = differences(_lock(old, given), _lock(new, given))
    if form == "json":
        click.echo(json.dumps(found, indent=2))
    else:
        for line in found:
            click.echo(line)
    sys.exit(1 if found else 0)


def _lock(path: str, given: Given) -> Lock:
    name, data = read_bytes(path)
    if is_lock(data):
        return read_lock(name, data)
    return given.of(name, data).lock
