"""``shardlang run``: trains or reshards on real ranks, beside the plan and beside one device."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from shardlang import compilation
from shardlang.cli.options import model_option, nproc_option, set_option
from shardlang.compilation import Compilation
from shardlang.diagnostics import ShardlangError, sl06_calls, sl07_launch
from shardlang.mesh import Mesh
from shardlang.source import Span

WORKER = "shardlang.cli.worker"


@click.command()
@click.argument("file", metavar="FILE")
@nproc_option
@click.option("--steps", type=click.IntRange(min=1), default=20, show_default=True, help="How many steps to train.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("--name", metavar="MODEL", help="Which model, where the file declares several.")
@model_option
@set_option
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), default=Path("out"), show_default=True,
    help="Where results, logs and the plan go, in a directory named after the file.",
)  # fmt: skip
@click.option("--tolerance", type=float, default=1e-5, show_default=True, help="Relative difference of a loss.")
@click.option(
    "--fall",
    type=click.FloatRange(0, 1),
    metavar="SHARE",
    help="Fail where the loss falls by a smaller share: 0.1 is 10%.",
)
def command(
    file: str,
    nproc: int | None,
    steps: int,
    device: str,
    form: str,
    name: str | None,
    model: str | None,
    sets: dict[str, int],
    out: Path,
    tolerance: float,
    fall: float | None,
) -> None:
    """Train the model of FILE on its mesh (or carry out its reshards), and the same on one device beside it.

    FILE is a `.shard` file or the JSON that `compile` wrote. Exit 1 where results differ beyond the tolerance, where
    the loss does not fall as `--fall` says, or a rank fails.
    """
    session = compilation.load(file, sets=sets, nproc=nproc, model=model)
    chosen = _model(session, name)
    mesh, span = _mesh(session, chosen)
    ranks = mesh.size if nproc is None else nproc
    if any(a.open for a in mesh.axes):
        raise click.UsageError(f"mesh `{mesh.name}` has an axis of open size: give `--nproc`")
    if mesh.ranks != range(ranks):
        raise ShardlangError(sl07_launch.other_ranks(span, mesh.name, mesh.ranks, ranks))
    directory = out / Path(session.source.name.strip("<>")).stem
    task = {"model": chosen, "steps": steps, "device": device, "nproc": ranks}
    with _ended_by_signals():
        if chosen is None:
            _check_device(device, ranks)
            result = _run_reshards(session, task, directory)
        else:
            result = _run_training(session, task, directory, tolerance)
    (directory / "run.json").write_text(json.dumps(result, indent=2) + "\n")
    _show(result, form)
    faults = _faults(result, tolerance, fall)
    if faults:
        raise ShardlangError(faults)


def _model(session: Compilation, name: str | None) -> str | None:
    """The model to train; ``None`` where the file only has reshards."""
    program = session.program
    known = [m for m in program.models if m in session.references]
    if name is not None:
        if name not in known:
            raise ShardlangError(sl06_calls.which_model(known))
        return name
    if len(known) > 1:
        raise ShardlangError(sl06_calls.which_model(known))
    if known:
        return known[0]
    if not session.program.reshards:
        raise ShardlangError(sl07_launch.nothing_to_run(session.source.name, list(program.models)))
    return None


def _mesh(session: Compilation, chosen: str | None) -> tuple[Mesh, Span]:
    program = session.program
    if chosen is not None:
        return program.models[chosen].mesh, program.models[chosen].span
    first = next(iter(program.reshards.values()))
    return first.mesh, first.span


def _check_device(device: str, ranks: int) -> None:
    """Raises SL0731 where there is no such device for each rank."""
    if device == "cpu":
        return
    import torch

    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if found < ranks:
        raise ShardlangError(sl07_launch.no_device(device, found, ranks))


def _run_training(session: Compilation, task: dict[str, Any], directory: Path, tolerance: float) -> dict[str, Any]:
    """Plans, starts ranks and reference, and gathers what they say."""
    from shardlang.report.run import summary
    from shardlang.runtime.launch import Companion
    from shardlang.runtime.observe import Tally, worst_rank

    name = task["model"]
    _ = session.layouts
    fault = session.untrainable(name)
    if fault is not None:
        raise ShardlangError(fault)
    _check_device(task["device"], task["nproc"])
    planned = session.step_plan(name)
    prepare(session, task, directory)
    with _progress(directory, task["steps"]):
        companion = Companion(WORKER, (str(directory), "--reference"), directory)
        try:
            _launch(task, directory)
            failed_as_told(companion.wait, directory)
        finally:
            companion.close()
    ranks = [json.loads((directory / f"rank{r}.json").read_text()) for r in range(task["nproc"])]
    one = json.loads((directory / "reference.json").read_text())
    ran = worst_rank([tuple(Tally.from_json(t) for t in r["collectives"]) for r in ranks])
    return {
        **{key: task[key] for key in ("model", "nproc", "device", "steps")},
        "mesh": str(session.program.models[name].mesh),
        "tolerance": tolerance,
        **summary(ranks, one),
        "memory_predicted_bytes": planned.memory,
        "collectives_planned": [t.to_json() for t in planned.collectives],
        "collectives_run": [t.to_json() for t in ran],
    }


def _run_reshards(session: Compilation, task: dict[str, Any], directory: Path) -> dict[str, Any]:
    """Starts the ranks, which carry out every reshard of the file."""
    meshes = {r.mesh.ranks for r in session.program.reshards.values()}
    if len(meshes) > 1 or session.open_sizes:
        raise ShardlangError(sl07_launch.open_reshards(session.source.name, list(session.open_sizes)))
    from shardlang.runtime.observe import Tally, tally, worst_rank
    from shardlang.runtime.record import Issued

    plans = session.plans
    prepare(session, task, directory)
    _launch(task, directory)
    ranks = [json.loads((directory / f"rank{r}.json").read_text()) for r in range(task["nproc"])]
    results: dict[str, Any] = {}
    for name, plan in plans.items():
        planned = tally([Issued(s.kind, s.axes, s.bytes_received, s.bytes_sent) for s in plan.steps], plan.source.mesh)
        ran = worst_rank([tuple(Tally.from_json(t) for t in r[name]["collectives"]) for r in ranks])
        results[name] = {
            "equal": all(r[name]["equal"] for r in ranks),
            "collectives_planned": [t.to_json() for t in planned if t.bytes],
            "collectives_run": [t.to_json() for t in ran],
        }
    return {"nproc": task["nproc"], "device": task["device"], "reshards": results}


def prepare(session: Compilation, task: dict[str, Any], directory: Path) -> None:
    """The directory of the run: the artefact that every process reads, and its task; nothing of an earlier run."""
    directory.mkdir(parents=True, exist_ok=True)
    for pattern in ("*.error.json", "*.progress", "rank*.json", "reference.*", "run.json"):
        for old in directory.glob(pattern):
            old.unlink()
    shutil.rmtree(directory / "logs", ignore_errors=True)
    (directory / "plan.json").write_text(json.dumps(session.artefact() | {"nproc": task["nproc"]}, indent=2))
    (directory / "task.json").write_text(json.dumps(task))


def _launch(task: dict[str, Any], directory: Path) -> None:
    from shardlang.runtime.launch import launch

    def start() -> None:
        launch(WORKER, (str(directory),), nproc=task["nproc"], directory=directory)

    failed_as_told(start, directory)


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Ends this process at once where a signal ended the run: taking torch down in good order takes seconds."""
    try:
        yield
    except ShardlangError:
        raise
    except Exception as error:
        from shardlang.runtime.launch import Interrupted

        if not isinstance(error, Interrupted):
            raise
        click.echo(str(ShardlangError(sl07_launch.interrupted(signal.Signals(error.number).name))), err=True)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(128 + error.number)


