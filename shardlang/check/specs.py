"""Tensor specs: from the tree to ``TensorSpec``, axes looked up, rules applied, conflicts reported."""

from __future__ import annotations

from collections.abc import Iterable

from attrs import evolve, field, frozen

from shardlang.check.program import Arg, Size, SpecDim, SpecFactor, TensorSpec
from shardlang.check.scope import DimRule, Scope, fold
from shardlang.diagnostics import Diagnostic, ShardlangError, sl02_names, sl03_layouts, sl04_plans
from shardlang.dtypes import DTYPES
from shardlang.layout import Cut, Pending
from shardlang.source import Span
from shardlang.syntax import tree

ALIASES = {d.torch_name: d.name for d in DTYPES.values()} | {
    "float": "f32",
    "double": "f64",
    "half": "f16",
    "long": "i64",
    "int": "i32",
    "fp32": "f32",
    "fp16": "f16",
    "uint8": "u8",
}


@frozen
class _Uses:
    """The axes that a tensor has used so far: the leaf axes, each with the name it was used by and where."""

    tensor: str
    scope: Scope
    errors: list[Diagnostic]
    leaves: dict[str, tuple[str, Span, int]] = field(factory=dict)
    """leaf axis -> (axis as written, where, index of the dim; -1 where it is pending)"""

    def known(self, axis: tree.Name) -> bool:
        if axis.text in self.scope.axes:
            return True
        self.errors.append(sl02_names.unknown_axis(axis.span, axis.text, self.scope.mesh.name, self.scope.axes))
        return False

    def taken(self, axis: str) -> tuple[str, Span, int] | None:
        return next((self.leaves[leaf] for leaf in self.scope.mesh.expand(axis) if leaf in self.leaves), None)

    def take(self, axis: str, span: Span, dim: int) -> None:
        for leaf in self.scope.mesh.expand(axis):
            self.leaves[leaf] = (axis, span, dim)

    def cut(self, axis: tree.Name, dim: int) -> bool:
        """Takes an axis for a cut of a dim; reports why it cannot."""
        if not self.known(axis):
            return False
        before = self.taken(axis.text)
        if before is None:
            self.take(axis.text, axis.span, dim)
            return True
        name, first, where = before
        if name != axis.text:
            self._beside(axis, name, first)
        else:
            same = where == dim
            self.errors.append(sl02_names.splits_two_dims(axis.span, axis.text, self.tensor, first, same))
        return False

    def owe(self, axis: tree.Name) -> bool:
        """Takes an axis for a pending reduction; reports why it cannot."""
        if not self.known(axis):
            return False
        before = self.taken(axis.text)
        if before is None:
            self.take(axis.text, axis.span, -1)
            return True
        name, first, where = before
        if name != axis.text:
            self._beside(axis, name, first)
        elif where == -1:
            self.errors.append(sl03_layouts.pending_twice(axis.span, axis.text, self.tensor, first))
        else:
            self.errors.append(sl03_layouts.splits_and_pending(axis.span, axis.text, self.tensor, first))
        return False

    def _beside(self, axis: tree.Name, other: str, first: Span) -> None:
        mesh = self.scope.mesh
        parent = mesh.parent(axis.text) or mesh.parent(other) or axis.text
        self.errors.append(sl03_layouts.beside_parent(axis.span, axis.text, other, parent, self.tensor, first))


def check_spec(spec: tree.Spec, scope: Scope, *, name: str) -> TensorSpec:
    """The spec of a tensor called ``name`` on the scope's mesh. Raises ShardlangError with all that is wrong in it."""
    errors: list[Diagnostic] = []
    checked = resolve_spec(spec, scope, errors, name=name)
    if errors:
        raise ShardlangError(errors)
    return checked


def resolve_spec(spec: tree.Spec, scope: Scope, errors: list[Diagnostic], *, name: str) -> TensorSpec:
    """As ``check_spec``, with the faults added to ``errors`` and left out of the result."""
    uses = _Uses(name, scope, errors)
    checked = _tensor(spec.tensor, uses)
    if spec.grad is None:
        return checked
    called = f"the gradient of {name}"
    if isinstance(spec.grad, tree.Pending):
        again = _Uses(called, scope, errors, {k: v for k, v in uses.leaves.items() if v[2] >= 0})
        grad = evolve(checked, pending=_pending(spec.grad, again))
    else:
        grad = _tensor(spec.grad, _Uses(called, scope, errors))
    return evolve(checked, grad=grad)


def _tensor(tensor: tree.Tensor | tree.Whole, uses: _Uses) -> TensorSpec:
    if isinstance(tensor, tree.Whole):
        return TensorSpec(None, tensor.span)
    dtype = check_dtype(tensor.dtype, uses.errors) if tensor.dtype else None
    dims = [_dim(d, i, uses) for i, d in enumerate(tensor.dims)]
    pending = _pending(tensor.pending, uses) if tensor.pending else ()
    if dtype is not None and DTYPES[dtype].kind == "complex" and tensor.pending is not None:
        for owed in tensor.pending.owed:
            if owed.op in ("max", "min"):
                uses.errors.append(sl04_plans.no_such_reduction(owed.axis.text, owed.op, dtype, uses.tensor, owed.span))
    for i, written in enumerate(tensor.dims):
        dims[i] = _apply_rules(written, dims[i], i, uses)
    return TensorSpec(tuple(dims), tensor.span, dtype, pending)


