"""Hypothesis strategies for tests of what is built on shardlang: meshes, layouts, transitions, programs.

    from hypothesis import given
    from shardlang import testing

    @given(testing.transitions())
    def test_mine(change):
        source, target = change
        ...

Needs the extra ``shardlang[testing]``. Small on purpose: a mesh has at most 8 ranks and a tensor a few dozen elements a
dim, so that every rank can be simulated. Every feature of layouts is among them: sub-axes, axes of size 1, orders other
than the mesh's, fused factors, flat and uneven cuts, empty blocks, pending reductions that go together.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from shardlang.layout import Cut, Dim, Factor, Layout, Pending, ReduceOp
from shardlang.mesh import Axis, Link, Mesh

FAST = Link("fast", 400 * 10**9, 2 * 10**6)
SLOW = Link("slow", 25 * 10**9, 12 * 10**6)
_KINDS: tuple[tuple[ReduceOp, ...], ...] = (("sum",), ("sum", "avg"), ("max",), ("min",))


@st.composite
def meshes(draw: st.DrawFn, most: int = 8, links: tuple[Link, ...] = (FAST, SLOW)) -> Mesh:
    """Meshes of one to three axes and at most ``most`` ranks; an axis may be made of two sub-axes."""
    axes: list[Axis] = []
    left = most
    for name in ("a", "b", "c")[: draw(st.integers(1, 3))]:
        size = draw(st.integers(1, max(1, min(left, 4))))
        left //= size
        axes.append(Axis(name, size, draw(st.sampled_from(links))))
    splits = {}
    for axis in axes:
        if axis.size == 4 and draw(st.booleans()):
            splits[axis.name] = (Axis(axis.name + "0", 2, axis.link), Axis(axis.name + "1", 2, axis.link))
    return Mesh("pod", tuple(axes), splits)


def shapes(dims: int = 3, most: int = 24) -> st.SearchStrategy[tuple[int, ...]]:
    """Shapes of up to ``dims`` dims; sizes that divide often are likelier, 0 and 1 are among them."""
    size = st.one_of(st.sampled_from([4, 6, 8, 12, 16, 24]), st.integers(0, most)).filter(lambda n: n <= most)
    return st.lists(size, max_size=dims).map(tuple)


@st.composite
def layouts(
    draw: st.DrawFn, mesh: Mesh | None = None, shape: tuple[int, ...] | None = None, *, pending: bool = True
) -> Layout:
    """Layouts of a tensor of ``shape`` on ``mesh``, each drawn where it is not given."""
    mesh = draw(meshes()) if mesh is None else mesh
    shape = draw(shapes()) if shape is None else shape
    ops = draw(st.sampled_from(_KINDS))
    cuts: list[list[str]] = [[] for _ in shape]
    owed: list[Pending] = []
    for axis in draw(st.permutations(_axes(draw, mesh))):
        use = draw(st.sampled_from(["whole", "pending", *range(len(shape)), *range(len(shape))]))
        if isinstance(use, int):
            cuts[use].append(axis)
        elif use == "pending" and pending:
            owed.append(Pending(axis, draw(st.sampled_from(ops))))
    dims = tuple(draw(_dims(mesh, size, tuple(axes))) for size, axes in zip(shape, cuts, strict=True))
    return Layout(mesh, dims, tuple(owed))


@st.composite
def transitions(
    draw: st.DrawFn, mesh: Mesh | None = None, shape: tuple[int, ...] | None = None, *, pending: bool = True
) -> tuple[Layout, Layout]:
    """Two layouts of one tensor on one mesh."""
    mesh = draw(meshes()) if mesh is None else mesh
    shape = draw(shapes()) if shape is None else shape
    there = layouts(mesh, shape, pending=pending)
    return draw(there), draw(there)


@st.composite
def programs(draw: st.DrawFn) -> str:
    """Texts of files: a mesh, and some reshards on it."""
    mesh = draw(meshes(links=(FAST,)))
    lines = [f"link {FAST.name} = 400 GB/s, 2 us"]
    lines.append(f"mesh {mesh.name} = " + " * ".join(f"{a.name}:{a.size}@{FAST.name}" for a in mesh.axes))
    for name, parts in mesh.splits.items():
        lines.append(f"split {mesh.name}.{name} = " + " * ".join(f"{p.name}:{p.size}" for p in parts))
    for i in range(draw(st.integers(1, 3))):
        source, target = draw(transitions(mesh))
        lines.append(f"reshard move{i} on {mesh.name}: f32{source} => {target}")
    return "\n".join(lines) + "\n"


def _axes(draw: st.DrawFn, mesh: Mesh) -> list[str]:
    """Each axis of the mesh, or the sub-axes that it is made of."""
    names: list[str] = []
    for axis in mesh.axes:
        names += mesh.expand(axis.name) if axis.name in mesh.splits and draw(st.booleans()) else [axis.name]
    return names


@st.composite
def _dims(draw: st.DrawFn, mesh: Mesh, size: int, axes: tuple[str, ...]) -> Dim:
    """A dim cut over ``axes``: by factors and then flat where that divides, else in chunks."""
    if draw(st.booleans()):
        factors = draw(_factors(size))
        left = list(factors)
        taken: list[list[str]] = [[] for _ in factors]
        flat: list[Cut] = []
        for axis in axes:
            ways = mesh.axis(axis).size
            fits = [i for i, n in enumerate(left) if n % ways == 0]
            if fits and not flat and draw(st.booleans()):
                at = draw(st.sampled_from(fits))
                left[at] //= ways
                taken[at].append(axis)
            else:
                flat.append(Cut(axis))
        if math.prod(left) % math.prod(mesh.axis(c.axis).size for c in flat) == 0:
            pairs = zip(factors, taken, strict=True)
            return Dim(tuple(Factor(n, tuple(cut)) for n, cut in pairs), tuple(flat))
    even = size % math.prod(mesh.axis(a).size for a in axes) == 0
    return Dim((Factor(size),), tuple(Cut(a, uneven=not even or draw(st.booleans())) for a in axes))


@st.composite
def _factors(draw: st.DrawFn, size: int) -> tuple[int, ...]:
    """Numbers whose product is ``size``."""
    if size == 0:
        return (0,)
    first = draw(st.sampled_from([d for d in range(1, size + 1) if size % d == 0]))
    return (size,) if first in (1, size) else (first, size // first)


def check_rule(text: str | None, function: Callable[..., Any], *tensors: Any, tolerance: float = 1e-5) -> None:
    """Tries an operator's rule (``text``, or the registered one for ``None``) on random layouts of ``tensors``.

    ``function(*tensors)`` calls the operator. All ranks are simulated; values and gradients are compared with one
    device. Raises ShardlangError: SL0517 with the layouts on which the rule is wrong.
    """
    from shardlang.runtime.user_rules import check_rule as check

    check(text, function, *tensors, tolerance=tolerance)
