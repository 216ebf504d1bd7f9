"""Every name in a tree: what it names, where, and whether it is declared there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

from attrs import frozen

from shardlang.source import Span
from shardlang.syntax import tree

Kind = Literal["link", "mesh", "axis", "size", "model", "fn", "reshard", "tensor"]


@frozen
class Occurrence:
    """A name at a place. ``mesh`` is the mesh that an axis is of, as the text says it (``None``: the only one).

    ``declares``: the name comes into being here. ``decl`` is the declaration that the place is in.
    """

    kind: Kind
    text: str
    span: Span
    decl: tree.Decl
    mesh: tree.Name | None = None
    declares: bool = False


@frozen
class SpecPlace:
    """A spec in the text: the tensor's name (for messages), the mesh that it is on, and its declaration."""

    spec: tree.Spec
    name: str
    mesh: tree.Name | None
    decl: tree.Decl


def occurrences(file: tree.File) -> Iterator[Occurrence]:
    """All names, declaration by declaration."""
    for decl in file.decls:
        yield from _names(decl)
    for place in spec_places(file):
        yield from _spec(place.spec, place)


def spec_places(file: tree.File) -> Iterator[SpecPlace]:
    """All specs, declaration by declaration."""
    for decl in file.decls:
        if isinstance(decl, tree.Fn):
            yield from _signature(decl.signature, decl.mesh, decl)
        elif isinstance(decl, tree.Reshard):
            yield SpecPlace(decl.change.source, decl.name.text, decl.mesh, decl)
            yield SpecPlace(decl.change.target, decl.name.text, decl.mesh, decl)
        elif isinstance(decl, tree.Model):
            for item in decl.items:
                if isinstance(item, tree.Param):
                    yield SpecPlace(item.spec, item.path.text, decl.mesh, decl)
                elif isinstance(item, tree.Call):
                    yield from _signature(item.signature, decl.mesh, decl)


def _signature(signature: tree.Signature, mesh: tree.Name | None, decl: tree.Decl) -> Iterator[SpecPlace]:
    for arg in (*signature.args, *signature.results):
        if arg.spec is not None:
            yield SpecPlace(arg.spec, arg.name.text if arg.name else "the result", mesh, decl)


def _names(decl: tree.Decl) -> Iterator[Occurrence]:
    if isinstance(decl, tree.Link):
        yield Occurrence("link", decl.name.text, decl.name.span, decl, declares=True)
    elif isinstance(decl, tree.Mesh):
        yield Occurrence("mesh", decl.name.text, decl.name.span, decl, declares=True)
        yield from _axes(decl.axes, decl.name, decl)
    elif isinstance(decl, tree.Split):
        yield Occurrence("mesh", decl.mesh.text, decl.mesh.span, decl)
        yield Occurrence("axis", decl.axis.text, decl.axis.span, decl, decl.mesh)
        yield from _axes(decl.parts, decl.mesh, decl)
    elif isinstance(decl, tree.Let):
        for binding in decl.bindings:
            yield Occurrence("size", binding.name.text, binding.name.span, decl, declares=True)
            yield from _expression(binding.value, decl)
    elif isinstance(decl, tree.Rules):
        yield Occurrence("mesh", decl.mesh.text, decl.mesh.span, decl)
        for line in decl.lines:
            for dim in line.dims:
                yield Occurrence("size", dim.text, dim.span, decl)
            yield from _uses(line.axes, decl.mesh, decl)
    elif isinstance(decl, tree.Fn | tree.Reshard | tree.Model):
        kind: Kind = "fn" if isinstance(decl, tree.Fn) else "reshard" if isinstance(decl, tree.Reshard) else "model"
        yield Occurrence(kind, decl.name.text, decl.name.span, decl, declares=True)
        if decl.mesh is not None:
            yield Occurrence("mesh", decl.mesh.text, decl.mesh.span, decl)
        if isinstance(decl, tree.Fn):
            yield from _tensors(decl.signature, decl)
        if isinstance(decl, tree.Model):
            for item in decl.items:
                yield from _item(item, decl)
    elif isinstance(decl, tree.Transfer):
        for name in (decl.source, decl.target):
            yield Occurrence("model", name.text, name.span, decl)
    elif isinstance(decl, tree.Budget):
        yield Occurrence("model", decl.model.text, decl.model.span, decl)
        for limit in decl.limits:
            if isinstance(limit, tree.Forbid):
                yield Occurrence("link", limit.link.text, limit.link.span, decl)


def _axes(axes: Iterable[tree.Axis], mesh: tree.Name, decl: tree.Decl) -> Iterator[Occurrence]:
    for axis in axes:
        yield Occurrence("axis", axis.name.text, axis.name.span, decl, mesh, declares=True)
        if axis.link is not None:
            yield Occurrence("link", axis.link.text, axis.link.span, decl)


def _uses(names: Iterable[tree.Name], mesh: tree.Name | None, decl: tree.Decl) -> Iterator[Occurrence]:
    for name in names:
        yield Occurrence("axis", name.text, name.span, decl, mesh)


def _item(item: tree.ModelItem, decl: tree.Model) -> Iterator[Occurrence]:
    if isinstance(item, tree.Fsdp):
        yield from _uses((*item.over, *item.replicate), decl.mesh, decl)
    elif isinstance(item, tree.Call):
        yield from _tensors(item.signature, decl)


def _tensors(signature: tree.Signature, decl: tree.Decl) -> Iterator[Occurrence]:
    for arg in (*signature.args, *signature.results):
        if arg.name is not None:
            yield Occurrence("tensor", arg.name.text, arg.name.span, decl, declares=True)


def _expression(expression: tree.Expr | None, decl: tree.Decl, mesh: tree.Name | None = None) -> Iterator[Occurrence]:
    waiting = [expression]
    while waiting:
        part = waiting.pop()
        if isinstance(part, tree.Ref):
            yield Occurrence("size", part.name, part.span, decl, mesh)
        elif isinstance(part, tree.Binary):
            waiting += [part.right, part.left]


def _spec(spec: tree.Spec, place: SpecPlace) -> Iterator[Occurrence]:
    for part in (spec.tensor, spec.grad):
        if isinstance(part, tree.Tensor):
            for dim in part.dims:
                yield from _dim(dim, place)
        owed = part if isinstance(part, tree.Pending) else getattr(part, "pending", None)
        if owed is not None:
            yield from _uses((o.axis for o in owed.owed), place.mesh, place.decl)


def _dim(dim: tree.SpecDim, place: SpecPlace) -> Iterator[Occurrence]:
    if isinstance(dim, tree.Rest):
        return
    for factor in dim.factors if isinstance(dim, tree.Group) else (dim,):
        yield from _expression(factor.size, place.decl, place.mesh)
        if isinstance(dim, tree.Group):
            yield from _cuts(factor.cuts, place)
    yield from _cuts(dim.cuts, place)


def _cuts(cuts: Iterable[tree.Cut], place: SpecPlace) -> Iterator[Occurrence]:
    yield from _uses((c.axis for c in cuts if c.axis is not None), place.mesh, place.decl)


__all__ = ["Kind", "Occurrence", "SpecPlace", "occurrences", "spec_places"]
