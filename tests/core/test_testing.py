"""The strategies that users get: what they draw is legal, and every feature is among it."""

from __future__ import annotations

from hypothesis import find, given

from shardlang import testing
from shardlang.layout import Layout
from shardlang.mesh import Mesh


@given(testing.transitions())
def test_both_ends_of_a_transition_are_layouts_of_one_tensor(change: tuple[Layout, Layout]) -> None:
    source, target = change
    assert source.mesh == target.mesh
    assert source.shape == target.shape


@given(testing.meshes(most=8))
def test_meshes_stay_small(mesh: Mesh) -> None:
    assert mesh.size <= 8


def test_every_feature_of_layouts_is_drawn() -> None:
    one = testing.layouts()
    find(one, lambda x: any(len(d.factors) > 1 and any(f.cuts for f in d.factors) for d in x.dims))
    find(one, lambda x: any(len(d.factors) > 1 and d.flat for d in x.dims))
    find(one, lambda x: any(c.flat for c in x.canonical()))
    find(one, lambda x: len({p.op for p in x.owed()}) == 2)
    find(one, lambda x: any(x.mesh.parent(a) for a in x.cut_axes()))
    find(one, lambda x: 0 in x.shape)
    find(one, lambda x: not x.dims)
