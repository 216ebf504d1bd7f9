"""A ``model`` declaration meets a model: patterns are matched, sizes unified, every parameter gets its layout."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from attrs import field, frozen

from shardlang.check.bind import Operand, layout_of, unify
from shardlang.check.facts import Facts, Tensor
from shardlang.check.groups import FsdpGroup, fsdp_groups, group_faults
from shardlang.check.patterns import NameIndex, single
from shardlang.check.program import CallLine, CompileLine, Model, ParamLine, PathPattern, Transfer
from shardlang.check.sizes import Sizes
from shardlang.check.static import static_faults
from shardlang.diagnostics import Diagnostic, ShardlangError, sl03_layouts, sl06_calls, sl06_models
from shardlang.diagnostics.prose import nearest
from shardlang.layout import Layout
from shardlang.mesh import Mesh
from shardlang.source import Span

SUGGESTIONS = 20
"""For how many patterns that match nothing the nearest names are looked for."""


@frozen
class ParameterLayout:
    """A parameter and the layout that the computation sees (FSDP's cut is not in it)."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    layout: Layout
    line: ParamLine
    frozen: bool = False

    @property
    def tensor(self) -> Tensor:
        return Tensor(self.shape, self.dtype, not self.frozen)


@frozen
class CallMatch:
    """A ``call`` line and a module that it is for."""

    line: CallLine
    module: str


@frozen
class ModelLayouts:
    """A model as declared: what each parameter, module and group is. ``parameters`` has every name of a tied one."""

    model: Model
    mesh: Mesh
    parameters: Mapping[str, ParameterLayout]
    tied: tuple[tuple[str, ...], ...]
    groups: tuple[FsdpGroup, ...]
    """Bottom up: a group stands before those of the modules around it."""
    calls: tuple[CallMatch, ...]
    checkpoint: tuple[str, ...]
    sizes: Sizes = field(factory=Sizes, eq=False)
    compile: tuple[tuple[str, CompileLine], ...] = ()
    """Modules that go through ``torch.compile``, each with its line."""
    linear: frozenset[str] = frozenset()
    """The weights of ``nn.Linear`` layers, where kinds of modules are known."""

    def unique_parameters(self) -> Iterable[ParameterLayout]:
        """Each parameter once, a tied one under its first name."""
        aliases = {name for names in self.tied for name in names[1:]}
        return (p for n, p in self.parameters.items() if n not in aliases)


def check_model(model: Model, facts: Facts) -> ModelLayouts:
    """Layouts of a model's parameters, and its modules by line. Where no shapes are known, only patterns are checked.

    Raises one ShardlangError: SL0601 patterns that match nothing, SL0602 parameters claimed twice, SL0603 parameters
    without a line, SL0301-SL0319 sizes and dtypes, SL0607-SL0610 FSDP groups, SL0611 and
    SL0630 calls.
    """
    matcher = _Matcher(model, facts)
    claims, disputed = _claims(model, facts, matcher)
    frozen_names = {name for pattern in model.freeze for name in matcher.parameters_of(pattern)}
    frozen_names |= {n for names in facts.tied for n in names if frozen_names & set(names)}
    groups = fsdp_groups(model.fsdp, facts, matcher.modules_of, matcher.errors)
    calls = _calls(model, facts, matcher)
    checkpoint = [m for pattern in model.checkpoint for m in matcher.modules_of(pattern)]
    compiled = _compiled(model, matcher)
    errors = matcher.errors
    sizes = Sizes()
    parameters: dict[str, ParameterLayout] = {}
    if facts.shapes_known:
        settled = {n: t for n, t in facts.parameters.items() if n in claims and n not in disputed}
        parameters = _layouts(model, settled, claims, frozen_names, sizes, errors)
    if not errors and facts.shapes_known:
        errors += _tied_faults(parameters, facts.tied)
        errors += group_faults(model.mesh, groups, {n: (p.layout, p.line.spec) for n, p in parameters.items()}, facts)
        for line in model.calls:
            for arg in (*line.args, *line.results):
                if arg.spec is not None:
                    errors += static_faults(arg.spec, model.mesh, arg.name or "the result", sizes)
    if errors:
        raise ShardlangError(errors)
    return ModelLayouts(
        model,
        model.mesh,
        parameters,
        facts.tied,
        groups,
        calls,
        tuple(dict.fromkeys(checkpoint)),
        sizes,
        compiled,
        facts.linear,
    )


def _compiled(model: Model, matcher: _Matcher) -> tuple[tuple[str, CompileLine], ...]:
    """The modules of ``compile`` lines. Reports SL0660 for a module that two lines match."""
    found: dict[str, CompileLine] = {}
    for line in model.compile:
        for module in matcher.modules_of(line.pattern):
            first = found.setdefault(module, line)
            if first is not line:
                matcher.errors.append(sl06_models.compiled_twice(line.pattern.span, module, first.pattern.span))
    return tuple(found.items())


class _Matcher:
    """Matches the patterns of one declaration, and reports those that match nothing."""

    def __init__(self, model: Model, facts: Facts) -> None:
        self.model = model
        self.errors: list[Diagnostic] = []
        self._facts = facts
        self._suggested = 0

    @cached_property
    def _parameters(self) -> NameIndex:
        return NameIndex(self._facts.parameters)

    @cached_property
    def _modules(self) -> NameIndex:
        return NameIndex(self._facts.modules)

    def parameters_of(self, pattern: PathPattern) -> list[str]:
        return self._match(self._parameters, pattern, "parameter")

    def modules_of(self, pattern: PathPattern) -> list[str]:
        return self._match(self._modules, pattern, "module")

    def _match(self, index: NameIndex, pattern: PathPattern, what: str) -> list[str]:
        names = index.match(pattern.text)
        if names and "," in pattern.text:
            self._match_words(index, pattern, what)
        if not names:
            near: Sequence[str] = ()
            if self._suggested < SUGGESTIONS:
                around = pattern.text.rpartition(".")[0]
                parameter = what == "module" and around and self._parameters.match(pattern.text)
                near = [around] if parameter else index.nearest(pattern.text)
                self._suggested += 1
            if what == "module" and not self._facts.modules_known and self._may_be_bare(pattern.text):
                return []
            self.errors.append(
                sl06_models.pattern_matches_nothing(pattern.span, pattern.text, what, near, self.model.name)
            )
        return names

    def _match_words(self, index: NameIndex, pattern: PathPattern, what: str) -> None:
        """Reports the words in braces with which a pattern that matches something matches nothing."""
        known = self._facts.modules_known or what == "parameter"
        for word, at, alone in single(pattern.text) if known else ():
            if not index.match(alone):
                near = index.nearest(alone) if self._suggested < SUGGESTIONS else ()
                self._suggested += 1
                span = pattern.part(at, len(word))
                self.errors.append(sl06_models.pattern_matches_nothing(span, alone, what, near, self.model.name))

    def _may_be_bare(self, pattern: str) -> bool:
        """May a module without parameters stand there: in one that exists, under a name like no other in it?"""
        around, _, last = pattern.rpartition(".")
        if not around or not last.isidentifier():
            return False
        siblings = {name.rpartition(".")[2] for name in self._modules.match(f"{around}.*")}
        return bool(self._modules.match(around)) and not nearest(last, siblings)


def _claims(model: Model, facts: Facts, matcher: _Matcher) -> tuple[dict[str, ParamLine], set[str]]:
    """The line of every parameter: the one whose pattern matches it, else ``otherwise``; those that several claim."""
    claims: dict[str, ParamLine] = {}
    clashes: dict[tuple[int, int], list[str]] = {}
    lines = [line for line in model.params if line.pattern.text != "otherwise"]
    order = {id(line): i for i, line in enumerate(lines)}
    for line in lines:
        for name in matcher.parameters_of(line.pattern):
            first = claims.setdefault(name, line)
            if first is not line:
                clashes.setdefault((order[id(first)], order[id(line)]), []).append(name)
    for (i, j), both in clashes.items():
        before, after = lines[i].pattern, lines[j].pattern
        matcher.errors.append(sl06_models.claimed_twice(after.span, after.text, before.span, before.text, both))
    for names in facts.tied:
        claimed = next((claims[n] for n in names if n in claims), None)
        if claimed is not None:
            for name in names:
                claims.setdefault(name, claimed)
    otherwise = next((line for line in model.params if line.pattern.text == "otherwise"), None)
    unclaimed = [name for name in facts.parameters if name not in claims]
    if otherwise is not None:
        claims.update(dict.fromkeys(unclaimed, otherwise))
    elif unclaimed:
        matcher.errors.append(sl06_models.unclaimed_parameters(model.span, model.name, unclaimed))
    return claims, {name for both in clashes.values() for name in both}


def _calls(model: Model, facts: Facts, matcher: _Matcher) -> tuple[CallMatch, ...]:
    calls: list[CallMatch] = []
    places: dict[str, Span] = {}
    for line in model.calls:
        unknown: set[str] = set()
        for module in matcher.modules_of(line.pattern):
            first = places.setdefault(module, line.pattern.span)
            if first is not line.pattern.span:
                matcher.errors.append(sl06_models.called_twice(line.pattern.span, module, first))
            known = facts.arguments.get(module)
            for arg in line.args if known is not None else ():
                if known is not None and arg.name not in known and arg.name not in unknown:
                    unknown.add(arg.name)
                    matcher.errors.append(sl06_calls.unknown_argument(arg.span, arg.name, module, list(known)))
            calls.append(CallMatch(line, module))
    return tuple(calls)


def _layouts(
    model: Model,
    tensors: Mapping[str, Tensor],
    claims: Mapping[str, ParamLine],
    frozen_names: set[str],
    sizes: Sizes,
    errors: list[Diagnostic],
) -> dict[str, ParameterLayout]:
    """The layout of every tensor; none where there are faults, which come after the ``errors`` that there are already.
    Parameters of one line and one shape are looked at once.
    """
    faults: list[Diagnostic] = []
    kinds: dict[tuple[int, tuple[int, ...], str], Operand] = {}
    keys: dict[str, tuple[int, tuple[int, ...], str]] = {}
    for name, tensor in tensors.items():
        line = claims[name]
        key = keys[name] = (id(line), tensor.shape, tensor.dtype)
        if key not in kinds:
            kinds[key] = Operand(name, line.spec, tensor.shape, model.mesh)
            if line.spec.dtype not in (None, tensor.dtype):
                faults.append(sl03_layouts.dtype_mismatch(line.spec.span, name, tensor.dtype, line.spec.dtype or ""))
    faults += unify(kinds.values(), sizes)
    if errors:
        # A size that nothing gives may be that of a parameter which a wrong pattern has missed.
        faults = [d for d in faults if d.code != "SL0305"]
    if faults:
        errors += faults
        return {}
    layouts: dict[tuple[int, tuple[int, ...], str], Layout] = {}
    for key, operand in kinds.items():
        try:
            layouts[key] = layout_of(operand, sizes)
        except ShardlangError as error:
            faults += error.diagnostics
    if errors or faults:
        errors += [d for d in faults if not errors or d.code != "SL0305"]
        return {}
    return {
        name: ParameterLayout(
            name,
            tensor.shape,
            tensor.dtype,
            layouts[keys[name]],
            claims[name],
            name in frozen_names or not tensor.trainable,
        )
        for name, tensor in tensors.items()
    }


def _tied_faults(parameters: Mapping[str, ParameterLayout], tied: Iterable[Sequence[str]]) -> list[Diagnostic]:
    faults: list[Diagnostic] = []
    for names in tied:
        first = parameters[names[0]]
        for other in (parameters[n] for n in names[1:]):
            if not first.layout.equivalent(other.layout):
                faults.append(
                    sl06_models.tied_layouts(other.line.spec.span, other.name, first.name, first.line.spec.span)
                )
    return faults


def transfer_faults(transfer: Transfer, source: ModelLayouts, target: ModelLayouts) -> list[Diagnostic]:
    """SL0617 where the two models of a transfer have not the same parameters, of the same shapes."""
    ours, theirs = source.parameters, target.parameters
    missing = [n for n in ours if n not in theirs] + [n for n in theirs if n not in ours]
    reshaped = [n for n in ours if n in theirs and ours[n].shape != theirs[n].shape]
    if not missing and not reshaped:
        return []
    return [sl06_models.transfer_differs(transfer.span, transfer.source, transfer.target, missing, reshaped)]
