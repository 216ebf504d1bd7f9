"""Codes SL04: plans. Each function takes meaning and writes the prose."""

from __future__ import annotations

from shardlang.diagnostics.diagnostic import Diagnostic, message
from shardlang.diagnostics.prose import named
from shardlang.source import Span


@message("SL0401", "a plan between different shapes")
def shapes_differ(source: str, target: str) -> Diagnostic:
    return Diagnostic(
        f"`{source}` and `{target}` are layouts of tensors of different shapes",
        notes=("a plan moves one tensor from one layout to another; it never changes the shape",),
    )


@message("SL0402", "a reduction that the dtype has not")
def no_such_reduction(axis: str, op: str, dtype: str, layout: str, span: Span | None = None) -> Diagnostic:
    return Diagnostic(
        f"{named(layout)} is pending {op} over `{axis}`, and `{dtype}` has no {op}",
        span,
        notes=("complex numbers have no order",),
    )


@message("SL0403", "a cap below what the ends of a plan need")
def cap_below_one(cap: float) -> Diagnostic:
    return Diagnostic(
        f"a cap of {cap:g}x leaves no room for the source and the destination themselves",
        notes=("the cap is in units of the larger of the two; arrays under 1 MiB are never over it",),
        helps=("give a cap of 1 or more, or `none` to lift it",),
    )


@message("SL0404", "pending reductions whose order matters")
def pending_order(layout: str, first: str, second: str) -> Diagnostic:
    return Diagnostic(
        f"the reductions of `{layout}` do not commute: `{first}` and `{second}`",
        notes=("sum goes with avg; max goes alone; min goes alone",),
        helps=("reduce one of them before the other becomes pending",),
    )


@message("SL0405", "a gradient that needs the values")
def no_dual(axis: str, op: str, layout: str) -> Diagnostic:
    return Diagnostic(
        f"`{layout}` is pending {op} over `{axis}`, so its gradient cannot be planned from layouts alone",
        notes=(f"the gradient of a {op} goes to the ranks whose values were the {op}",),
        helps=(f"reduce `{axis}` where the values are at hand, before this transition",),
    )
