"""``shardlang compile``: the result of a stage, as a file or on standard output."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from shardlang import compilation
from shardlang.cli.options import model_option, nproc_option, set_option
from shardlang.compilation import Compilation
from shardlang.diagnostics import ShardlangError, sl02_names
from shardlang.report.stages import layouts_json, node_json


def _ast(session: Compilation) -> str:
    return _json(node_json(session.tree))


def _program(session: Compilation) -> str:
    return _json(node_json(session.program) | {"layouts": {n: layouts_json(m) for n, m in session.layouts.items()}})


def _plan(session: Compilation) -> str:
    return _json(session.plans_json())


def _artefact(session: Compilation) -> str:
    return _json(session.artefact())


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


STAGES: dict[str, Callable[[Compilation], str]] = {
    "ast": _ast,
    "program": _program,
    "plan": _plan,
    "json": _artefact,
}
"""What can be emitted, and how it is made."""


@click.command()
@click.argument("file", metavar="FILE")
@click.option("-o", "--output", type=click.Path(dir_okay=False), metavar="OUT", help="Write here; default: stdout.")
@click.option("--emit", type=click.Choice(list(STAGES)), default="json", show_default=True, help="Which stage.")
@model_option
@click.option("--no-model", is_flag=True, help="Look at no model: no torch, no import of your code.")
@nproc_option
@set_option
def command(
    file: str,
    output: str | None,
    emit: str,
    model: str | None,
    no_model: bool,
    nproc: int | None,
    sets: dict[str, int],
) -> None:
    """Write the result of a stage of FILE (`-` is standard input).

    `json` is the versioned artefact that `shardlang run` takes in a file's place; `ast` is the syntax tree, `program`
    what checking made of it, `plan` the plans of every reshard.
    """
    if no_model and model:
        raise click.UsageError("--no-model excludes --model")
    session = compilation.load(file, sets=sets, nproc=nproc, model=model)
    if no_model:
        session = session.without_models()
    text = STAGES[emit](session)
    if output is None:
        click.echo(text, nl=False)
        return
    try:
        Path(output).write_text(text, encoding="utf-8")
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ShardlangError(sl02_names.unwritable_file(output, reason)) from None
