"""``shardlang import``: another notation's layouts as ``.shard`` text."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable

import click

from shardlang.diagnostics import ShardlangError
from shardlang.diagnostics.formats import show
from shardlang.interchange import Imported
from shardlang.source import Source
from shardlang.syntax.reading import read_source


@click.group()
def command() -> None:
    """Write another notation's layouts as a .shard file on standard output.

    What the notation cannot say is reported on standard error, and the rest is still written. Exit 0: all was said;
    1: something was left out, or the input is at fault; 2: wrong usage. `--format json` prints text and diagnostics as
    one object.
    """


_format = click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)


@command.command()
@click.argument("file")
@_format
def jax(file: str, form: str) -> None:
    """A pytree of PartitionSpecs as JSON (FILE, or `-` for standard input).

    \b
    {"mesh": {"data": 2, "model": 4},
     "specs":  {"layer": {"w": [["data", "model"], null], "b": []}},
     "shapes": {"layer": {"w": [4096, 512],               "b": [512]}}}
    """
    from shardlang.interchange.jax_specs import import_jax

    _write(import_jax, file, form)


@command.command()
@click.argument("file")
@_format
def hf(file: str, form: str) -> None:
    """A tp_plan of transformers as JSON (FILE, or `-` for standard input).

    \b
    {"layers.*.self_attn.q_proj": "colwise", "layers.*.self_attn.o_proj": "rowwise"}

    or, with names and shapes, from which biases are known and sizes are checked:

    \b
    {"tp_plan": {...}, "mesh": {"tp": 8},
     "parameters": {"layers.0.self_attn.q_proj.weight": [4096, 4096], ...}}
    """
    from shardlang.interchange.tp_plan import import_hf

    _write(import_hf, file, form)


def _write(read: Callable[[Source], Imported], file: str, form: str) -> None:
    try:
        imported = read(read_source(file))
    except ShardlangError as error:
        imported = Imported("", error.diagnostics)
    if form == "json":
        said = {"text": imported.text, "diagnostics": [d.to_json() for d in imported.diagnostics]}
        click.echo(json.dumps(said, indent=2))
    else:
        click.echo(imported.text, nl=False)
        if imported.diagnostics:
            colour = sys.stderr.isatty() and "NO_COLOR" not in os.environ
            click.echo(show(imported.diagnostics, "text", colour=colour), err=True)
    sys.exit(1 if any(d.severity == "error" for d in imported.diagnostics) else 0)