def failed_as_told(action: Any, directory: Path) -> None:
    """Runs an action; a failed process is told with its own words: its diagnostics, or its traceback."""
    from shardlang.runtime.launch import RankFailure

    try:
        action()
    except RankFailure as failure:
        who = "the one-device reference" if failure.rank is None else f"rank {failure.rank}"
        told = failure.rendered or failure.text
        if told:
            click.echo(told.rstrip() + "\n", err=True)
        raise ShardlangError(sl07_launch.rank_failed(who, failure.summary, str(directory / "logs"))) from None


@contextmanager
def _progress(directory: Path, steps: int) -> Iterator[None]:
    """A bar on standard error, from what the first rank and the reference report."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[loss]}"),
        TimeElapsedColumn(),
    )  # fmt: skip
    ended = threading.Event()
    with Progress(*columns, console=Console(stderr=True)) as bar:
        bars = {who: bar.add_task(label, total=steps, loss="") for who, label in _SIDES.items()}

        def follow() -> None:
            while True:
                last = ended.wait(0.2)
                for who, one in bars.items():
                    path = directory / f"{who}.progress"
                    lines = path.read_text().splitlines() if path.exists() else []
                    if lines:
                        bar.update(one, completed=len(lines), loss=f"loss {json.loads(lines[-1])['loss']:.4f}")
                if last:
                    return

        thread = threading.Thread(target=follow, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


_SIDES = {"ranks": "the ranks", "reference": "one device"}


def _show(result: dict[str, Any], form: str) -> None:
    if form == "json":
        click.echo(json.dumps(result, indent=2))
        return
    from rich.console import Console

    from shardlang.report.run import print_reshards, print_training

    console = Console(width=max(100, Console().width)) if not sys.stdout.isatty() else Console()
    (print_reshards if "reshards" in result else print_training)(result, console)


def _faults(result: dict[str, Any], tolerance: float, fall: float | None = None) -> list[Any]:
    """What makes the run fail; collectives that differ from the plan only warn, on standard error."""
    from shardlang.report.run import differences

    faults: list[Any] = []
    sides = result["reshards"].values() if "reshards" in result else [result]
    found = [d for one in sides for d in differences(one["collectives_planned"], one["collectives_run"])]
    if found:
        click.echo(str(ShardlangError(sl07_launch.collectives_differ(found))), err=True)
    if "reshards" in result:
        wrong = [name for name, one in result["reshards"].items() if not one["equal"]]
        return [sl07_launch.reshard_differs(name) for name in wrong]
    for what, key, limit in (
        ("the loss", "loss_max_relative_difference", tolerance),
        ("the gradient's norm", "grad_norm_max_relative_difference", 10 * tolerance),
    ):
        if not result[key] <= limit:
            faults.append(sl07_launch.results_differ(what, result[key], limit))
    if fall is not None and not result["loss_fall"] >= fall:
        faults.append(sl07_launch.loss_stays(result["loss_fall"], fall, result["steps"]))
    return faults
