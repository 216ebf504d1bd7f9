"""What a run gave, beside what was planned and what one device gives: one object, and the same as tables."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def summary(ranks: Sequence[Mapping[str, Any]], one: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of a training run, from what each rank and the one-device reference say of themselves."""
    first = ranks[0]
    return {
        "losses": first["losses"],
        "losses_one_device": one["losses"],
        "loss_max_relative_difference": max_relative_difference(first["losses"], one["losses"]),
        "loss_fall": 1 - first["losses"][-1] / first["losses"][0],
        "grad_norms": first["grad_norms"],
        "grad_norms_one_device": one["grad_norms"],
        "grad_norm_max_relative_difference": max_relative_difference(first["grad_norms"], one["grad_norms"]),
        "memory_measured_bytes": [r["memory"].get("peak", 0) for r in ranks],
        "memory_measured_parts": [r["memory"] for r in ranks],
        "memory_one_device_bytes": one["memory"].get("peak", 0),
        "seconds_per_step": max(typical(r["seconds"]) for r in ranks),
        "seconds_per_step_one_device": typical(one["seconds"]),
    }


def max_relative_difference(left: Sequence[float], right: Sequence[float]) -> float:
    """The greatest of ``|a - b| / |b|``; infinite where one side is not a number."""
    worst = 0.0
    for a, b in zip(left, right, strict=True):
        difference = 0.0 if a == b else abs(a - b) / abs(b) if b else float("inf")
        worst = max(worst, difference if difference == difference else float("inf"))
    return worst


def typical(seconds: Sequence[float]) -> float:
    """The median time of a step, the first left out where there are others: it sets things up."""
    return statistics.median(seconds[1:] or seconds) if seconds else 0.0


def differences(planned: Iterable[Mapping[str, Any]], run: Iterable[Mapping[str, Any]]) -> list[str]:
    """In words, where two lists of collectives differ; where the plan has a bound, where what ran is above it."""
    plan = {(c["kind"], tuple(c["axes"])): c for c in planned}
    ran = {(c["kind"], tuple(c["axes"])): c for c in run}
    found: list[str] = []
    for key in sorted({*plan, *ran}):
        a, b = (side.get(key, {"count": 0, "bytes": 0}) for side in (plan, ran))
        kept = b["bytes"] <= a["bytes"] if a.get("at_most") else a["bytes"] == b["bytes"]
        if a["count"] != b["count"] or not kept:
            name = f"{key[0]} over {'/'.join(key[1])}"
            found.append(f"{name}: {a['count']} of {size_of(a)} planned, {b['count']} of {size_of(b)} ran")
    return found


def size_of(collectives: Mapping[str, Any]) -> str:
    """The bytes of collectives of a kind: ``<= 12.5 MiB`` where values decide how many they are."""
    return ("<= " if collectives.get("at_most") else "") + readable(collectives["bytes"])


def readable(size: float) -> str:
    """``12.5 MiB``."""
    unit = 0
    while size >= 1024 and unit < len(UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:.0f} {UNITS[unit]}" if unit == 0 else f"{size:.1f} {UNITS[unit]}"


def print_training(result: Mapping[str, Any], console: Console) -> None:
    """The figures of a training run as tables."""
    console.print(f"model {result['model']} on {result['mesh']}, {result['nproc']} x {result['device']}", style="bold")
    steps = Table(title="loss and gradient norm of each step", title_justify="left")
    for name in ("step", "loss", "one device", "grad norm", "one device"):
        steps.add_column(name, justify="right")
    sides = [result[key] for key in ("losses", "losses_one_device", "grad_norms", "grad_norms_one_device")]
    for i, (loss, loss_one, norm, norm_one) in enumerate(zip(*sides, strict=True)):
        steps.add_row(str(i), f"{loss:.6f}", f"{loss_one:.6f}", f"{norm:.6f}", f"{norm_one:.6f}")
    console.print(steps)
    print_collectives(result["collectives_planned"], result["collectives_run"], console, "collectives of a step")
    memory = Table(title="memory at the peak of a step", title_justify="left")
    for name in ("rank", "measured", "predicted"):
        memory.add_column(name, justify="right")
    for rank, measured in enumerate(result["memory_measured_bytes"]):
        predicted = result.get("memory_predicted_bytes")
        memory.add_row(str(rank), readable(measured), readable(predicted) if predicted is not None else "")
    memory.add_row("one device", readable(result["memory_one_device_bytes"]), "")
    console.print(memory)
    fall = result["loss_fall"]
    console.print(f"loss {'rises' if fall < 0 else 'falls'} by {abs(fall):.1%} in {result['steps']} steps")
    console.print(
        f"greatest relative difference of the loss to one device: {result['loss_max_relative_difference']:.2g}"
    )
    console.print(f"greatest relative difference of the norm: {result['grad_norm_max_relative_difference']:.2g}")
    console.print(
        f"time of a step: {result['seconds_per_step']:.3f} s, one device {result['seconds_per_step_one_device']:.3f} s"
    )


def print_collectives(
    planned: Sequence[Mapping[str, Any]], run: Sequence[Mapping[str, Any]], console: Console, title: str
) -> None:
    """Planned and run collectives side by side."""
    table = Table(title=title, title_justify="left")
    for name in ("kind", "axes"):
        table.add_column(name)
    for name in ("planned", "bytes", "run", "bytes"):
        table.add_column(name, justify="right")
    plan = {(c["kind"], tuple(c["axes"])): c for c in planned}
    ran = {(c["kind"], tuple(c["axes"])): c for c in run}
    none: Mapping[str, Any] = {"count": 0, "bytes": 0}
    for key in sorted({*plan, *ran}):
        a, b = plan.get(key, none), ran.get(key, none)
        table.add_row(key[0], "/".join(key[1]), str(a["count"]), size_of(a), str(b["count"]), size_of(b))
    console.print(table)


def print_reshards(result: Mapping[str, Any], console: Console) -> None:
    """The outcome of a file's transitions as tables."""
    for name, one in result["reshards"].items():
        print_collectives(one["collectives_planned"], one["collectives_run"], console, f"reshard {name}")
        console.print("equal to the global tensor" if one["equal"] else "DIFFERS from the global tensor")
