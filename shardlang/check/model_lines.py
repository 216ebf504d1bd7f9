"""``model`` declarations: from the tree to ``Model``, as far as it goes without the parameters."""

from __future__ import annotations

import math
from collections.abc import Iterable

from shardlang.check.program import CallLine, CompileLine, FsdpLine, Model, ParamLine, PathPattern
from shardlang.check.scope import Scope
from shardlang.check.specs import check_dtype, resolve_args, resolve_spec
from shardlang.check.static import choice_faults, static_faults
from shardlang.diagnostics import Diagnostic, sl02_names, sl06_models
from shardlang.dtypes import DTYPES
from shardlang.source import Span
from shardlang.syntax import tree

COMPUTED = ("f64", "f32", "f16", "bf16")
"""The dtypes that FSDP can compute in."""


def resolve_model(model: tree.Model, scope: Scope, errors: list[Diagnostic]) -> Model:
    """The model with its names looked up; faults are added to ``errors``."""
    params: list[ParamLine] = []
    calls: list[CallLine] = []
    fsdp: list[FsdpLine] = []
    checkpoint: list[PathPattern] = []
    compiled: list[CompileLine] = []
    freeze: list[PathPattern] = []
    seen: dict[str, Span] = {}
    for item in model.items:
        pattern = PathPattern(item.path.text, item.path.span)
        if isinstance(item, tree.Param):
            first = seen.setdefault(pattern.text, pattern.span)
            if first is not pattern.span:
                errors.append(sl06_models.claimed_twice(pattern.span, pattern.text, first, pattern.text, ()))
            params.append(_param(item, pattern, scope, errors))
        elif isinstance(item, tree.Call):
            args = resolve_args(item.signature.args, scope, errors, result=False)
            results = resolve_args(item.signature.results, scope, errors, result=True)
            for arg in (*args, *results):
                if arg.spec is not None:
                    errors += static_faults(arg.spec, scope.mesh, arg.name or "the result")
                    errors += choice_faults(arg.spec, arg.name or "the result")
            calls.append(CallLine(pattern, args, results, item.span, item.eager, item.signature.many))
        elif isinstance(item, tree.Fsdp):
            fsdp.append(_fsdp(item, pattern, scope, errors))
        elif isinstance(item, tree.Checkpoint):
            checkpoint.append(pattern)
        elif isinstance(item, tree.Compile):
            values = [o.value for o in item.options]
            compiled.append(CompileLine(pattern, *(str(v) for v in values if isinstance(v, tree.Name))))
        else:
            freeze.append(pattern)
    return Model(
        model.name.text,
        model.reference.text if model.reference else None,
        scope.mesh,
        tuple(params),
        tuple(calls),
        tuple(fsdp),
        tuple(checkpoint),
        tuple(freeze),
        model.name.span,
        model.reference.span if model.reference else None,
        tuple(compiled),
    )


def _param(item: tree.Param, pattern: PathPattern, scope: Scope, errors: list[Diagnostic]) -> ParamLine:
    spec = resolve_spec(item.spec, scope, errors, name=pattern.text)
    if spec.pending and isinstance(item.spec.tensor, tree.Tensor) and item.spec.tensor.pending:
        errors.append(sl06_models.pending_parameter(item.spec.tensor.pending.span, pattern.text))
    errors += choice_faults(spec, pattern.text)
    errors += static_faults(spec, scope.mesh, pattern.text)
    return ParamLine(pattern, spec, item.span)


def _fsdp(item: tree.Fsdp, pattern: PathPattern, scope: Scope, errors: list[Diagnostic]) -> FsdpLine:
    used: dict[str, Span] = {}
    over = _axes(item.over, scope, used, errors)
    replicate = _axes(item.replicate, scope, used, errors)
    options = {o.name.text: o for o in item.options}
    dtypes: dict[str, str | None] = {}
    for name in ("param", "reduce", "output"):
        value = options[name].value if name in options else None
        dtypes[name] = check_dtype(value, errors) if isinstance(value, tree.Name) else None
        found = DTYPES.get(dtypes[name] or "")
        if isinstance(value, tree.Name) and found is not None and found.name not in COMPUTED:
            errors.append(sl06_models.no_compute_dtype(value.span, name, found.name, COMPUTED))
    reshard: bool | int = True
    reshard_span: Span | None = None
    if "reshard" in options:
        option = options["reshard"]
        reshard_span = option.value_span
        reshard = option.value.value if isinstance(option.value, tree.Int) else option.value is True
        axes = [scope.mesh.axis(a) for a in over]
        ranks = math.prod(a.size for a in axes)
        known = not any(_open(scope, a) for a in over)
        if not isinstance(reshard, bool) and over and known and (reshard < 1 or ranks % reshard):
            divisors = [d for d in range(1, min(ranks, 1 << 16) + 1) if ranks % d == 0]
            errors.append(sl06_models.reshard_no_divisor(reshard_span, reshard, ranks, divisors))
    prefetch = options["prefetch"].value if "prefetch" in options else None
    return FsdpLine(
        pattern,
        over,
        replicate,
        item.span,
        param_dtype=dtypes["param"],
        reduce_dtype=dtypes["reduce"],
        output_dtype=dtypes["output"],
        reshard=reshard,
        prefetch=prefetch.value if isinstance(prefetch, tree.Int) else 0,
        offload="offload" in options and options["offload"].value is True,
        float8="all_gather" in options,
        over_span=item.over[0].span.join(item.over[-1].span) if item.over else None,
        reshard_span=reshard_span,
    )


def _open(scope: Scope, axis: str) -> bool:
    return scope.mesh.axis(axis).open


def _axes(names: Iterable[tree.Name], scope: Scope, used: dict[str, Span], errors: list[Diagnostic]) -> tuple[str, ...]:
    """Axes of the mesh by name; unknown ones and those used before are reported and left out."""
    known = [a.name for a in scope.mesh.all_axes()]
    axes: list[str] = []
    for name in names:
        if name.text not in known:
            errors.append(sl02_names.unknown_axis(name.span, name.text, scope.mesh.name, known))
            continue
        leaves = scope.mesh.expand(name.text)
        first = next((used[leaf] for leaf in leaves if leaf in used), None)
        if first is not None:
            errors.append(sl06_models.fsdp_axis_twice(name.span, name.text, first))
            continue
        used.update(dict.fromkeys(leaves, name.span))
        axes.append(name.text)
    return tuple(axes)
