"""Dims whose axis is left open (``d/?``): the ways to choose one, each dim an axis of its own that divides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice, product

from attrs import evolve

from shardlang.check.program import Fn, SpecDim, TensorSpec
from shardlang.diagnostics import ShardlangError, sl05_functions
from shardlang.layout import Cut
from shardlang.mesh import Mesh

LIMIT = 64
"""How many ways are compared: a count, so that all ranks compare the same."""


def assignments(declared: Fn, shapes: Sequence[tuple[int, ...]], mesh: Mesh) -> Iterator[tuple[TensorSpec, ...]]:
    """The arguments' specs with every open axis chosen, in the order of the mesh's axes; the specs themselves where
    nothing is open. Raises SL0527 where no axis is left for a dim.
    """
    options = []
    for arg, shape in zip(declared.args, shapes, strict=True):
        assert arg.spec is not None
        found = list(_options(arg.spec, shape, mesh))
        if not found:
            raise ShardlangError(sl05_functions.no_open_axis(declared.name, arg.name, str(mesh), arg.span))
        options.append(found)
    yield from islice(product(*options), LIMIT)


def _options(spec: TensorSpec, shape: tuple[int, ...], mesh: Mesh) -> Iterator[TensorSpec]:
    dims = spec.dims or ()
    if not any(d.choose for d in dims):
        yield spec
        return
    used = {leaf for d in dims for a in _axes(d) for leaf in mesh.expand(a)}
    used |= {leaf for p in spec.pending for leaf in mesh.expand(p.axis)}
    free = [a.name for a in mesh.leaves() if a.name not in used and a.size > 1]
    places = [i for i, d in enumerate(dims) if d.choose]
    for axes in product(free, repeat=len(places)):
        if len(set(axes)) != len(axes):
            continue
        new = list(dims)
        for place, axis in zip(places, axes, strict=True):
            new[place] = evolve(dims[place], choose=False, flat=(*dims[place].flat, Cut(axis)))
        if all(_divides(new[p], shape[p], mesh) for p in places):
            yield evolve(spec, dims=tuple(new))


def _axes(dim: SpecDim) -> list[str]:
    return [a for f in dim.factors for a in f.cuts] + [c.axis for c in dim.flat]


def _divides(dim: SpecDim, size: int, mesh: Mesh) -> bool:
    ways = 1
    for axis in _axes(dim):
        ways *= mesh.axis(axis).size
    return size % ways == 0
