"""Dims whose axis is left open (``d/?``): the ways to choose one, each dim an axis of its own that divides."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import evolve

from shardlang.check.bind import Operand, axes_of, dims_for
from shardlang.check.program import SpecDim, TensorSpec
from shardlang.diagnostics import ShardlangError, sl03_layouts
from shardlang.layout import Cut, Dim, Factor, canonical_dim
from shardlang.mesh import Mesh

TRIES = 1 << 14
"""How many axes are tried for one dim or another: a mesh of many axes has more ways than anyone can compare."""


def is_open(spec: TensorSpec) -> bool:
    """Is the axis of some dim left open?"""
    return any(dim.choose for dim in spec.dims or ())


def ways(operand: Operand) -> Iterator[TensorSpec]:
    """The operand's spec with its open axes chosen, in the order of the mesh's axes; itself where none is open.

    An axis is free that has several ranks and is not used in the tensor, nor are its parts or its parent; of a split
    axis the whole comes before its parts. Raises SL0303 where the spec has another number of dims than the tensor, and
    SL0327 where looking for ways has no end.
    """
    spec, mesh = operand.spec, operand.mesh
    if not is_open(spec):
        yield spec
        return
    dims = dims_for(operand)
    places = [i for i, d in enumerate(dims) if d.choose]
    used = {leaf for d in dims for a in axes_of(d) for leaf in mesh.expand(a)}
    used |= {leaf for p in spec.pending for leaf in mesh.expand(p.axis)}
    free = [a.name for a in mesh.all_axes() if a.size > 1 and used.isdisjoint(mesh.expand(a.name))]
    options = [
        [(axis, cut) for axis in free if _divides(cut := _cut(dims[i], axis), operand.shape[i], mesh)] for i in places
    ]
    if not all(options):
        return
    tries = 0
    chosen: list[tuple[str, SpecDim]] = []
    left = [iter(options[0])]
    while left:
        tries += 1
        if tries > TRIES:
            span = next((dims[i].span for i in places), None) or spec.span
            raise ShardlangError(sl03_layouts.too_many_ways(span, operand.name))
        del chosen[len(left) - 1 :]
        found = next(left[-1], None)
        if found is None:
            left.pop()
            continue
        taken = {leaf for axis, _ in chosen for leaf in mesh.expand(axis)}
        if not taken.isdisjoint(mesh.expand(found[0])):
            continue
        chosen.append(found)
        if len(chosen) < len(places):
            left.append(iter(options[len(chosen)]))
            continue
        new = list(dims)
        for place, (_, cut) in zip(places, chosen, strict=True):
            new[place] = cut
        yield evolve(spec, dims=tuple(new))


def _cut(dim: SpecDim, axis: str) -> SpecDim:
    """An open dim with its axis chosen."""
    return evolve(dim, choose=False, flat=(*dim.flat, Cut(axis)))


def without_choice(spec: TensorSpec) -> TensorSpec:
    """The spec with its open dims cut by what it names alone."""
    return spec if spec.dims is None else evolve(spec, dims=tuple(evolve(d, choose=False) for d in spec.dims))


def _divides(dim: SpecDim, size: int, mesh: Mesh) -> bool:
    """Do the even cuts of a dim divide what those before them leave?"""
    cuts = tuple(a for f in dim.factors for a in f.cuts)
    try:
        canonical_dim(mesh, Dim((Factor(size, cuts),), dim.flat))
    except ValueError:
        return False
    return True
