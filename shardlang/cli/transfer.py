"""``shardlang transfer``: what the ``transfer`` lines of a file move, before anything does."""

from __future__ import annotations

import json

import click

from shardlang.cli.reshard_checkpoint import size_of
from shardlang.cli.session import Given, session_options
from shardlang.diagnostics import ShardlangError, sl07_state


@click.command()
@click.argument("file", metavar="FILE")
@click.option("--staging", callback=size_of, default="64MiB", show_default=True, help="Packed at once on a rank.")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
@session_options
def command(file: str, staging: int, form: str, given: Given) -> None:
    """Plan every `transfer a => b` of FILE: the bytes that each rank receives and sends, and in how many rounds.

    It is what `program.transfer` does with placed models. Exit 0: planned; 1: a fault of the file; 2: wrong usage.
    """
    session = given.load(file)
    if not session.program.transfers:
        raise ShardlangError(sl07_state.nothing_to_transfer(session.source.name, list(session.program.models)))
    known = session.layouts
    from shardlang.runtime.transfer import declared_plan

    plans = {}
    for one in session.program.transfers:
        for name in (one.source, one.target):
            if name not in known:
                raise ShardlangError(sl07_state.weights_unknown(one.span, name))
        module = session.build(one.source) if one.source in session.references else None
        plans[f"{one.source} => {one.target}"] = declared_plan(known[one.source], known[one.target], module, staging)
    if form == "json":
        click.echo(json.dumps({name: plan.to_json() for name, plan in plans.items()}, indent=2))
        return
    for name, plan in plans.items():
        click.echo(f"{name}: {plan}")
