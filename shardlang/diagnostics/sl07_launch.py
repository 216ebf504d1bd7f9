"""Codes SL073x: starting the ranks of a run, and how they end. Each function takes meaning and writes the prose."""

from __future__ import annotations

from collections.abc import Sequence

from shardlang.diagnostics.diagnostic import Diagnostic, message
from shardlang.diagnostics.prose import plural, quoted
from shardlang.source import Span


@message("SL0730", "a launch of other ranks than the mesh's")
def other_ranks(span: Span | None, mesh: str, ranks: range, nproc: int) -> Diagnostic:
    return Diagnostic(
        f"mesh `{mesh}` is on ranks {ranks.start}..{ranks.stop - 1}, and a run has ranks 0..{nproc - 1}",
        span,
        helps=("`run` starts the ranks of one mesh: leave `ranks ..` out of it",),
    )


@message("SL0731", "a device that this machine does not have")
def no_device(device: str, found: int, wanted: int) -> Diagnostic:
    if not found:
        return Diagnostic(
            f"there is no `{device}` device on this machine",
            notes=(f"torch finds none (`torch.{device}.is_available()` is false)",),
            helps=("run on the CPU: `--device cpu`",),
        )
    return Diagnostic(
        f"this machine has {plural(found, f'`{device}` device')}, and {wanted} ranks need one each",
        helps=(f"start {found} with `--nproc {found}`, or run on the CPU: `--device cpu`",),
    )


@message("SL0732", "a rank that failed")
def rank_failed(who: str, summary: str, log: str) -> Diagnostic:
    return Diagnostic(
        f"{who} {summary}",
        notes=("the other processes of the run were ended",),
        helps=(f"what every rank printed is in {log}",),
    )


@message("SL0733", "a run without an end")
def interrupted(signal: str) -> Diagnostic:
    return Diagnostic(f"the run was ended by {signal}", notes=("no process of it is left",))


@message("SL0734", "results that differ from one device's")
def results_differ(what: str, difference: float, tolerance: float) -> Diagnostic:
    return Diagnostic(
        f"{what} differs from one device's by {difference:.3g}, more than {tolerance:.3g}",
        notes=("a spec never changes a value: up to the order of summation, the two sides are one computation",),
    )


@message("SL0735", "nothing to run")
def nothing_to_run(name: str, models: Sequence[str]) -> Diagnostic:
    if models:
        return Diagnostic(
            f"`{name}` declares {quoted(models)} without a function that builds it",
            helps=(
                "write `model name from package.module:function on mesh`, or give `--model package.module:function`",
            ),
        )
    return Diagnostic(f"`{name}` declares neither a model nor a reshard", helps=("declare one of them",))


@message("SL0736", "a step that cannot be planned")
def step_not_planned(
    span: Span | None, model: str, reason: str, place: str = "", valueless: bool = False
) -> Diagnostic:
    """``place``: where it was raised; ``valueless``: because the value of a tensor was asked for."""
    notes = (f"raised {place}",) if place else ()
    return Diagnostic(
        f"a training step of model `{model}` cannot be gone through without data: {reason}",
        span,
        notes=(*notes, "the plan is made on tensors that have shapes and no values"),
        helps=("keep it a tensor: no `.item()`, `int(..)` or `if` of one",) if valueless else (),
    )


@message("SL0737", "collectives that differ from the plan")
def collectives_differ(differences: Sequence[str]) -> Diagnostic:
    return Diagnostic(
        "the collectives that ran are not those of the plan",
        severity="warning",
        notes=tuple(differences),
    )


@message("SL0738", "reshards that cannot be run as they are")
def open_reshards(name: str, open_names: Sequence[str]) -> Diagnostic:
    if open_names:
        return Diagnostic(
            f"the sizes of {quoted(open_names)} in `{name}` are open", helps=("give them by `let`, or as numbers",)
        )
    return Diagnostic(f"the reshards of `{name}` are on meshes of different ranks", helps=("one file a launch",))


@message("SL0739", "a reshard that gave another tensor")
def reshard_differs(name: str) -> Diagnostic:
    return Diagnostic(f"reshard `{name}` did not give the tensor that it was given")


@message("SL0740", "a loss that does not fall as it was to")
def loss_stays(fall: float, wanted: float, steps: int) -> Diagnostic:
    went = f"falls by {fall:.1%}" if fall >= 0 else f"rises by {-fall:.1%}" if fall < 0 else "is no number"
    return Diagnostic(
        f"the loss {went} in {plural(steps, 'step')}, and was to fall by {wanted:.1%}",
        notes=("the ranks train as one device does: what is amiss is the model, its data or the number of steps",),
        helps=("train longer with `--steps`, or ask for less with `--fall`",),
    )
