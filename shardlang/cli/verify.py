"""``shardlang verify``: the law, for every ``fn``, ``reshard`` and ``model`` of a file.

Of functions and reshards all ranks are simulated in this process. What a model does on a mesh is torch's work as well
(FSDP, hooks, autograd), so that its ranks are processes of this machine.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

import click

from shardlang.cli.session import Given, session_options
from shardlang.cli.verify_models import hold_models
from shardlang.diagnostics import Diagnostic, ShardlangError, sl05_functions

if TYPE_CHECKING:
    from shardlang.check import Program
    from shardlang.runtime.verify import Verdict


@click.command()
@click.argument("file", metavar="FILE")
@session_options
@click.option("--functions", metavar="PKG.MOD", help="The module with a Python function for each `fn`, by name.")
@click.option("--auto", is_flag=True, help="Let the planner choose the layouts inside functions.")
@click.option("--explain", is_flag=True, help="Say what it chose, each reshard with its price and the next best.")
@click.option("--tolerance", type=float, default=1e-5, show_default=True, help="Relative difference, for models.")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
def command(
    file: str, functions: str | None, auto: bool, explain: bool, tolerance: float, form: str, given: Given
) -> None:
    """Hold what FILE declares to one device: the same values, the same gradients.

    Free sizes are as small as the splits allow. A model goes through one step on ranks of this machine. Exit 1 where
    something differs.
    """
    verdicts: list[Verdict] = []
    skipped: list[str] = []
    faults: list[Diagnostic] = []
    try:
        session = given.load(file)
        _hold(session.program, functions, auto, explain, verdicts, skipped, faults)
        hold_models(session, tolerance, verdicts, skipped, faults)
    except ShardlangError as error:
        faults += error.diagnostics
    if form == "json":
        said = {
            "held": [_json(v) for v in verdicts],
            "skipped": skipped,
            "diagnostics": [d.to_json() for d in faults],
        }
        click.echo(json.dumps(said, indent=2))
        sys.exit(1 if faults else 0)
    for verdict in verdicts:
        click.echo(_line(verdict))
    for text in skipped:
        click.echo(f"skipped  {text}")
    if faults:
        raise ShardlangError(faults)


def _hold(
    program: Program,
    functions: str | None,
    auto: bool,
    explain: bool,
    verdicts: list[Verdict],
    skipped: list[str],
    faults: list[Diagnostic],
) -> None:
    """Holds every declaration of a program, and adds what was found."""
    from shardlang.runtime.verify import verify_fn, verify_reshard

    module = _module(functions)
    for fn in program.fns.values():
        if module is None:
            skipped.append(f"fn {fn.name}: give its Python function with --functions")
            continue
        function = getattr(module, fn.name, None)
        try:
            if not callable(function):
                known = [n for n in vars(module) if callable(getattr(module, n)) and not n.startswith("_")]
                raise ShardlangError(sl05_functions.no_function(fn.name, str(functions), known, fn.span))
            verdicts.append(verify_fn(fn, function, program, auto=auto, explain=explain))
        except ShardlangError as error:
            faults += error.diagnostics
    for reshard in program.reshards.values():
        try:
            verdicts.append(verify_reshard(reshard, program))
        except ShardlangError as error:
            faults += error.diagnostics


def _module(name: str | None) -> ModuleType | None:
    """The module of functions; the working directory comes first on the import path."""
    if name is None:
        return None
    sys.path.insert(0, os.getcwd())
    try:
        return import_module(name)
    except ImportError as error:
        raise ShardlangError(sl05_functions.no_module(name, str(error))) from error


def _json(verdict: object) -> dict[str, object]:
    said = {k: getattr(verdict, k) for k in ("kind", "name", "shapes", "collectives", "bytes", "gradients")}
    choices = getattr(verdict, "choices", None)
    return said if choices is None else said | {"choices": choices}


def _line(verdict: object) -> str:
    shown = _json(verdict)
    shapes = shown["shapes"]
    assert isinstance(shapes, dict)
    text = ", ".join(f"{n} {list(s)}" for n, s in shapes.items())
    grads = f", {shown['gradients']} gradients" if shown["gradients"] else ""
    line = (
        f"held     {shown['kind']} {shown['name']}: {text}{grads}; "
        f"{shown['collectives']} collectives, {shown['bytes']} bytes"
    )
    return "\n         ".join([line, *str(shown.get("choices", "")).splitlines()])
