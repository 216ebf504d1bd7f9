"""Every operator under random layouts of its operands gives the values and gradients of one device."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from shardlang.layout import Cut, Dim, Factor, Layout, Pending
from shardlang.mesh import Mesh
from shardlang.runtime.law import differences
from tests.trace.operators import EXAMPLES, Example
from tests.trace.oracle import mesh_of, program

MESHES = [mesh_of("a:2 * b:2"), mesh_of("a:2 * b:3"), mesh_of("a:4")]


@st.composite
def layouts(draw: st.DrawFn, mesh: Mesh, tensor: torch.Tensor) -> Layout:
    """Each axis splits a dim (evenly where that divides), is pending (in floating tensors), or leaves it whole."""
    cuts: list[list[str]] = [[] for _ in tensor.shape]
    pending: list[Pending] = []
    kinds = ["whole", "split", "split"] + (["sum"] if tensor.is_floating_point() else [])
    average = draw(st.booleans())
    for axis in draw(st.permutations(mesh.axes)):
        kind = draw(st.sampled_from(kinds))
        if kind == "split" and tensor.dim():
            cuts[draw(st.integers(0, tensor.dim() - 1))].append(axis.name)
        elif kind == "sum":
            pending.append(Pending(axis.name, "avg" if average and draw(st.booleans()) else "sum"))
    dims = []
    for size, axes in zip(tensor.shape, cuts, strict=True):
        ways = 1
        for axis in axes:
            ways *= mesh.axis(axis).size
        if size % ways == 0:
            dims.append(Dim((Factor(size, tuple(axes)),)))
        else:
            dims.append(Dim((Factor(size),), tuple(Cut(axis, uneven=True) for axis in axes)))
    return Layout(mesh, tuple(dims), tuple(pending))


@pytest.mark.parametrize("example", EXAMPLES, ids=str)
@settings(
    max_examples=3,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
    database=None,
    phases=[Phase.generate],
)
@given(data=st.data())
def test_operator_under_random_layouts(example: Example, data: st.DataObject) -> None:
    mesh = data.draw(st.sampled_from(MESHES))
    given = [data.draw(layouts(mesh, t)) for t in example.tensors]
    made = program(example.function, example.tensors, given, mesh, auto=True)
    assert differences(made, example.function, example.tensors, mesh) == []
