"""Reductions of parts: one order, one rounding, the same on every rank and in every back end."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import torch

from shardlang.layout import ReduceOp

_WIDER = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float8_e4m3fn: torch.float32,
    torch.float8_e5m2: torch.float32,
}
"""Narrow floats are added in float32 and rounded once, so that the order of the ranks hardly matters."""


def identity(dtype: torch.dtype, op: ReduceOp) -> bool | int | float:
    """The element that changes nothing under ``op`` (for avg: under its sum)."""
    if op in ("sum", "avg"):
        return False if dtype == torch.bool else 0
    if dtype == torch.bool:
        return op == "min"
    if dtype.is_floating_point:
        bounds = torch.finfo(dtype)
        infinite = dtype != torch.float8_e4m3fn
        if op == "max":
            return float("-inf") if infinite else bounds.min
        return float("inf") if infinite else bounds.max
    limits = torch.iinfo(dtype)
    return limits.min if op == "max" else limits.max


def combine(parts: Sequence[torch.Tensor], op: ReduceOp, *, divide: int | None = None) -> torch.Tensor:
    """Reduces equal-shaped parts, first to last, into a new tensor of their dtype.

    ``divide`` divides a sum (by default avg divides by the number of parts). Sums of bool are ``or``; an average of
    integers rounds down. Raises ``TypeError`` for max and min of complex numbers.
    """
    dtype = parts[0].dtype
    if op == "avg" and divide is None:
        divide = len(parts)
    wide = _WIDER.get(dtype, dtype)
    total = parts[0].to(wide, copy=True)
    for part in parts[1:]:
        fold(total, part.to(wide), op)
    if divide is not None and divide != 1:
        total = scaled(total, Fraction(1, divide))
    return total.to(dtype)


def fold(total: torch.Tensor, part: torch.Tensor, op: ReduceOp) -> None:
    """Reduces ``part`` into ``total``, in place."""
    if total.dtype.is_complex and op in ("max", "min"):
        raise TypeError("complex numbers have no order")
    if op in ("sum", "avg"):
        total.logical_or_(part) if total.dtype == torch.bool else total.add_(part)
    elif total.dtype == torch.bool:
        total.logical_or_(part) if op == "max" else total.logical_and_(part)
    elif op == "max":
        torch.maximum(total, part, out=total)
    else:
        torch.minimum(total, part, out=total)


def scaled(x: torch.Tensor, factor: Fraction) -> torch.Tensor:
    """``x`` times a fraction, in ``x``'s dtype; integers round down, bool stays as it is."""
    if x.dtype == torch.bool:
        return x.clone()
    if not (x.dtype.is_floating_point or x.dtype.is_complex):
        return torch.div(x * factor.numerator, factor.denominator, rounding_mode="floor").to(x.dtype)
    wide = _WIDER.get(x.dtype, x.dtype)
    y = x.to(wide)
    # Multiplying by a power of two is exact, dividing by the denominator rounds once.
    if factor.numerator != 1:
        y = y * factor.numerator
    if factor.denominator != 1:
        y = y / factor.denominator
    return y.to(x.dtype) if y is not x else x.clone()
