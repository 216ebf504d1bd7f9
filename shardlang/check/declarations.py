"""A whole file: tree -> ``Program``, with every fault of the file in one error."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar, get_args

from attrs import evolve

from shardlang.check.lets import fold_lets
from shardlang.check.meshes import check_links, check_meshes
from shardlang.check.model_lines import resolve_model
from shardlang.check.open_dims import is_open
from shardlang.check.operators import resolve_rule
from shardlang.check.program import Budget, Fn, Model, OperatorRule, Program, Reshard, TensorSpec, Transfer
from shardlang.check.scope import DimRule, Scope
from shardlang.check.sizes import Sizes
from shardlang.check.specs import resolve_args
from shardlang.check.static import choice_faults, static_faults
from shardlang.check.transition import bind_change, check_change, open_names, unify_change
from shardlang.diagnostics import Diagnostic, ShardlangError, sl02_names, sl06_budgets
from shardlang.mesh import DEFAULT_LINK, Link, Mesh
from shardlang.plan.steps import FREE, Kind
from shardlang.source import Span
from shardlang.syntax import tree
from shardlang.syntax.collector import collector_paused

STEPS = tuple(k for k in get_args(Kind) if k not in FREE)
"""The kinds of steps that a budget can forbid."""
_D = TypeVar("_D", tree.Fn, tree.Reshard, tree.Model)


def check(file: tree.File, *, nproc: int | None = None, sets: Mapping[str, int] = {}) -> Program:
    """Checks a file without looking at any model. ``nproc``: the ranks of the launch; ``sets``: ``--set`` overrides.

    Raises one ShardlangError with the faults of the whole file, in the order of the text.
    """
    with collector_paused():
        program, errors = _check(file, nproc, sets)
    if errors:
        raise ShardlangError(sorted(errors, key=_place))
    return program


def _check(file: tree.File, nproc: int | None, sets: Mapping[str, int]) -> tuple[Program, list[Diagnostic]]:
    errors: list[Diagnostic] = []
    source = file.span.source
    links = check_links((d for d in file.decls if isinstance(d, tree.Link)), errors)
    meshes = check_meshes(
        (d for d in file.decls if isinstance(d, tree.Mesh)),
        (d for d in file.decls if isinstance(d, tree.Split)),
        links,
        errors,
        nproc=nproc,
    )
    lets = fold_lets((d for d in file.decls if isinstance(d, tree.Let)), sets, errors, file=source.name)
    lines = _rule_lines(file)
    scopes = {name: Scope(mesh, lets, _rules(lines.get(name, ()), mesh, errors)) for name, mesh in meshes.items()}
    _unknown_rule_meshes(file, meshes, errors)
    fns = _fns(file, scopes, errors)
    reshards = _reshards(file, scopes, errors)
    rules = _operator_rules(file, errors)
    models = {name: evolve(model, rules=rules) for name, model in _models(file, scopes, errors).items()}
    for scope in scopes.values():
        _unused_rules(scope, errors)
    program = Program(
        source,
        links,
        meshes,
        lets,
        fns,
        reshards,
        models,
        _transfers(file, models, errors),
        _budgets(file, models, links, errors),
        rules,
    )
    return program, errors


def _place(error: Diagnostic) -> tuple[int, int, str]:
    return (-1, -1, error.code) if error.span is None else (error.span.start, error.span.end, error.code)


def check_signature(signature: tree.Signature, scope: Scope, *, name: str) -> Fn:
    """A decorator's signature on a mesh. Raises ShardlangError with all that is wrong in it."""
    errors: list[Diagnostic] = []
    checked = _signature(signature, scope, name, signature.span, errors)
    if errors:
        raise ShardlangError(errors)
    return checked


def _signature(signature: tree.Signature, scope: Scope, name: str, span: Span, errors: list[Diagnostic]) -> Fn:
    args = resolve_args(signature.args, scope, errors, result=False)
    results = resolve_args(signature.results, scope, errors, result=True)
    for arg in (*args, *results):
        if arg.spec is not None:
            errors.extend(static_faults(arg.spec, scope.mesh, arg.name or "the result"))
            # The planner of a function chooses for its arguments; what comes out and gradients it is told.
            errors.extend(choice_faults(arg.spec, arg.name or "the result", argument=arg in args))
    return Fn(name, scope.mesh, args, results, span, signature.many)


