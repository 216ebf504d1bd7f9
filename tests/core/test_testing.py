"""The strategies that users get: what they draw is legal, and every feature is among it."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import Phase, find, given, settings

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


def drawn(condition: Callable[[Layout], bool]) -> None:
    """Draws layouts until one is as wanted; raises where none is. The smallest of them is not looked for."""
    find(testing.layouts(), condition, settings=settings(phases=[Phase.generate], max_examples=2000))


def test_every_feature_of_layouts_is_drawn() -> None:
    drawn(lambda x: any(len(d.factors) > 1 and any(f.cuts for f in d.factors) for d in x.dims))
    drawn(lambda x: any(len(d.factors) > 1 and d.flat for d in x.dims))
    drawn(lambda x: any(c.flat for c in x.canonical()))
    drawn(lambda x: len({p.op for p in x.owed()}) == 2)
    drawn(lambda x: any(x.mesh.parent(a) for a in x.cut_axes()))
    drawn(lambda x: 0 in x.shape)
    drawn(lambda x: not x.dims)
