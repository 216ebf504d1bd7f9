"""Layouts of every kind for the tests of this room: factors, even and uneven cuts, whole axes, sub-axes, empty dims."""

from __future__ import annotations

import math

from hypothesis import strategies as st

from shardlang.layout import Cut, Dim, Factor, Layout
from shardlang.mesh import Axis, Mesh


@st.composite
def meshes(draw: st.DrawFn, most: int = 12) -> Mesh:
    """Up to three axes and ``most`` ranks; an axis of four may have sub-axes."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3).filter(lambda s: math.prod(s) <= most))
    axes = tuple(Axis(f"x{i}", n) for i, n in enumerate(sizes))
    splits = {
        a.name: (Axis(a.name + "s", 2), Axis(a.name + "t", 2)) for a in axes if a.size == 4 and draw(st.booleans())
    }
    return Mesh("m", axes, splits)


@st.composite
def shapes(draw: st.DrawFn) -> tuple[int, ...]:
    return tuple(draw(st.lists(st.sampled_from([0, 1, 2, 3, 5, 6, 8, 12, 24]), max_size=3)))


@st.composite
def layouts(draw: st.DrawFn, mesh: Mesh | None = None, shape: tuple[int, ...] | None = None) -> Layout:
    """A layout without pending axes of a tensor of any shape (or of ``shape``) on any mesh (or on ``mesh``)."""
    mesh = mesh or draw(meshes())
    shape = draw(shapes()) if shape is None else shape
    leaves = draw(st.permutations([a.name for a in mesh.leaves()]))
    free = leaves[: draw(st.integers(0, len(leaves)))]
    dims = []
    for size in shape:
        count = draw(st.integers(0, len(free)))
        mine, free = free[:count], free[count:]
        factors, left = [], size
        for part in draw(st.sampled_from([(), (2,), (3,), (2, 2)])):
            if part and left % part == 0 and left:
                factors.append(part)
                left //= part
        built = []
        for n in (*factors, left):
            cuts: list[str] = []
            while mine and n % math.prod(mesh.axis(a).size for a in [*cuts, mine[0]]) == 0 and draw(st.booleans()):
                cuts.append(mine.pop(0))
            built.append(Factor(n, tuple(cuts)))
        dims.append(Dim(tuple(built), tuple(Cut(a, uneven=True) for a in mine)))
    return Layout(mesh, tuple(dims))


def fused(mesh: Mesh, heads: int, width: int, columns: int, tp: str, dp: str) -> Layout:
    """``[(3 heads/tp width)/dp columns]``: each rank holds its own heads of q, k and v, stored in parts over ``dp``."""
    rows = Dim((Factor(3), Factor(heads, (tp,)), Factor(width)), (Cut(dp, uneven=True),))
    return Layout(mesh, (rows, Dim((Factor(columns),))))