def _unique(decls: Iterable[_D], kind: str, errors: list[Diagnostic]) -> list[_D]:
    """The first declaration of each name; the others are SL0202."""
    first: dict[str, _D] = {}
    for decl in decls:
        if decl.name.text in first:
            before = first[decl.name.text].name.span
            errors.append(sl02_names.declared_twice(decl.name.span, kind, decl.name.text, before))
        else:
            first[decl.name.text] = decl
    return list(first.values())


def _scope(
    decl: tree.Fn | tree.Reshard | tree.Model, kind: str, scopes: Mapping[str, Scope], errors: list[Diagnostic]
) -> Scope | None:
    """The scope of the mesh that a declaration is on: the one it names, else the only one of the file."""
    if decl.mesh is None:
        if len(scopes) == 1:
            return next(iter(scopes.values()))
        errors.append(sl02_names.mesh_not_said(decl.name.span, kind, decl.name.text, list(scopes)))
        return None
    if decl.mesh.text not in scopes:
        errors.append(sl02_names.unknown_mesh(decl.mesh.span, decl.mesh.text, list(scopes)))
        return None
    return scopes[decl.mesh.text]


def _fns(file: tree.File, scopes: Mapping[str, Scope], errors: list[Diagnostic]) -> dict[str, Fn]:
    fns: dict[str, Fn] = {}
    for decl in _unique((d for d in file.decls if isinstance(d, tree.Fn)), "fn", errors):
        scope = _scope(decl, "fn", scopes, errors)
        if scope is not None:
            fns[decl.name.text] = _signature(decl.signature, scope, decl.name.text, decl.name.span, errors)
    return fns


def _reshards(file: tree.File, scopes: Mapping[str, Scope], errors: list[Diagnostic]) -> dict[str, Reshard]:
    reshards: dict[str, Reshard] = {}
    for decl in _unique((d for d in file.decls if isinstance(d, tree.Reshard)), "reshard", errors):
        scope = _scope(decl, "reshard", scopes, errors)
        if scope is None:
            continue
        try:
            source, target = check_change(decl.change, scope)
        except ShardlangError as error:
            errors.extend(error.diagnostics)
            continue
        errors.extend(_change_faults(source, target, scope.mesh))
        reshards[decl.name.text] = Reshard(decl.name.text, scope.mesh, source, target, decl.name.span)
    return reshards


def _change_faults(source: TensorSpec, target: TensorSpec, mesh: Mesh) -> list[Diagnostic]:
    """What the sizes that the two sides give say against their cuts, and against axes that are left open."""
    sizes = Sizes()
    unify_change(source, target, sizes)
    faults = static_faults(source, mesh, "the source", sizes) + static_faults(target, mesh, "the target", sizes)
    choice = is_open(source) or is_open(target)
    if faults or not choice or open_names(source, target, sizes) or any(a.open for a in mesh.axes):
        return faults
    try:
        bind_change(source, target, mesh, sizes)
    except ShardlangError as error:
        return list(error.diagnostics)
    return []


def _models(file: tree.File, scopes: Mapping[str, Scope], errors: list[Diagnostic]) -> dict[str, Model]:
    models: dict[str, Model] = {}
    for decl in _unique((d for d in file.decls if isinstance(d, tree.Model)), "model", errors):
        scope = _scope(decl, "model", scopes, errors)
        if scope is not None:
            models[decl.name.text] = resolve_model(decl, scope, errors)
    return models


def rules_on(file: tree.File, mesh: Mesh) -> dict[str, DimRule]:
    """The rules for dims of specs on a mesh of a file without faults, by the dim's name."""
    return _rules(_rule_lines(file).get(mesh.name, ()), mesh, [])


def _rule_lines(file: tree.File) -> dict[str, list[tree.RuleLine]]:
    """The lines of the rules on each mesh, by its name."""
    lines: dict[str, list[tree.RuleLine]] = {}
    for decl in file.decls:
        if isinstance(decl, tree.Rules):
            lines.setdefault(decl.mesh.text, []).extend(decl.lines)
    return lines


def _rules(lines: Iterable[tree.RuleLine], mesh: Mesh, errors: list[Diagnostic]) -> dict[str, DimRule]:
    """The rules for dims of specs on a mesh, by the dim's name."""
    rules: dict[str, DimRule] = {}
    known = [a.name for a in mesh.all_axes()]
    for line in lines:
        axes: dict[str, Span] = {}
        for axis in line.axes:
            if axis.text not in known:
                errors.append(sl02_names.unknown_axis(axis.span, axis.text, mesh.name, known))
                continue
            first = next((s for a, s in axes.items() if set(mesh.expand(a)) & set(mesh.expand(axis.text))), None)
            if first is not None:
                tensor = line.dims[0].text
                errors.append(sl02_names.splits_two_dims(axis.span, axis.text, tensor, first, True))
                continue
            axes[axis.text] = axis.span
        for dim in line.dims:
            if dim.text in rules:
                errors.append(sl02_names.repeated_rule(dim.span, dim.text, mesh.name, rules[dim.text].span))
            else:
                rules[dim.text] = DimRule(dim.text, tuple(axes), line.fallback, dim.span)
    return rules


