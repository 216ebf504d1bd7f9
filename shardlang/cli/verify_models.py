"""The models of ``shardlang verify``: a step of each on real ranks of this machine, beside one device."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shardlang.diagnostics import Diagnostic, ShardlangError, sl05_functions, sl07_launch

if TYPE_CHECKING:
    from shardlang.compilation import Compilation
    from shardlang.runtime.verify import Verdict

RANKS = 16
"""Models on larger meshes are not held: each rank is a process of this machine, with a copy of the model."""


def hold_models(
    session: Compilation, tolerance: float, verdicts: list[Verdict], skipped: list[str], faults: list[Diagnostic]
) -> None:
    """Holds every model of a file, and adds what was found."""
    for name, declared in session.program.models.items():
        mesh = declared.mesh
        if name not in session.references:
            skipped.append(f"model {name}: give the function that builds it with --model")
        elif any(a.open for a in mesh.axes):
            skipped.append(f"model {name}: its mesh has an axis of open size; give --nproc")
        elif mesh.size > RANKS or mesh.ranks.start != 0:
            skipped.append(f"model {name}: its mesh takes ranks {mesh.ranks.start} to {mesh.ranks.stop - 1}, and the")
            skipped[-1] += f" first {RANKS} are what this machine stands for; give a mesh of fewer"
        else:
            try:
                verdicts.append(_held(session, name, tolerance))
            except ShardlangError as error:
                faults += error.diagnostics


def _held(session: Compilation, name: str, tolerance: float) -> Verdict:
    """The verdict on a model. Raises SL0524 where a value differs, and for whatever fails before that."""
    from shardlang.cli.run import WORKER, failed_as_told, prepare
    from shardlang.report.run import differences
    from shardlang.runtime.launch import launch
    from shardlang.runtime.verify import Verdict

    declared = session.program.models[name]
    _ = session.layouts
    fault = session.untrainable(name)
    if fault is not None:
        raise ShardlangError(fault)
    planned = [t.to_json() for t in session.step_plan(name).collectives]
    ranks = declared.mesh.size
    with tempfile.TemporaryDirectory(prefix="shardlang-verify-") as place:
        directory = Path(place)
        prepare(session, {"model": name, "verify": True, "device": "cpu", "nproc": ranks}, directory)
        failed_as_told(lambda: launch(WORKER, (str(directory),), nproc=ranks, directory=directory), directory)
        found: list[dict[str, Any]] = [json.loads((directory / f"rank{r}.json").read_text()) for r in range(ranks)]
    worst = max(found, key=lambda f: f["difference"])
    if not worst["difference"] <= tolerance:
        what = f"{worst['worst']} differs by {worst['difference']:.3g} of its greatest value"
        raise ShardlangError(sl05_functions.law_broken("model", name, what, declared.span))
    from shardlang.runtime.observe import Tally, worst_rank

    ran = [t.to_json() for t in worst_rank([tuple(Tally.from_json(t) for t in f["collectives"]) for f in found])]
    apart = differences(planned, ran)
    if apart:
        click.echo(str(ShardlangError(sl07_launch.collectives_differ(apart))), err=True)
    return Verdict(
        "model",
        name,
        {n: tuple(s) for n, s in found[0]["shapes"].items()},
        sum(t["count"] for t in ran),
        sum(t["bytes"] for t in ran),
        found[0]["gradients"],
    )
