"""What each rank holds of a tensor, as far as a text alone says it."""

from __future__ import annotations

import math

from attrs import evolve

from shardlang.check.bind import Operand, layout_of
from shardlang.check.program import Size, SpecDim, SpecFactor, TensorSpec
from shardlang.check.scope import Scope
from shardlang.check.sizes import Sizes, evaluate
from shardlang.check.specs import resolve_spec
from shardlang.check.transition import check_change, unify_change
from shardlang.diagnostics import Diagnostic, ShardlangError
from shardlang.diagnostics.prose import conjoined
from shardlang.dtypes import DTYPES
from shardlang.editor.document import Document
from shardlang.editor.occurrences import SpecPlace
from shardlang.layout import Layout
from shardlang.mesh import Mesh
from shardlang.syntax import tree


def local_shape(document: Document, place: SpecPlace) -> str | None:
    """A sentence with the local shape of the tensor: in numbers where every size is known, else in the text's names.

    ``None`` where the spec is on no mesh that can be read, or is at fault itself.
    """
    scope = document.scope_of(place.mesh)
    if scope is None:
        return None
    try:
        spec, sizes = _resolve(place, scope)
    except ShardlangError:
        return None
    if spec is None:
        return None
    if spec.dims is None:
        return f"{_called(place.name)} is whole on every rank"
    layout = _layout(spec, scope.mesh, sizes, place.name)
    if layout is None:
        shape = " ".join(_dim(d, scope.mesh, sizes) for d in spec.dims)
        text = f"a rank holds `{spec.dtype or ''}[{shape}]` of {_called(place.name)}"
    else:
        text = _numbers(layout, spec, place.name)
    if spec.pending:
        owed = conjoined(f"{p.op} over `{p.axis}`" for p in spec.pending)
        text += f"; the value is the {owed} of what ranks hold"
    return text


def reshard_sizes(decl: tree.Reshard, scope: Scope) -> Sizes:
    """The sizes that the two sides of a ``reshard`` give to each other's names, and who bound them."""
    sizes = Sizes()
    try:
        source, target = check_change(decl.change, scope)
        unify_change(source, target, sizes)
    except ShardlangError:
        pass
    return sizes


def _resolve(place: SpecPlace, scope: Scope) -> tuple[TensorSpec | None, Sizes]:
    sizes, rules = Sizes(), scope.rules
    if isinstance(place.decl, tree.Reshard):
        sizes, rules = reshard_sizes(place.decl, scope), {}
    errors: list[Diagnostic] = []
    spec = resolve_spec(place.spec, evolve(scope, rules=rules, seen=set()), errors, name=place.name)
    return (None if errors else spec), sizes


def _layout(spec: TensorSpec, mesh: Mesh, sizes: Sizes, name: str) -> Layout | None:
    dims = spec.dims or ()
    values = [[None if f.size is None else evaluate(f.size, sizes) for f in d.factors] for d in dims]
    if any(d.rest or d.choose for d in dims) or any(v is None for factors in values for v in factors):
        return None
    used = {a for d in dims for a in (*(a for f in d.factors for a in f.cuts), *(c.axis for c in d.flat))}
    if any(mesh.axis(a).open for a in used):
        return None
    shape = tuple(math.prod(v for v in factors if v is not None) for factors in values)
    return layout_of(Operand(name, spec, shape, mesh), sizes)


def _called(name: str) -> str:
    return name if " " in name else f"`{name}`"


def _numbers(layout: Layout, spec: TensorSpec, name: str) -> str:
    largest, smallest = layout.local_shape(layout.mesh.first_rank), layout.local_shape(layout.mesh.ranks[-1])
    shape, last = (" ".join(map(str, s)) for s in (largest, smallest))
    text = f"a rank holds `{spec.dtype or ''}[{shape}]` of {_called(name)}"
    if largest != smallest:
        text = f"the first rank holds `{spec.dtype or ''}[{shape}]` of {_called(name)}, the last one `[{last}]`"
    if spec.dtype:
        text += f": {_bytes(math.prod(largest) * DTYPES[spec.dtype].itemsize)}"
    return text


def _bytes(count: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.4g} {unit}"
    return f"{count} B"


def _dim(dim: SpecDim, mesh: Mesh, sizes: Sizes) -> str:
    if dim.rest:
        return "..."
    parts = [_factor(f, mesh, sizes) for f in dim.factors]
    text = parts[0] if len(parts) == 1 else "(" + " ".join(parts) + ")"
    text += "".join(_cut(c.axis, mesh, "/~" if c.uneven else "/") for c in dim.flat)
    return text + ("/?" if dim.choose else "")


def _factor(factor: SpecFactor, mesh: Mesh, sizes: Sizes) -> str:
    value = None if factor.size is None else evaluate(factor.size, sizes)
    if value is not None and not any(mesh.axis(a).open for a in factor.cuts):
        ranks = math.prod(mesh.axis(a).size for a in factor.cuts)
        if value % ranks == 0:
            return str(value // ranks)
    return _size(factor.size, sizes) + "".join(_cut(a, mesh, "/") for a in factor.cuts)


def _size(size: Size | None, sizes: Sizes) -> str:
    value = None if size is None else evaluate(size, sizes)
    return str(value) if value is not None else "_" if size is None else size.span.text


def _cut(axis: str, mesh: Mesh, sign: str) -> str:
    """Nothing for an axis of one rank; its name where its size is not known yet."""
    found = mesh.axis(axis)
    if found.open:
        return sign + axis
    return f"{sign}{found.size}" if found.size > 1 else ""


__all__ = ["local_shape", "reshard_sizes"]
