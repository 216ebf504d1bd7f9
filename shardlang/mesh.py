"""Device meshes: named axes, major to minor, over a list of ranks; pure algebra."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from attrs import evolve, field, frozen

PICO = 10**12
"""Picoseconds in a second: modelled time is counted in whole picoseconds."""


@frozen(cache_hash=True)
class Link:
    """What carries the traffic of an axis.

    ``bandwidth`` is in bytes per second, per device and direction; ``latency`` in picoseconds.
    """

    name: str
    bandwidth: int
    latency: int


DEFAULT_LINK = Link("default", 50 * 10**9, 10 * 10**6)
"""Stands for an axis that names no link: 50 GB/s, 10 us."""


@frozen(cache_hash=True)
class Axis:
    """A mesh axis. ``open`` marks one written ``?`` whose size the launch has not given yet (``size`` is then 1)."""

    name: str
    size: int
    link: Link = DEFAULT_LINK
    open: bool = False


@frozen(cache_hash=True)
class Mesh:
    """Named axes, major to minor, over ``ranks`` (row-major; by default ``0 .. size-1``).

    ``splits`` maps an axis to the sub-axes it is made of, major to minor; their sizes multiply to its own.
    """

    name: str
    axes: tuple[Axis, ...]
    splits: Mapping[str, tuple[Axis, ...]] = field(factory=dict, eq=lambda m: tuple(sorted(m.items())))
    first_rank: int = 0

    def __attrs_post_init__(self) -> None:
        names = [a.name for a in self.all_axes()]
        if len(set(names)) != len(names):
            raise ValueError(f"mesh axis names are not unique: {names}")
        for name, parts in self.splits.items():
            if math.prod(p.size for p in parts) != self.top(name).size:
                raise ValueError(f"the sub-axes of {name} do not multiply to its size")

    @property
    def size(self) -> int:
        return math.prod(a.size for a in self.axes)

    @property
    def ranks(self) -> range:
        """The global ranks of the mesh, in row-major order of its coordinates."""
        return range(self.first_rank, self.first_rank + self.size)

    def top(self, name: str) -> Axis:
        for axis in self.axes:
            if axis.name == name:
                return axis
        raise KeyError(name)

    def all_axes(self) -> Iterator[Axis]:
        """Every axis that a spec can name: declared axes and sub-axes."""
        for axis in self.axes:
            yield axis
            yield from self.splits.get(axis.name, ())

    def leaves(self) -> Iterator[Axis]:
        """The axes that multiply to the mesh, major to minor: a declared axis, or the sub-axes it is split into."""
        for axis in self.axes:
            yield from self.splits.get(axis.name, (axis,))

    def axis(self, name: str) -> Axis:
        """A declared axis or a sub-axis by name; ``KeyError`` where there is none."""
        for axis in self.all_axes():
            if axis.name == name:
                return axis
        raise KeyError(name)

    def parent(self, name: str) -> str | None:
        """The declared axis that a sub-axis is a part of; ``None`` for a declared axis."""
        for parent, parts in self.splits.items():
            if any(p.name == name for p in parts):
                return parent
        return None

    def expand(self, name: str) -> tuple[str, ...]:
        """The leaf axes that ``name`` stands for, major to minor."""
        return tuple(p.name for p in self.splits[name]) if name in self.splits else (name,)

    def stride(self, name: str) -> int:
        """By how much the position in ``ranks`` grows with the coordinate on this axis."""
        stride = 1
        for axis in reversed(self.axes):
            inner = stride
            for part in reversed(self.splits.get(axis.name, ())):
                if part.name == name:
                    return inner
                inner *= part.size
            if axis.name == name:
                return stride
            stride *= axis.size
        raise KeyError(name)

    def coordinate(self, rank: int, name: str) -> int:
        """The coordinate of a global rank on an axis or sub-axis."""
        return (rank - self.first_rank) // self.stride(name) % self.axis(name).size

    def coordinates(self, rank: int) -> dict[str, int]:
        """The coordinates of a global rank on every axis and sub-axis."""
        return {a.name: self.coordinate(rank, a.name) for a in self.all_axes()}

    def rank_at(self, coordinates: Mapping[str, int]) -> int:
        """The global rank at given coordinates of all leaf axes."""
        return self.first_rank + sum(coordinates[a.name] * self.stride(a.name) for a in self.leaves())

    def resolve(self, nproc: int) -> Mesh:
        """The mesh of a launch of ``nproc`` ranks: a ``?`` axis takes what the others leave.

        Raises ``ValueError`` where the sizes do not multiply to ``nproc`` (a mesh without ``?`` is left alone).
        """
        fixed = math.prod(a.size for a in self.axes if not a.open)
        if not any(a.open for a in self.axes):
            return self
        if nproc % fixed:
            raise ValueError(f"{nproc} ranks are no multiple of {fixed}")
        axes = tuple(evolve(a, size=nproc // fixed, open=False) if a.open else a for a in self.axes)
        return evolve(self, axes=axes)

    def __str__(self) -> str:
        return " * ".join(f"{a.name}:{'?' if a.open else a.size}" for a in self.axes)
