"""Ranks and coordinates are one and the same numbering, and `?` takes what the launch leaves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardlang.mesh import Axis, Mesh


@st.composite
def meshes(draw: st.DrawFn) -> Mesh:
    axes, splits = [], {}
    for i in range(draw(st.integers(1, 3))):
        parts = tuple(Axis(f"s{i}_{j}", draw(st.integers(1, 3))) for j in range(draw(st.integers(1, 3))))
        size = 1
        for part in parts:
            size *= part.size
        axes.append(Axis(f"x{i}", size))
        if len(parts) > 1:
            splits[f"x{i}"] = parts
    return Mesh("m", tuple(axes), splits, draw(st.integers(0, 5)))


@given(meshes())
def test_a_rank_is_found_again_from_its_coordinates(mesh: Mesh) -> None:
    for rank in mesh.ranks:
        assert mesh.rank_at(mesh.coordinates(rank)) == rank


@given(meshes())
def test_leaves_multiply_to_the_mesh(mesh: Mesh) -> None:
    size = 1
    for axis in mesh.leaves():
        size *= axis.size
    assert size == mesh.size == len(mesh.ranks)


def test_an_open_axis_takes_what_the_others_leave() -> None:
    mesh = Mesh("m", (Axis("dp", 1, open=True), Axis("tp", 4)))
    assert mesh.resolve(12).axis("dp").size == 3
    with pytest.raises(ValueError, match="multiple of 4"):
        mesh.resolve(6)


def test_sub_axes_that_do_not_multiply_to_their_axis_are_refused() -> None:
    with pytest.raises(ValueError, match="do not multiply"):
        Mesh("m", (Axis("tp", 8),), {"tp": (Axis("t0", 2), Axis("t1", 2))})


def test_names_are_unique_over_axes_and_sub_axes() -> None:
    with pytest.raises(ValueError, match="not unique"):
        Mesh("m", (Axis("tp", 4), Axis("t0", 2)), {"tp": (Axis("t0", 2), Axis("t1", 2))})
