"""Codes SL065: budgets. Each function takes meaning and writes the prose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shardlang.diagnostics.diagnostic import Diagnostic, message
from shardlang.diagnostics.prose import quoted
from shardlang.source import Span

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def size_text(count: int) -> str:
    """``61.3 GiB``: bytes as people read them, four digits at most."""
    value, unit = float(count), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{count} B" if unit == 0 else f"{value:.4g} {_UNITS[unit]}"


@message("SL0651", "a model that takes more memory than its budget")
def memory_over(
    span: Span, model: str, needed: int, limit: int, parts: Mapping[str, int], ungrouped: int, ways: int | None
) -> Diagnostic:
    """``ways``: how many times as many ranks would have to share what is stored; ``None`` where none would do."""
    notes = [
        ", ".join(f"{name} {size_text(size)}" for name, size in parts.items()) + "; activations are not counted",
        "the optimizer is taken to be AdamW, with two states in the parameter's dtype",
    ]
    helps: list[str] = []
    if ungrouped * 20 > needed:
        helps.append(f"{size_text(ungrouped)} are of parameters that no `fsdp` line stores in parts: add one")
    if ways is not None and ways > 1:
        helps.append(f"{ways} times as many ranks to share what is stored would do: name more axes after `over`")
    elif ways is None:
        helps.append("gather less at once: `reshard yes`, or an `fsdp` line for smaller modules")
    return Diagnostic(
        f"model `{model}` takes at least {size_text(needed)} on a rank, and its budget is {size_text(limit)}",
        span,
        label=f"{size_text(needed - limit)} too little",
        notes=tuple(notes),
        helps=tuple(helps),
    )


@message("SL0652", "a step that the budget forbids")
def forbidden_step(span: Span, model: str, kind: str, link: str, axes: Sequence[str], who: str) -> Diagnostic:
    article = "an" if kind[0] in "aeiou" else "a"
    return Diagnostic(
        f"{who} of model `{model}` sends {article} {kind} over {quoted(axes)}, which is on `{link}`",
        span,
        label="forbidden here",
        helps=("split over an axis of another link, or lift the limit",),
    )


@message("SL0653", "a peak that no plan can keep")
def impossible_peak(span: Span, peak: float) -> Diagnostic:
    return Diagnostic(
        f"no plan keeps its largest array under {peak:g} times the larger of source and destination",
        span,
        label="less than the ends themselves",
        helps=("write `peak <= 1.0x`, which every plan keeps by default",),
    )


@message("SL0654", "a lock that its file no longer agrees with")
def lock_out_of_date(file: str, lock: str, differences: Sequence[str]) -> Diagnostic:
    shown = list(differences[:12])
    if len(differences) > len(shown):
        shown.append(f"and {len(differences) - len(shown)} more differences")
    return Diagnostic(
        f"`{file}` no longer comes down to what `{lock}` says",
        notes=tuple(shown),
        helps=(f"if that is meant: `shardlang lock {file} -o {lock}`",),
    )


@message("SL0655", "a lock that cannot be read")
def unreadable_lock(lock: str, line: int, reason: str) -> Diagnostic:
    return Diagnostic(
        f"`{lock}` is no lock that this shardlang reads: line {line}: {reason}",
        helps=("write it again: `shardlang lock FILE -o LOCK`",),
    )


@message("SL0656", "a budget that is not held")
def budget_not_held(span: Span, model: str, mesh: str, axis: str) -> Diagnostic:
    return Diagnostic(
        f"the budget of `{model}` is not held: the size of axis `{axis}` of mesh `{mesh}` is open",
        span,
        severity="warning",
        helps=("give the number of ranks: `--nproc N`",),
    )
