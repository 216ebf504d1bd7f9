"""The modelled time of an operator on one rank, in picoseconds, by the numbers of ``spec/cost.md``.

The greater of its multiplications and additions at ``ARITHMETIC`` and of the bytes of its operands and results at
``TRAFFIC``; views take none. Work that every rank repeats counts in full on each, so that it is not free.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from shardlang.mesh import Mesh
from shardlang.trace.call import operator_name
from shardlang.trace.pieces import State, axes_of
from shardlang.trace.rule import Rule
from shardlang.trace.rules import names

ARITHMETIC = 100
"""Multiply-adds in a picosecond: 200 TFLOP/s."""
TRAFFIC = 2
"""Bytes of a device's memory in a picosecond: 2 TB/s."""

FREE = names(
    "view reshape _unsafe_view transpose t permute unsqueeze squeeze flatten unflatten alias numpy_T mT select slice "
    "expand expand_as chunk split split_with_sizes unbind movedim detach view_as view_as_real view_as_complex "
    "contiguous lift_fresh"
)
"""Operators that give the same storage seen differently (as a rule)."""


def work_of(
    op: Any,
    rule: Rule | None,
    axes: frozenset[str],
    mesh: Mesh,
    operands: Sequence[tuple[State, torch.dtype]],
    results: Sequence[tuple[State, torch.dtype]],
    passes: int,
) -> int:
    """Time of one operator. ``axes``: those that split a factor of its rule; ``passes``: 1, or 3 with its backward."""
    if is_free(op):
        return 0
    arithmetic = multiply_adds(op, rule) // _ways(axes, mesh) // ARITHMETIC if rule is not None else 0
    moved = sum(
        math.prod(s.shape) // _ways((a for p in s.pieces for a in axes_of(p, mesh)), mesh) * d.itemsize
        for s, d in (*operands, *results)
    )
    return passes * max(arithmetic, moved // TRAFFIC)


def is_free(op: Any) -> bool:
    """Does an operator only see storage differently?"""
    return ".".join(operator_name(op).split(".")[:2]) in FREE


def multiply_adds(op: Any, rule: Rule) -> int:
    """Multiplications and additions of products, convolutions and attention on one device; 0 for other operators."""
    name = operator_name(op).split(".")[1]
    sizes = rule.sizes
    if name == "scaled_dot_product_attention":
        return math.prod(n for k, n in sizes.items() if k not in ("e", "f")) * (sizes["e"] + sizes["f"])
    if name.startswith("conv"):
        window = math.prod(n for k, n in sizes.items() if k[0] in "ky")
        return sizes["n"] * sizes["o"] * sizes.get("cg", sizes["c"]) * window
    return math.prod(sizes[n] for n in rule.names()) if rule.contract else 0


def _ways(axes: Iterable[str], mesh: Mesh) -> int:
    return math.prod(mesh.axis(a).size for a in axes)
