"""What each rank keeps of a model between steps: the layout that the computation sees, and FSDP's cut of it."""

from __future__ import annotations

import math
from collections.abc import Mapping

from attrs import evolve

from shardlang.check.model import ModelLayouts
from shardlang.layout import Cut, Dim, Factor, Layout
from shardlang.lower.model import Parameter, layout_on_leaves, on_leaves, stored_dim
from shardlang.mesh import Mesh


def stored_layouts(layouts: ModelLayouts) -> dict[str, Layout]:
    """The stored layout of every parameter, under every name of a tied one, on the mesh's leaf axes.

    A group's parameters are cut over its axes along the dim that ``lower`` stores them by; scalars stay whole.
    """
    mesh = on_leaves(layouts.mesh)
    found = {name: layout_on_leaves(p.layout, mesh) for name, p in layouts.parameters.items()}
    for group in layouts.groups:
        axes = tuple(leaf for axis in group.line.over for leaf in layouts.mesh.expand(axis))
        ranks = math.prod(mesh.axis(a).size for a in axes)
        for name in group.parameters:
            declared = layouts.parameters[name]
            if declared.shape:
                one = Parameter((name,), declared.shape, declared.dtype, found[name], (), True)
                found[name] = cut_for_storage(found[name], stored_dim(one, ranks, group.line.reshard), axes)
    return found


def cut_for_storage(layout: Layout, dim: int, axes: tuple[str, ...]) -> Layout:
    """The layout with one dim cut further over some axes, unevenly where they do not divide."""
    cut = layout.dims[dim]
    flat = (*cut.flat, *(Cut(a, uneven=True) for a in axes))
    return evolve(layout, dims=(*layout.dims[:dim], evolve(cut, flat=flat), *layout.dims[dim + 1 :]))


def spread(mesh: Mesh, shape: tuple[int, ...]) -> Layout:
    """Where nothing is declared: the first dim cut over all axes, unevenly where they do not divide."""
    if not shape:
        return Layout.whole(mesh, shape)
    cuts = tuple(Cut(a.name, uneven=True) for a in mesh.leaves())
    return Layout(mesh, (Dim((Factor(shape[0]),), cuts), *(Dim((Factor(n),)) for n in shape[1:])))


def layouts_for(keys: Mapping[str, tuple[int, ...]], stored: Mapping[str, Layout], mesh: Mesh) -> dict[str, Layout]:
    """Layouts of a checkpoint's entries (shapes by name): parameters, optimizer state like them, the rest whole."""
    found: dict[str, Layout] = {}
    for key, shape in keys.items():
        name = key.removeprefix("model.")
        if key.startswith("optimizer.state."):
            name = key.removeprefix("optimizer.state.").rpartition(".")[0]
        layout = stored.get(name)
        fits = layout is not None and layout.shape == shape
        found[key] = layout if layout is not None and fits else Layout.whole(mesh, shape)
    return found


__all__ = ["cut_for_storage", "layouts_for", "spread", "stored_layouts"]
