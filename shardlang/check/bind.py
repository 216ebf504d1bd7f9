"""Specs meet shapes: free names are unified with sizes, and a spec becomes a layout.

A dim is an equation: the product of its factors is the dim's size. Each equation with one unknown factor gives a free
name its size; equations are taken again and again until none of them gives anything new, so that the order in which
tensors come does not matter.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from attrs import evolve, frozen

from shardlang.check.program import SpecDim, SpecFactor, TensorSpec
from shardlang.check.sizes import Binding, NoSolution, Sizes, evaluate, free_names, solve
from shardlang.diagnostics import Diagnostic, Label, ShardlangError, sl03_layouts
from shardlang.diagnostics.prose import named
from shardlang.layout import Cut, Dim, Factor, Layout, canonical_dim
from shardlang.mesh import Mesh
from shardlang.source import Span


@frozen
class Operand:
    """A spec beside the tensor that it meets."""

    name: str
    spec: TensorSpec
    shape: tuple[int, ...]
    mesh: Mesh


@frozen
class _Equation:
    """The product of the factors of ``dim`` is ``size``."""

    operand: Operand
    index: int
    dim: SpecDim
    size: int


def bind(spec: TensorSpec, shape: tuple[int, ...], mesh: Mesh, sizes: dict[str, int], *, name: str) -> Layout:
    """The layout that ``spec`` gives a tensor ``name`` of this global shape. Free names are added to ``sizes``.

    With a ``Sizes`` an error also says who bound a size. Raises ShardlangError with every fault of the tensor.
    """
    return bind_all([Operand(name, spec, shape, mesh)], sizes)[0]


def bind_all(operands: Iterable[Operand], sizes: dict[str, int]) -> list[Layout]:
    """The layouts of tensors whose specs share their names, in any order of binding. Grows ``sizes``.

    Raises ShardlangError with the faults of all of them.
    """
    operands = list(operands)
    errors = unify(operands, sizes)
    layouts: list[Layout] = []
    if not errors:
        for operand in operands:
            try:
                layouts.append(layout_of(operand, sizes))
            except ShardlangError as error:
                errors += error.diagnostics
    if errors:
        raise ShardlangError(errors)
    return layouts


def unify(operands: Iterable[Operand], sizes: dict[str, int], *, partial: bool = False) -> list[Diagnostic]:
    """Binds the free names of all operands; returns the faults. ``partial``: a name may stay without a size."""
    errors: list[Diagnostic] = []
    pending: list[_Equation] = []
    for operand in operands:
        try:
            pending += _equations(operand)
        except ShardlangError as error:
            errors += error.diagnostics
    progress = True
    while progress and pending:
        progress, waiting = False, []
        for equation in pending:
            try:
                done = _settle(equation, sizes)
            except ShardlangError as error:
                errors += error.diagnostics
                done = True
            progress |= done
            if not done:
                waiting.append(equation)
        pending = waiting
    if not partial and not errors:
        errors += [_undetermined(e, sizes) for e in pending]
    return errors


def dims_for(operand: Operand) -> tuple[SpecDim, ...]:
    """The spec's dims, one a dim of the tensor: ``...`` written out. ``whole`` gives unsplit dims of any size.

    Raises SL0303 where the numbers differ and SL0304 for a split scalar.
    """
    spec, rank = operand.spec, len(operand.shape)
    if spec.dims is None:
        return (SpecDim((SpecFactor(None),)),) * rank
    rest = any(d.rest for d in spec.dims)
    least = len(spec.dims) - rest
    if rank == 0 and least:
        axes = [a for d in spec.dims for a in axes_of(d)]
        if axes:
            raise ShardlangError(sl03_layouts.scalar_split(spec.span, operand.name, axes))
    if rank < least or (rank > least and not rest):
        raise ShardlangError(sl03_layouts.rank_mismatch(spec.span, operand.name, operand.shape, least, rest))
    dims: list[SpecDim] = []
    for dim in spec.dims:
        dims += [SpecDim((SpecFactor(None),), span=dim.span)] * (rank - least) if dim.rest else [dim]
    return tuple(dims)


def axes_of(dim: SpecDim) -> list[str]:
    """The axes that cut a dim, as written."""
    return [a for f in dim.factors for a in f.cuts] + [c.axis for c in dim.flat]


def _equations(operand: Operand) -> list[_Equation]:
    if operand.spec.dims is None:
        return []
    dims = dims_for(operand)
    return [_Equation(operand, i, d, n) for i, (d, n) in enumerate(zip(dims, operand.shape, strict=True))]


def _settle(equation: _Equation, sizes: dict[str, int]) -> bool:
    """Checks an equation or draws a size from it; false while it has more than one unknown factor.

    Raises SL0301 where nothing can satisfy it.
    """
    known, unknown = 1, []
    for factor in equation.dim.factors:
        value = None if factor.size is None else evaluate(factor.size, sizes)
        if value is None:
            unknown.append(factor)
        else:
            known *= value
    if not unknown:
        if known != equation.size:
            raise _conflict(equation, known, sizes)
        return True
    if len(unknown) > 1:
        return False
    if known == 0 or equation.size % known:
        if equation.size == 0:
            return False
        raise _conflict(equation, known, sizes)
    factor, value = unknown[0], equation.size // known
    if factor.size is None:
        return True
    try:
        solved = solve(factor.size, value, sizes)
    except NoSolution:
        raise _conflict(equation, known, sizes) from None
    if solved is None:
        return False
    name, size = solved
    if isinstance(sizes, Sizes):
        where = f"dim {equation.index} of {named(equation.operand.name)}"
        sizes.bind(name, size, Binding(where, factor.span or factor.size.span))
    else:
        sizes[name] = size
    return True


def bound_so_far(sizes: dict[str, int]) -> dict[str, tuple[int, str]]:
    """The sizes as an error shows them: ``name -> (size, who bound it)``."""
    binders = sizes.binders if isinstance(sizes, Sizes) else {}
    return {n: (v, binders[n].where if n in binders else "") for n, v in sizes.items()}


def _conflict(equation: _Equation, known: int, sizes: dict[str, int]) -> ShardlangError:
    """The dim is not what its factors say. ``known`` is the product of the factors whose size is known."""
    dim, tensor = equation.dim, equation.operand.name
    span = _span(dim, equation.operand.spec)
    names = [n for f in dim.factors if f.size for n in free_names(f.size)]
    bound = {n: v for n, v in bound_so_far(sizes).items() if n in names} or bound_so_far(sizes)
    if any(f.size is None or evaluate(f.size, sizes) is None for f in dim.factors):
        return ShardlangError(sl03_layouts.size_no_multiple(span, tensor, equation.index, equation.size, known, bound))
    binder = None
    if isinstance(sizes, Sizes) and len(dim.factors) == 1 and len(names) == 1 and names[0] in sizes.binders:
        first = sizes.binders[names[0]]
        if first.span is not None:
            binder = Label(first.span, f"`{names[0]}` is {sizes[names[0]]} by {first.where}")
    if len(dim.factors) == 1 and dim.factors[0].size is not None:
        span = dim.factors[0].size.span
    return ShardlangError(sl03_layouts.size_conflict(span, tensor, equation.index, equation.size, known, bound, binder))


def _undetermined(equation: _Equation, sizes: dict[str, int]) -> Diagnostic:
    factors = equation.dim.factors
    names = [n for f in factors if f.size for n in free_names(f.size) if n not in sizes]
    span = _span(equation.dim, equation.operand.spec)
    return sl03_layouts.size_undetermined(span, equation.operand.name, list(dict.fromkeys(names)), bound_so_far(sizes))


def _span(dim: SpecDim, spec: TensorSpec) -> Span:
    return dim.span or spec.span


def layout_of(operand: Operand, sizes: dict[str, int]) -> Layout:
    """The layout of a tensor whose free names all have their sizes.

    Raises SL0302 where an axis does not divide, and SL0322 for a ``/?`` that is left.
    """
    mesh, spec = operand.mesh, operand.spec
    errors: list[Diagnostic] = []
    dims: list[Dim] = []
    for written, size in zip(dims_for(operand), operand.shape, strict=True):
        if written.choose:
            errors.append(sl03_layouts.nothing_chooses(_span(written, spec), operand.name))
            continue
        factors = _factors(operand, written, size, sizes, errors)
        flat = written.flat
        if not errors:
            flat = _flat(operand, written, factors, sizes, errors)
        dims.append(Dim(factors, flat))
    if errors:
        raise ShardlangError(errors)
    return Layout(mesh, tuple(dims), spec.pending)


def _factors(
    operand: Operand, dim: SpecDim, size: int, sizes: dict[str, int], errors: list[Diagnostic]
) -> tuple[Factor, ...]:
    values = [None if f.size is None else evaluate(f.size, sizes) for f in dim.factors]
    known = math.prod(v for v in values if v is not None)
    factors: list[Factor] = []
    for factor, value in zip(dim.factors, values, strict=True):
        if value is None:
            value = size // known if known else 0
        axes = [(a, operand.mesh.axis(a).size) for a in factor.cuts]
        if value % math.prod(k for _, k in axes) == 0:
            factors.append(Factor(value, factor.cuts))
        elif factor.fallback:
            factors.append(Factor(value))
        else:
            factors.append(Factor(value))
            what = factor.size.span.text if factor.size else "_"
            single = len(dim.factors) == 1 and not dim.flat
            uneven = what + "".join(f"/~{a}" for a in factor.cuts) if single else None
            span = factor.span or _span(dim, operand.spec)
            errors.append(
                sl03_layouts.does_not_divide(
                    span, operand.name, what, value, axes, uneven=uneven, bound=bound_so_far(sizes)
                )
            )
    return tuple(factors)


def _flat(
    operand: Operand, dim: SpecDim, factors: tuple[Factor, ...], sizes: dict[str, int], errors: list[Diagnostic]
) -> tuple[Cut, ...]:
    """The flat cuts, each of which must divide what the cuts before it leave, unless it is uneven."""
    for i, cut in enumerate(dim.flat):
        try:
            canonical_dim(operand.mesh, Dim(factors, dim.flat[: i + 1]))
        except ValueError:
            span = _span(dim, operand.spec)
            local = _local(operand.mesh, factors, dim.flat[:i])
            axes = [(cut.axis, operand.mesh.axis(cut.axis).size)]
            text = span.text
            at = text.rfind(f"/{cut.axis}")
            uneven = f"{text[:at]}/~{cut.axis}" if at >= 0 else None
            errors.append(
                sl03_layouts.does_not_divide(
                    span, operand.name, str(local), local, axes, uneven=uneven, bound=bound_so_far(sizes)
                )
            )
            return ()
    return dim.flat


def _local(mesh: Mesh, factors: Sequence[Factor], flat: Sequence[Cut]) -> int:
    """The size of the flattened local dim of the first rank before the next flat cut."""
    size = math.prod(f.size // math.prod(mesh.axis(a).size for a in f.cuts) for f in factors)
    for cut in flat:
        size = -(-size // mesh.axis(cut.axis).size)
    return size


def gradient_spec(spec: TensorSpec) -> TensorSpec:
    """The layout of the gradient: as written, else split stays split, and what is pending or whole is whole."""
    return evolve(spec, pending=()) if spec.grad is None else evolve(spec.grad, dtype=spec.grad.dtype or spec.dtype)
