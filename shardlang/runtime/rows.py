"""Rows that go where values say: the way of tokens to their experts and back, by all-to-all over one mesh axis.

How many rows go from one rank to another is known only once the values are there, so that ranks tell each other first
(an all-to-all of the counts, and one wait of the host), and no plan can say more than a bound: a rank receives at most
the rows of all the others, and home again at most its own. In a step that is planned without values the bounds are
noted as such, and the shapes are those of rows that spread evenly.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from attrs import frozen
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from shardlang.diagnostics import ShardlangError, sl07_runtime
from shardlang.lower import torch_tracing
from shardlang.lower.placements import mesh_of, ranks_of
from shardlang.runtime import collectives, record
from shardlang.runtime.collectives import Label
from shardlang.runtime.faults import told_apart
from shardlang.runtime.groups import Group, group_of

_meshes: list[DeviceMesh | None] = []
"""Whose blocks the function at work has, innermost last; ``None``: it has whole tensors, on one device."""


@contextmanager
def on_mesh(mesh: DeviceMesh | None) -> Iterator[None]:
    """Inside, axes that ``send_rows`` names are those of this mesh; without one, there is one device."""
    _meshes.append(mesh)
    try:
        yield
    finally:
        _meshes.pop()


@frozen(eq=False)
class _Axis:
    """The ranks that differ from this one on an axis alone. ``places[i]``: where in the group's own order the one with
    coordinate ``i`` is. Without a group there is one rank."""

    name: str
    group: Group | None
    places: tuple[int, ...]

    @property
    def size(self) -> int:
        return len(self.places)


@frozen(eq=False)
class _Route:
    """How many rows this rank gives each rank of the axis (``out``) and takes from each (``home``), by coordinate.

    A route without sizes is of a step without values, in which ``rows`` of them go and as many come.
    """

    axis: _Axis
    out: tuple[int, ...] | None
    home: tuple[int, ...] | None
    rows: int

    def carry(self, rows: Tensor, homeward: bool) -> Tensor:
        """The rows that come, by where they come from."""
        group, places = self.axis.group, self.axis.places
        if group is None:
            return rows.view_as(rows)
        given, got = (self.home, self.out) if homeward else (self.out, self.home)
        if given is None or got is None:
            return self._bounded(rows, homeward)
        order = _inverse(places)
        width = math.prod(rows.shape[1:])
        sent, received = [given[i] for i in order], [got[i] for i in order]
        made = rows.new_empty(sum(got), *rows.shape[1:])
        with told_apart(group.ranks, f"rows on their way {'home ' if homeward else ''}over `{self.axis.name}`"):
            collectives.all_to_all(
                group,
                Label("all_to_all", (self.axis.name,)),
                made.view(-1),
                _permuted(rows, given, places).reshape(-1),
                [n * width for n in received],
                [n * width for n in sent],
            ).wait()
        return _permuted(made, received, order)

    def _bounded(self, rows: Tensor, homeward: bool) -> Tensor:
        """Notes the most that can come, in a step without values."""
        own, others = self.rows, self.rows * (self.axis.size - 1)
        width = math.prod(rows.shape[1:]) * rows.itemsize
        received, sent = (own, others) if homeward else (others, own)
        record.note("all_to_all", (self.axis.name,), received * width, sent * width, at_most=True)
        return torch.empty_like(rows, memory_format=torch.contiguous_format)


class _Carried(torch.autograd.Function):
    """Rows along a route; their gradients come back along it."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, route: _Route, homeward: bool) -> Tensor:
        ctx.route, ctx.homeward = route, homeward
        return route.carry(rows, homeward)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        route: _Route = ctx.route
        return route.carry(grad, not ctx.homeward), None, None


def _carried(rows: Tensor, route: _Route, homeward: bool) -> Tensor:
    made: Tensor = _Carried.apply(rows, route, homeward)  # type: ignore[no-untyped-call]  # torch leaves apply untyped
    return made


@frozen(eq=False)
class SentRows:
    """What came of ``send_rows``: ``rows [m, ...]`` by kind, of this rank's kinds, and how many of each (``sizes``)."""

    rows: Tensor
    sizes: tuple[int, ...]
    _route: _Route
    _sorted: Tensor
    _regrouped: Tensor

    def back(self, rows: Tensor) -> Tensor:
        """Sends what was made of each row home: ``rows [m, ...]``, of any width, as ``[n, ...]`` in the order of those
        that were given. Differentiable. Raises SL0722 where they are not as many as came.
        """
        if rows.shape[0] != self.rows.shape[0]:
            raise ShardlangError(sl07_runtime.other_number_of_rows(rows.shape[0], self.rows.shape[0]))
        home = _carried(rows.index_select(0, _inverse_order(self._regrouped)), self._route, True)
        return home.index_select(0, _inverse_order(self._sorted))


