"""``shardlang compile``: the result of a stage, as a file or on standard output."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import click

from shardlang.cli.session import Given, session_options, write
from shardlang.compilation import Compilation
from shardlang.diagnostics import ShardlangError, sl02_names
from shardlang.report.stages import layouts_json, node_json


def _ast(session: Compilation) -> str:
    return _json(node_json(session.tree))


def _program(session: Compilation) -> str:
    return _json(node_json(session.program) | {"layouts": {n: layouts_json(m) for n, m in session.layouts.items()}})


def _plan(session: Compilation) -> str:
    """Reshards by their names; training steps by ``model NAME``, which no reshard can be called."""
    return _json(session.plans_json() | {f"model {name}": step for name, step in session.steps_json().items()})


def _artefact(session: Compilation) -> str:
    return _json(session.artefact())


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _python(session: Compilation) -> str:
    """The only model of a file that something builds, as plain torch."""
    names = [name for name in session.program.models if name in session.references]
    if len(names) != 1:
        return _nothing("python")(session)
    return session.python_source(names[0])


def _svg(session: Compilation) -> str:
    """Plans and layouts as one drawing."""
    if not session.plans and not session.layouts:
        return _nothing("svg")(session)
    from shardlang.report.page import file_svg, sections

    return file_svg(sections(session.plans, session.layouts, session.lock))


def _html(session: Compilation) -> str:
    """The same as a page, with the figures."""
    if not session.plans and not session.layouts:
        return _nothing("html")(session)
    from shardlang.report.page import file_page, sections

    return file_page(session.source.name, sections(session.plans, session.layouts, session.lock))


def _nothing(stage: str) -> Callable[[Compilation], str]:
    """Refuses with SL0226, once the file is checked."""

    def refuse(session: Compilation) -> str:
        file = session.program.source.name
        raise ShardlangError(sl02_names.no_product(file, stage, ["ast", "program", "plan", "json"]))

    return refuse


STAGES: dict[str, Callable[[Compilation], str]] = {
    "ast": _ast,
    "program": _program,
    "plan": _plan,
    "json": _artefact,
    "python": _python,
    "svg": _svg,
    "html": _html,
}
"""What can be emitted, and how it is made."""


@click.command()
@click.argument("file", metavar="FILE")
@click.option("-o", "--output", type=click.Path(dir_okay=False), metavar="OUT", help="Write here; default: stdout.")
@click.option("--emit", type=click.Choice(list(STAGES)), default="json", show_default=True, help="Which stage.")
@session_options
def command(file: str, output: str | None, emit: str, given: Given) -> None:
    """Write the result of a stage of FILE (`-` is standard input).

    `json` is the versioned artefact that `shardlang run` takes in a file's place; `ast` is the syntax tree, `program`
    what checking made of it, `plan` the plans of every reshard and of a training step of every model; `python` is the
    file's model in torch's words alone, a program that needs no shardlang; `svg` and `html` draw who holds what.
    """
    write(STAGES[emit](given.load(file)), output)
