"""A local program: the same operators on local shapes, with explicit moves between layouts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from attrs import frozen
from torch import fx
from torch.utils import _pytree as pytree

from shardlang.layout import Layout
from shardlang.plan.plan import Plan
from shardlang.trace.capture import Site

Reason = Literal["boundary", "asked", "chosen", "operator", "gradient"]


@frozen
class Move:
    """A change of layout: ``forward`` carries the value, ``backward`` its gradient; ``None`` passes it as it is.

    ``reason``: at the ``boundary`` of a signature, ``asked`` for by ``sl.reshard``, ``chosen`` under ``auto``, made by
    an ``operator`` that was rewritten, or for the ``gradient`` alone.
    """

    forward: Plan | None
    backward: Plan | None
    reason: Reason
    name: str
    site: Site | None = None


def move(x: torch.Tensor, index: int) -> torch.Tensor:
    """Stands in a local graph for move ``index`` of the program; whoever runs the graph carries it out."""
    raise RuntimeError("a move is carried out by whoever runs the local program")


def rank_value(index: int) -> Any:
    """Stands in a local graph for a literal that differs between ranks: number ``index`` of the program's."""
    raise RuntimeError("a rank's value is given by whoever runs the local program")


DrawKind = Literal["kept", "bernoulli", "uniform", "normal", "integers"]


@frozen
class Draw:
    """Random numbers for a rank's block of ``layout``, by seed and global index.

    ``kept``: a dropout mask, zero with probability ``first``, else ``1 / (1 - first)``. ``bernoulli``: one with
    probability ``first``, else zero. ``uniform`` and ``integers``: from ``first`` up to below ``second``. ``normal``:
    with mean ``first`` and deviation ``second``.
    """

    layout: Layout
    dtype: torch.dtype
    kind: DrawKind
    first: float
    second: float = 0.0


@frozen
class Decision:
    """A place where ``auto`` chose: the ways there were, cheapest by itself first, with picoseconds and bytes."""

    operator: str
    site: Site | None
    ways: tuple[tuple[str, int, int], ...]
    taken: int


def draw(index: int) -> torch.Tensor:
    """Stands in a local graph for draw ``index`` of the program, by seed and global index."""
    raise RuntimeError("random numbers are drawn by whoever runs the local program")


def inner(index: int, *blocks: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Stands in a local graph for call ``index`` of those that the trace did not look into, on this rank's blocks."""
    raise RuntimeError("an inner call is made by whoever runs the local program")


@frozen
class InnerCall:
    """Inner call ``number`` of a trace: the layouts in which its tensors come and those of its results."""

    number: int
    name: str
    arguments: tuple[Layout, ...]
    dtypes: tuple[torch.dtype, ...]
    results: tuple[Layout, ...]
    result_dtypes: tuple[torch.dtype, ...]


@frozen(eq=False)
class LocalProgram:
    """What each rank runs. ``graph`` takes the local block of each argument and returns those of the results.

    Its nodes call operators, ``move``, ``rank_value``, ``draw`` and ``inner``; ``constants`` are what its ``get_attr``
    nodes name.
    ``rank_values[i](rank)`` is a literal for a rank. ``gradients`` are the layouts of the arguments' gradients.
    ``work`` is the modelled time of its operators, in picoseconds.
    """

    name: str
    graph: fx.Graph
    moves: tuple[Move, ...]
    rank_values: tuple[Callable[[int], Any], ...]
    constants: dict[str, torch.Tensor]
    argument_names: tuple[str, ...]
    arguments: tuple[Layout, ...]
    gradients: tuple[Layout, ...]
    results: tuple[Layout, ...]
    structure: pytree.TreeSpec
    dtypes: tuple[torch.dtype, ...]
    result_dtypes: tuple[torch.dtype, ...]
    draws: tuple[Draw, ...] = ()
    decisions: tuple[Decision, ...] = ()
    work: int = 0
    inner: tuple[InnerCall, ...] = ()
    explain: Callable[[], str] | None = None
    """Says what ``auto`` chose and the next best, where it chose for the least time."""
