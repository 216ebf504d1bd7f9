"""Layouts and meshes for the planner's tests, drawn from a seed so that a failure can be had again."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import permutations, product
from random import Random

from shardlang.layout import Dim, Factor, Layout, Pending
from shardlang.mesh import Axis, Link, Mesh

ONE = Link("one", 50 * 10**9, 10**7)
SLOW = Link("slow", 50 * 10**9, 12 * 10**6)
FAST = Link("fast", 450 * 10**9, 3 * 10**6)
NEAR = Link("near", 900 * 10**9, 10**6)


def mesh_of(*sizes: int, links: tuple[Link, ...] = ()) -> Mesh:
    """Axes ``a``, ``b``, ... of these sizes, each on its link (by default all on one)."""
    given = links or (ONE,) * len(sizes)
    return Mesh("pod", tuple(Axis("abcdefgh"[i], n, given[i]) for i, n in enumerate(sizes)))


def layout_of(mesh: Mesh, shape: tuple[int, ...], *cuts: str, pending: str = "") -> Layout:
    """``layout_of(mesh, (8, 8), "ab", "", pending="c")``: axes by letter, in order."""
    dims = tuple(Dim((Factor(n, tuple(c)),)) for n, c in zip(shape, cuts, strict=True))
    return Layout(mesh, dims, tuple(Pending(a, "sum") for a in pending))


def every_layout(mesh: Mesh, shape: tuple[int, ...], *, pending: bool = False) -> Iterator[Layout]:
    """All ways to cut the dims by whole axes, in every order, and (``pending``) to leave others pending."""
    names = [a.name for a in mesh.axes]
    places = len(shape) + 1 + pending
    seen: set[tuple[tuple[str, ...], ...]] = set()
    for where in product(range(places), repeat=len(names)):
        for order in permutations(range(len(names))):
            cuts = tuple(tuple(names[i] for i in order if where[i] == d) for d in range(len(shape)))
            owed = tuple(n for n, w in zip(names, where, strict=True) if w == len(shape) + 1)
            if (*cuts, owed) in seen:
                continue
            seen.add((*cuts, owed))
            if all(n % math.prod(mesh.axis(a).size for a in c) == 0 for n, c in zip(shape, cuts, strict=True)):
                dims = tuple(Dim((Factor(n, c),)) for n, c in zip(shape, cuts, strict=True))
                yield Layout(mesh, dims, tuple(Pending(a, "sum") for a in owed))


def any_layout(random: Random, mesh: Mesh, shape: tuple[int, ...], *, pending: bool = False) -> Layout:
    """One of ``every_layout``."""
    names = [a.name for a in mesh.axes]
    random.shuffle(names)
    cuts: list[list[str]] = [[] for _ in shape]
    owed: list[str] = []
    for name in names:
        place = random.randrange(len(shape) + 1 + pending)
        if place < len(shape):
            cuts[place].append(name)
        elif place > len(shape):
            owed.append(name)
    dims = tuple(Dim((Factor(n, tuple(c)),)) for n, c in zip(shape, cuts, strict=True))
    return Layout(mesh, dims, tuple(Pending(a, "sum") for a in owed))