def send_rows(rows: Tensor, kinds: Tensor, *, here: int, over: str) -> SentRows:
    """Sends each row to the rank of an axis that has its kind; differentiable. For functions under ``sl.local_map``.

    ``rows [n, ...]``, ``kinds [n]`` integers. Each rank of ``over`` has ``here`` kinds: the first rank those below
    ``here``, the next one the next ``here``, and so on. No row is dropped and none is added; on one device they are put
    in the order of their kinds and that is all.

    Two all-to-alls: of the counts, for which the host waits, and of the rows; one more each way in the backward pass
    and for ``back``. Raises SL0720 outside ``local_map``, SL0722 where rows and kinds are not as many, SL0723 for an
    axis that there is not, and SL0721, on every rank of the axis, where a row's kind is none that some rank has.
    """
    if not _meshes:
        raise ShardlangError(sl07_runtime.rows_without_mesh(over))
    if kinds.shape != rows.shape[:1]:
        raise ShardlangError(sl07_runtime.other_number_of_rows(kinds.numel(), rows.shape[0]))
    mesh = _meshes[-1]
    axis = _Axis(over, None, (0,)) if mesh is None else _axis_of(mesh, over)
    kinds = kinds.detach().to(torch.int64)
    order = kinds.argsort(stable=True)
    if torch_tracing.is_fake(kinds):
        return _without_values(rows, order, axis, here)
    counts = kinds.clamp(-1, axis.size * here).add(1).bincount(minlength=axis.size * here + 2)
    strange = int(counts[0] + counts[-1])
    given = counts[1:-1].reshape(axis.size, here)
    got = _exchanged(torch.full_like(given, -1) if strange else given, axis)
    bad = [i for i, row in enumerate(got) if min(row, default=0) < 0]
    if bad:
        raise ShardlangError(sl07_runtime.kind_of_no_rank(over, bad, axis.size, here))
    route = _Route(axis, tuple(given.sum(1).tolist()), tuple(map(sum, got)), rows.shape[0])
    regrouped = _by_kind(got, here).to(rows.device)
    came = _carried(rows.index_select(0, order), route, False).index_select(0, regrouped)
    return SentRows(came, tuple(map(sum, zip(*got, strict=True))), route, order, regrouped)


def _without_values(rows: Tensor, order: Tensor, axis: _Axis, here: int) -> SentRows:
    """Rows of a step that is planned: as many come as go, evenly spread over the kinds."""
    if axis.group is not None:
        counts = (axis.size - 1) * here * 8
        record.note("all_to_all", (axis.name,), counts, counts)
    count = rows.shape[0]
    route = _Route(axis, None, None, count)
    came = _carried(rows.index_select(0, order), route, False).index_select(0, torch.empty_like(order))
    sizes = tuple(count * (i + 1) // here - count * i // here for i in range(here))
    return SentRows(came, sizes, route, order, order)


def _exchanged(given: Tensor, axis: _Axis) -> list[list[int]]:
    """For each rank of the axis, how many rows of each of this rank's kinds it gives."""
    each = (given.shape[1],) * axis.size
    found: list[list[int]] = _Route(axis, each, each, 0).carry(given.reshape(-1), False).view_as(given).tolist()
    return found


def _by_kind(got: list[list[int]], here: int) -> Tensor:
    """The order that puts rows by kind that come by sender and then by kind."""
    kinds = torch.arange(here).repeat(len(got))
    return kinds.repeat_interleave(torch.tensor(got, dtype=torch.int64).reshape(-1)).argsort(stable=True)


def _inverse_order(order: Tensor) -> Tensor:
    return torch.empty_like(order).scatter_(0, order, torch.arange(order.shape[0], device=order.device))


def _inverse(places: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(range(len(places)), key=places.__getitem__))


def _permuted(rows: Tensor, sizes: tuple[int, ...] | list[int], places: tuple[int, ...]) -> Tensor:
    """The pieces of ``rows``, of these sizes, with piece ``i`` at ``places[i]``."""
    if list(places) == sorted(places):
        return rows.contiguous()
    pieces = rows.split(list(sizes))
    return torch.cat([pieces[i] for i in _inverse(places)])


def _axis_of(mesh: DeviceMesh, name: str) -> _Axis:
    """Raises SL0723 where the mesh has no such axis."""
    named = mesh_of(mesh)
    if name not in {a.name for a in named.axes}:
        raise ShardlangError(sl07_runtime.no_such_axis(name, [a.name for a in named.axes]))
    size = named.axis(name).size
    if size == 1:
        return _Axis(name, None, (0,))
    coordinate = mesh.get_coordinate()
    assert coordinate is not None
    at = dict(zip((a.name for a in named.axes), coordinate, strict=True))
    every = ranks_of(mesh)
    ranks = [every[named.rank_at({**at, name: i}) - named.first_rank] for i in range(size)]
    group = group_of(tuple(ranks), mesh.device_type)
    return _Axis(name, group, tuple(group.ranks.index(rank) for rank in ranks))


__all__ = ["SentRows", "on_mesh", "send_rows"]