def check_dtype(dtype: tree.Name, errors: list[Diagnostic]) -> str | None:
    """The name of a dtype, or ``None`` with SL0213 reported."""
    if dtype.text in DTYPES:
        return dtype.text
    errors.append(sl02_names.unknown_dtype(dtype.span, dtype.text, list(DTYPES), ALIASES.get(dtype.text)))
    return None


def _dim(dim: tree.SpecDim, index: int, uses: _Uses) -> SpecDim:
    if isinstance(dim, tree.Rest):
        return SpecDim((), rest=True, span=dim.span)
    if isinstance(dim, tree.Group):
        factors = tuple(_factor(f, index, uses) for f in dim.factors)
        flat = _cuts(dim.cuts, index, uses)
        return SpecDim(factors, flat, choose=_chooses(dim.cuts), span=dim.span)
    cuts = _cuts(dim.cuts, index, uses)
    even = next((i for i, c in enumerate(cuts) if c.uneven), len(cuts))
    factor = SpecFactor(_size(dim.size, uses), tuple(c.axis for c in cuts[:even]), dim.span)
    return SpecDim((factor,), cuts[even:], choose=_chooses(dim.cuts), span=dim.span)


def _chooses(cuts: Iterable[tree.Cut]) -> bool:
    return any(c.kind == "choose" for c in cuts)


def _factor(dim: tree.Dim, index: int, uses: _Uses) -> SpecFactor:
    for cut in dim.cuts:
        if cut.kind == "uneven" and cut.axis:
            uses.errors.append(sl03_layouts.uneven_factor(cut.span, cut.axis.text))
    cuts = _cuts(dim.cuts, index, uses)
    return SpecFactor(_size(dim.size, uses), tuple(c.axis for c in cuts if not c.uneven), dim.span)


def _size(size: tree.Expr | None, uses: _Uses) -> Size | None:
    if size is None:
        return None
    try:
        return fold(size, uses.scope.lets)
    except ShardlangError as error:
        uses.errors.extend(error.diagnostics)
        return None


def _cuts(cuts: Iterable[tree.Cut], index: int, uses: _Uses) -> tuple[Cut, ...]:
    return tuple(Cut(c.axis.text, c.kind == "uneven") for c in cuts if c.axis is not None and uses.cut(c.axis, index))


def _pending(pending: tree.Pending, uses: _Uses) -> tuple[Pending, ...]:
    owed: list[Pending] = []
    for item in pending.owed:
        for other in pending.owed[: pending.owed.index(item)]:
            ops = {item.op, other.op}
            if len(ops) == 2 and ops != {"sum", "avg"}:
                uses.errors.append(
                    sl03_layouts.pending_do_not_commute(item.span, item.op, other.span, other.op, uses.tensor)
                )
                break
        if uses.owe(item.axis):
            owed.append(Pending(item.axis.text, item.op))
    return tuple(owed)


def _apply_rules(written: tree.SpecDim, dim: SpecDim, index: int, uses: _Uses) -> SpecDim:
    """Gives the factors of a dim that names no axis (and is not held whole by ``/.``) those of its rules."""
    if isinstance(written, tree.Rest):
        return dim
    parts = written.factors if isinstance(written, tree.Group) else (written,)
    uses.scope.seen.update(p.size.name for p in parts if isinstance(p.size, tree.Ref))
    if not uses.scope.rules or written.cuts or any(p.cuts for p in parts):
        return dim
    factors = list(dim.factors)
    for i, part in enumerate(parts):
        if not isinstance(part.size, tree.Ref):
            continue
        rule = uses.scope.rules.get(part.size.name)
        if rule is not None and _free(rule, part, uses):
            for axis in rule.axes:
                uses.take(axis, part.span, index)
            factors[i] = evolve(factors[i], cuts=rule.axes, fallback=rule.fallback)
    return evolve(dim, factors=tuple(factors))


def _free(rule: DimRule, part: tree.Dim, uses: _Uses) -> bool:
    """Are the rule's axes free? Where not, that is an error unless the rule has ``else whole``."""
    for axis in rule.axes:
        taken = uses.taken(axis)
        if taken is not None:
            if not rule.fallback:
                uses.errors.append(
                    sl02_names.rule_axis_taken(part.span, rule.dim, axis, uses.tensor, taken[1], rule.span)
                )
            return False
    return True


def resolve_args(args: Iterable[tree.Arg], scope: Scope, errors: list[Diagnostic], *, result: bool) -> tuple[Arg, ...]:
    """The named tensors of one side of a signature. Two of one name are SL0210."""
    checked: list[Arg] = []
    names: dict[str, Span] = {}
    for i, arg in enumerate(args):
        name = arg.name.text if arg.name else ""
        if arg.name and arg.spec is not None:
            if name in names:
                errors.append(sl02_names.repeated_argument(arg.name.span, name, names[name]))
            names.setdefault(name, arg.name.span)
        called = name or (f"result {i}" if result else f"argument {i}")
        spec = None if arg.spec is None else resolve_spec(arg.spec, scope, errors, name=called)
        checked.append(Arg(name, spec, arg.span))
    return tuple(checked)