def _operator_rules(file: tree.File, errors: list[Diagnostic]) -> tuple[OperatorRule, ...]:
    """The rules of operators. Two for one operator are SL0202: neither goes before the other."""
    first: dict[str, Span] = {}
    rules: list[OperatorRule] = []
    for decl in (d for d in file.decls if isinstance(d, tree.Rule)):
        name = decl.operator.text
        if name in first:
            errors.append(sl02_names.declared_twice(decl.operator.span, "rule of", name, first[name]))
            continue
        first[name] = decl.operator.span
        rules.append(resolve_rule(decl, errors))
    return tuple(rules)


def _unknown_rule_meshes(file: tree.File, meshes: Mapping[str, Mesh], errors: list[Diagnostic]) -> None:
    for decl in file.decls:
        if isinstance(decl, tree.Rules) and decl.mesh.text not in meshes:
            errors.append(sl02_names.unknown_mesh(decl.mesh.span, decl.mesh.text, list(meshes)))


def _unused_rules(scope: Scope, errors: list[Diagnostic]) -> None:
    """Rules whose dim no spec of the mesh has (SL0215), where there are specs at all."""
    for rule in scope.rules.values():
        if scope.seen and rule.dim not in scope.seen:
            errors.append(sl02_names.unused_rule(rule.span, rule.dim, scope.mesh.name, sorted(scope.seen)))


def _transfers(file: tree.File, models: Mapping[str, Model], errors: list[Diagnostic]) -> tuple[Transfer, ...]:
    transfers: list[Transfer] = []
    for decl in file.decls:
        if isinstance(decl, tree.Transfer):
            for name in (decl.source, decl.target):
                _known_model(name, file, errors)
            transfers.append(Transfer(decl.source.text, decl.target.text, decl.span))
    return tuple(transfers)


def _known_model(name: tree.Name, file: tree.File, errors: list[Diagnostic]) -> None:
    declared = [d.name.text for d in file.decls if isinstance(d, tree.Model)]
    if name.text not in declared:
        errors.append(sl02_names.unknown_model(name.span, name.text, declared))


def _axis_called(name: str, models: Mapping[str, Model]) -> tuple[str, str] | None:
    """The mesh of a model that has an axis of this name, and the link that the axis is on."""
    for mesh in (model.mesh for model in models.values()):
        for axis in mesh.all_axes():
            if axis.name == name:
                return mesh.name, "" if axis.link is DEFAULT_LINK else axis.link.name
    return None


def _budgets(
    file: tree.File, models: Mapping[str, Model], links: Mapping[str, Link], errors: list[Diagnostic]
) -> tuple[Budget, ...]:
    budgets: list[Budget] = []
    for decl in file.decls:
        if not isinstance(decl, tree.Budget):
            continue
        _known_model(decl.model, file, errors)
        memory: tree.MemoryLimit | None = None
        peak: float | None = None
        forbid: list[tree.Forbid] = []
        for limit in decl.limits:
            if isinstance(limit, tree.MemoryLimit):
                memory = limit if memory is None or limit.most.value < memory.most.value else memory
            elif isinstance(limit, tree.PeakLimit):
                ratio = float(limit.ratio)
                if ratio < 1.0:
                    errors.append(sl06_budgets.impossible_peak(limit.span, ratio))
                peak = ratio if peak is None else min(peak, ratio)
            else:
                if limit.kind.text not in STEPS:
                    errors.append(sl02_names.unknown_step(limit.kind.span, limit.kind.text, STEPS))
                if limit.link.text not in links:
                    axis = _axis_called(limit.link.text, models)
                    errors.append(sl02_names.unknown_link(limit.link.span, limit.link.text, list(links), axis))
                forbid.append(limit)
        budgets.append(
            Budget(
                decl.model.text,
                decl.span,
                memory.most.value if memory else None,
                peak,
                tuple((f.kind.text, f.link.text) for f in forbid),
                memory.span if memory else None,
                tuple(f.span for f in forbid),
            )
        )
    return tuple(budgets)
