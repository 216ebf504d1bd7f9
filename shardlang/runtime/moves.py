"""Which pieces a rank sends and receives in a step; no torch.

An ``exchange`` (and a ``permute``, in which every rank hears from one other) follows ``plan.exchange``. The other kinds
stay within the group of the step's axes: every member holds other elements, or another part of a pending value, so
that a piece is what a member's old block and a member's new block have in common.
"""

from __future__ import annotations

from attrs import frozen

from shardlang.layout import Layout, Runs
from shardlang.mesh import Mesh
from shardlang.plan import exchange
from shardlang.plan.steps import Step
from shardlang.runtime.blocks import overlap


@frozen
class Piece:
    """Elements that go to or come from ``peer`` (itself for what stays); ``part``: coordinates on the reduced axes."""

    peer: int
    runs: tuple[Runs, ...]
    part: tuple[int, ...] = ()


@frozen
class Moves:
    """``members`` are the mesh's ranks that take part, ascending. Pieces are in order of peer, empty ones left out."""

    members: tuple[int, ...]
    sends: tuple[Piece, ...]
    receives: tuple[Piece, ...]
    reduced: tuple[str, ...]
    over: tuple[str, ...] | None
    """The leaf axes along which ranks hear from each other; ``None`` where it may be anybody."""
    even: bool
    """Do all pieces of all ranks have one size (worked out from the layouts, so that all ranks say the same)?"""


def moves(step: Step, rank: int) -> Moves:
    """What ``rank`` sends and receives in a step that is not free; pieces that stay are in both lists."""
    source, target = step.source, step.target
    reduced = exchange.reduced_axes(source, target)
    if step.kind in ("exchange", "permute") or source.mesh != target.mesh:
        return _exchanged(source, target, rank, reduced)
    mesh = source.mesh
    leaves = {leaf for name in step.axes for leaf in mesh.expand(name)}
    varying = leaves - set(source.whole_axes())
    members = neighbours(mesh, varying, rank)
    mine, wanted = source.runs(rank), target.runs(rank)
    sends = ((m, overlap(mine, target.runs(m))) for m in members)
    receives = ((m, overlap(source.runs(m), wanted)) for m in members)
    return Moves(
        members,
        tuple(Piece(m, runs) for m, runs in sends if runs is not None),
        tuple(Piece(m, runs, at(mesh, m, reduced)) for m, runs in receives if runs is not None),
        reduced,
        tuple(sorted(varying)),
        _even(source) and _even(target) and 0 not in source.shape,
    )


def _exchanged(source: Layout, target: Layout, rank: int, reduced: tuple[str, ...]) -> Moves:
    members = tuple(sorted({*source.mesh.ranks, *target.mesh.ranks}))
    receives = exchange.receives(source, target, rank)
    own = [t for t in receives if t.sender == rank]
    sends = [*exchange.sends(source, target, rank), *own]
    return Moves(
        members,
        tuple(sorted((Piece(t.receiver, t.runs) for t in sends), key=lambda p: p.peer)),
        tuple(sorted((Piece(t.sender, t.runs, t.part) for t in receives), key=lambda p: p.peer)),
        reduced,
        None,
        False,
    )


def _even(layout: Layout) -> bool:
    return not any(dim.flat for dim in layout.canonical())


def neighbours(mesh: Mesh, leaves: set[str], rank: int) -> tuple[int, ...]:
    """The ranks that differ from ``rank`` on the given leaf axes only, ascending; itself among them."""
    members = [rank]
    for axis in mesh.leaves():
        if axis.name in leaves:
            stride, here = mesh.stride(axis.name), mesh.coordinate(rank, axis.name)
            members = [m + (i - here) * stride for m in members for i in range(axis.size)]
    return tuple(sorted(members))


def at(mesh: Mesh, rank: int, axes: tuple[str, ...]) -> tuple[int, ...]:
    """The coordinates of a rank on some axes."""
    return tuple(mesh.coordinate(rank, a) for a in axes)
