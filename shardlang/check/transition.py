"""Transitions ``A => B``: sizes are unified across the arrow, dim by dim; dtype and shape never change.

A side that leaves an axis open (``d/?``) stands for several layouts, and the whole for several transitions, of which
the planner takes the cheapest.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice, product

from attrs import evolve, frozen

from shardlang.check.bind import Operand, bind_all, bound_so_far
from shardlang.check.open_dims import is_open, ways, without_choice
from shardlang.check.program import Size, SpecDim, TensorSpec
from shardlang.check.scope import Scope
from shardlang.check.sizes import Binding, Sizes, evaluate, free_names
from shardlang.check.specs import resolve_spec
from shardlang.check.static import choice_faults
from shardlang.diagnostics import Diagnostic, ShardlangError, sl03_layouts, sl05_functions
from shardlang.layout import Layout
from shardlang.mesh import Mesh
from shardlang.source import Span
from shardlang.syntax import spec_tree, tree

DEFAULT_DTYPE = "f32"


WAYS = 256
"""How many ways to choose open axes are compared, each by its plan."""


@frozen
class Transition:
    """Two layouts of one tensor."""

    dtype: str
    source: Layout
    target: Layout


def transitions(
    change: tree.Change, mesh: Mesh, sizes: Mapping[str, int] = {}, *, to: Mesh | None = None
) -> tuple[Transition, ...]:
    """The two layouts of ``A => B`` on a mesh (B's on ``to``, where it is another), where every size is known: one
    transition for each way to choose the axes that are left open. ``sizes`` are constants, like a ``let``'s.

    The dtype is that of the source, else of the target, else f32. Raises ShardlangError: whatever is wrong in a spec,
    SL0318 for a change of dtype, SL0317, SL0321, SL0324 and SL0325 across ``=>``, SL0305 where a size is not
    determined, SL0302 where an axis does not divide, SL0316 where an axis of the mesh is `?`, SL0527 where no axis is
    left for an open dim, SL0327 where more than ``WAYS`` ways are.
    """
    source, target = check_change(change, Scope(mesh, sizes), None if to is None else Scope(to, sizes))
    for used in (mesh, to or mesh):
        for axis in used.axes:
            if axis.open:
                raise ShardlangError(sl03_layouts.open_axis(None, used.name, axis.name, "a plan"))
    return bind_change(source, target, mesh, Sizes(), to=to)


def spec_layout(spec: spec_tree.Spec, mesh: Mesh, sizes: Mapping[str, int] = {}) -> Layout:
    """The layout that a spec by itself gives a tensor on a mesh, where every size is known; rules do not apply to it.

    Raises ShardlangError: whatever is wrong in the spec, SL0305, SL0302, SL0316 where an axis of the mesh is `?`.
    """
    errors: list[Diagnostic] = []
    resolved = resolve_spec(spec, Scope(mesh, sizes), errors, name="the tensor")
    errors += choice_faults(resolved, "the tensor")
    errors += [sl03_layouts.open_axis(None, mesh.name, a.name, "a picture") for a in mesh.axes if a.open]
    if errors:
        raise ShardlangError(errors)
    known = Sizes()
    shape = _shape(resolved, resolved, known, "the tensor")
    (layout,) = bind_all([Operand("the tensor", resolved, shape, mesh)], known)
    return layout


def check_change(change: tree.Change, scope: Scope, to: Scope | None = None) -> tuple[TensorSpec, TensorSpec]:
    """The two specs of ``A => B``, B in the scope ``to`` where that is another. Raises ShardlangError with all that is
    wrong without knowing any shape.

    Both sides are layouts in full: rules for logical dims do not apply to them.
    """
    errors: list[Diagnostic] = []
    scope = evolve(scope, rules={})
    source = resolve_spec(change.source, scope, errors, name="the source")
    target = resolve_spec(change.target, scope if to is None else evolve(to, rules={}), errors, name="the target")
    if target.dtype is not None and source.dtype is not None and source.dtype != target.dtype:
        errors.append(sl03_layouts.dtype_change(target.span, target.dtype, source.dtype, source.span))
    for side, name in ((source, "the source"), (target, "the target")):
        errors += choice_faults(side, name, argument=True)
    if not errors:
        errors += unify_change(source, target, Sizes())
    if errors:
        raise ShardlangError(errors)
    return source, target


def bind_change(
    source: TensorSpec,
    target: TensorSpec,
    mesh: Mesh,
    sizes: Sizes,
    *,
    to: Mesh | None = None,
    shape: tuple[int, ...] | None = None,
) -> tuple[Transition, ...]:
    """The layouts of a checked change, its sizes unified from both sides and ``sizes``; ``shape`` is the tensor's where
    the text leaves it open. Raises as ``transitions``."""
    errors = unify_change(source, target, sizes)
    if errors:
        raise ShardlangError(errors)
    shape = _shape(source, target, sizes) if shape is None else shape
    operands = [Operand("the source", source, shape, mesh), Operand("the target", target, shape, to or mesh)]
    dtype = source.dtype or target.dtype or DEFAULT_DTYPE
    # What is wrong whatever is chosen is told first.
    named = bind_all([evolve(o, spec=without_choice(o.spec)) for o in operands], sizes)
    if not is_open(source) and not is_open(target):
        return (Transition(dtype, *named),)
    return tuple(
        Transition(dtype, *bind_all([evolve(o, spec=s) for o, s in zip(operands, specs, strict=True)], sizes))
        for specs in _choices(operands)
    )


def _choices(operands: Sequence[Operand]) -> list[tuple[TensorSpec, ...]]:
    """Every way to choose the open axes of both sides. Raises SL0527 where there is none and SL0327 for too many."""
    options: list[list[TensorSpec]] = []
    for operand in operands:
        found = list(islice(ways(operand), WAYS + 1))
        if not found:
            place = _open_dim(operand.spec)
            raise ShardlangError(sl05_functions.no_open_axis(operand.name, str(operand.mesh), place))
        options.append(found)
    if math.prod(map(len, options)) > WAYS:
        first = next(o.spec for o in operands if is_open(o.spec))
        raise ShardlangError(sl03_layouts.too_many_ways(_open_dim(first), "the two sides", WAYS))
    return list(product(*options))


def _open_dim(spec: TensorSpec) -> Span:
    """Where the first open dim stands."""
    return next((d.span for d in spec.dims or () if d.choose and d.span), spec.span)


def unify_change(source: TensorSpec, target: TensorSpec, sizes: Sizes) -> list[Diagnostic]:
    """Adds to ``sizes`` what the two sides say of each other; returns the faults."""
    pairs, errors = _pairs(source, target)
    progress = True
    waiting = pairs
    while progress and waiting:
        progress, left = False, []
        for pair in waiting:
            try:
                done = _settle(pair, sizes)
            except ShardlangError as error:
                errors += error.diagnostics
                done = True
            progress |= done
            if not done:
                left.append(pair)
        waiting = left
    for first, second in waiting:
        names = _unknown(first, sizes) + _unknown(second, sizes)
        names.subtract(Counter(_unknown(first, sizes) & _unknown(second, sizes)))
        errors.append(sl03_layouts.unbound_pair(_span(second), list(names), _span(first)))
    return errors


def _pairs(source: TensorSpec, target: TensorSpec) -> tuple[list[tuple[SpecDim, SpecDim]], list[Diagnostic]]:
    """The dims that meet across ``=>``: leading ones that ``...`` stands for have no partner to differ from."""
    if source.dims is None or target.dims is None:
        return [], []
    left, right = list(source.dims), list(target.dims)
    rest = (bool(left) and left[0].rest, bool(right) and right[0].rest)
    left, right = left[rest[0] :], right[rest[1] :]
    if (len(left) < len(right) and not rest[0]) or (len(right) < len(left) and not rest[1]):
        return [], [sl03_layouts.dims_across(target.span, len(left), len(right), source.span)]
    count = min(len(left), len(right))
    return list(zip(left[len(left) - count :], right[len(right) - count :], strict=True)), []


def _span(dim: SpecDim) -> Span:
    assert dim.span is not None
    return dim.span


def _product(dim: SpecDim, sizes: Sizes) -> int:
    """The product of what is known in a dim: whole factors, and the known parts of products."""
    product = 1
    for factor in dim.factors:
        for part in _parts(factor.size):
            value = evaluate(part, sizes)
            product *= 1 if value is None else value
    return product


def _parts(size: Size | None) -> list[Size]:
    """The factors of a product as written."""
    if size is None:
        return []
    if size.kind == "*" and size.left is not None and size.right is not None:
        return _parts(size.left) + _parts(size.right)
    return [size]


def _unknown(dim: SpecDim, sizes: Sizes) -> Counter[str]:
    """The names in a dim without a size, each as often as it stands there."""
    return Counter(n for f in dim.factors for p in _parts(f.size) for n in free_names(p) if n not in sizes)


def _settle(pair: tuple[SpecDim, SpecDim], sizes: Sizes) -> bool:
    """Checks that two dims have one size, or draws a name's size from that; false while more than one is open."""
    first, second = pair
    if any(f.size is None for d in pair for f in d.factors):
        return True
    left, right = _product(first, sizes), _product(second, sizes)
    ours, theirs = _unknown(first, sizes), _unknown(second, sizes)
    if left == right and ours == theirs:
        return True
    common = ours & theirs
    ours, theirs = ours - common, theirs - common
    open_names = ours + theirs
    if not open_names:
        if left != right and not common:
            raise ShardlangError(sl03_layouts.sizes_across(_span(second), right, left, _span(first)))
        if left != right:
            raise ShardlangError(sl03_layouts.multiples_across(_span(second), _span(first)))
        return True
    if open_names.total() > 1:
        return False
    (name,) = open_names
    known, product = (left, right) if ours else (right, left)
    if known == 0 or product % known:
        raise ShardlangError(sl03_layouts.multiples_across(_span(second), _span(first)))
    sizes.bind(name, product // known, Binding("the other side of `=>`", _span(second if ours else first)))
    return True


def _shape(source: TensorSpec, target: TensorSpec, sizes: Sizes, name: str = "the source") -> tuple[int, ...]:
    """The shape that both sides agree on. Raises SL0305 where a size is not known."""
    sides = [s.dims for s in (source, target) if s.dims is not None]
    written = next((dims for dims in sides if not _has_rest(dims)), None)
    if written is None:
        raise ShardlangError(sl03_layouts.size_undetermined(source.span, name, (), bound_so_far(sizes)))
    shape: list[int] = []
    for i, dim in enumerate(written):
        candidates = [d[i - len(written)] for d in sides if len(written) - i <= len(d) - _has_rest(d)]
        known = [n for n in (_size(d, sizes) for d in candidates) if n is not None]
        if not known:
            names = list(_unknown(dim, sizes))
            raise ShardlangError(sl03_layouts.size_undetermined(_span(dim), name, names, bound_so_far(sizes)))
        shape.append(known[0])
    return tuple(shape)


def _has_rest(dims: tuple[SpecDim, ...]) -> bool:
    return bool(dims) and dims[0].rest


def _size(dim: SpecDim, sizes: Sizes) -> int | None:
    product = 1
    for factor in dim.factors:
        value = None if factor.size is None else evaluate(factor.size, sizes)
        if value is None:
            return None
        product *= value
    return product


def open_names(source: TensorSpec, target: TensorSpec, sizes: Sizes) -> tuple[str, ...]:
    """What must still be known before the change can be planned: free names, ``_`` for a size, ``...`` for dims."""
    sides = [s.dims for s in (source, target) if s.dims is not None]
    names = dict.fromkeys(n for dims in sides for dim in dims for n in _unknown(dim, sizes))
    if names:
        return tuple(names)
    try:
        _shape(source, target, sizes)
    except ShardlangError:
        return ("...",) if any(_has_rest(dims) for dims in sides) or not sides else ("_",)
    return ()
