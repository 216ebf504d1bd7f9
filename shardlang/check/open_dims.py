"""Dims whose axis is left open (``d/?``): the ways to choose one, each dim an axis of its own that divides."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations

from attrs import evolve

from shardlang.check.bind import Operand, axes_of, dims_for
from shardlang.check.program import SpecDim, TensorSpec
from shardlang.layout import Cut, Dim, Factor, canonical_dim
from shardlang.mesh import Mesh


def is_open(spec: TensorSpec) -> bool:
    """Is the axis of some dim left open?"""
    return any(dim.choose for dim in spec.dims or ())


def ways(operand: Operand) -> Iterator[TensorSpec]:
    """The operand's spec with its open axes chosen, in the order of the mesh's axes; itself where none is open.

    An axis is free that has several ranks and is not used in the tensor, nor are its parts or its parent; of a split
    axis the whole comes before its parts. Raises SL0303 where the spec has another number of dims than the tensor.
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
    for axes in permutations(free, len(places)):
        leaves = [leaf for axis in axes for leaf in mesh.expand(axis)]
        if len(set(leaves)) != len(leaves):
            continue
        new = list(dims)
        for place, axis in zip(places, axes, strict=True):
            new[place] = evolve(dims[place], choose=False, flat=(*dims[place].flat, Cut(axis)))
        if all(_divides(new[p], operand.shape[p], mesh) for p in places):
            yield evolve(spec, dims=tuple(new))


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
