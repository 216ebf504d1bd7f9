"""The session object: one file on its way from text to results, each stage a cached property.

A stage raises ``ShardlangError`` with all that is wrong there; later stages build on it. Torch is imported only where
a model has to be built.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from attrs import evolve, field, frozen

import shardlang
from shardlang.artefact import ARTEFACT_VERSION, read_artefact
from shardlang.check import Program, check
from shardlang.check.budget import budget_faults, forbidden
from shardlang.check.checkpoint import checkpoint_facts
from shardlang.check.facts import Facts
from shardlang.check.model import ModelLayouts, check_model, transfer_faults
from shardlang.check.sizes import Sizes
from shardlang.check.transition import bind_change, open_names, unify_change
from shardlang.diagnostics import Diagnostic, ShardlangError, sl02_names, sl03_layouts, sl06_calls, sl06_models
from shardlang.source import Source, Span
from shardlang.syntax import tree
from shardlang.syntax.decode import decode
from shardlang.syntax.parse import parse
from shardlang.syntax.reading import read_bytes

if TYPE_CHECKING:
    from torch import nn

    from shardlang.plan.plan import Plan
    from shardlang.report.lock import Lock
    from shardlang.runtime.step_plan import StepPlan


@frozen(slots=False)
class Compilation:
    """A file and what the command line adds to it.

    ``sets`` overrides ``let`` constants; ``nproc`` is the number of ranks of the launch; ``model`` (``pkg.mod:fn``)
    stands for a missing ``from``, or for the one of the file's only model; ``checkpoint`` gives parameters in a
    model's place. Without ``look_at_models`` nothing is known of any model, and torch is not imported. ``said`` is the
    artefact that it comes from.
    """

    source: Source
    sets: Mapping[str, int] = field(factory=dict)
    nproc: int | None = None
    model: str | None = None
    checkpoint: str | None = None
    look_at_models: bool = True
    said: Mapping[str, Any] | None = None

    @cached_property
    def tree(self) -> tree.File:
        return parse(self.source)

    @cached_property
    def program(self) -> Program:
        program = check(self.tree, nproc=self.nproc, sets=self.sets)
        if not program.models:
            for option, value in (("--model", self.model), ("--checkpoint", self.checkpoint)):
                if value is not None:
                    raise ShardlangError(sl06_models.no_model_declared(f"{option} {value}", self.source.name))
        return program

    @cached_property
    def references(self) -> dict[str, tuple[str, Span | None]]:
        """For each model that has one: the function that builds it, and where the file says so."""
        found: dict[str, tuple[str, Span | None]] = {}
        for name, model in self.program.models.items():
            if self.model is not None and (model.reference is None or len(self.program.models) == 1):
                found[name] = (self.model, None)
            elif model.reference is not None:
                found[name] = (model.reference, model.reference_span)
        for transfer in self.program.transfers:
            # A transfer moves the same weights: what one side does not say of its model, the other does.
            for one, other in ((transfer.source, transfer.target), (transfer.target, transfer.source)):
                if one in found and other not in found:
                    found[other] = found[one]
        return found

    def build(self, name: str, *, device: str = "meta") -> nn.Module:
        """The module of a model, built by its function; by default on the meta device. Raises SL0612 and SL0613."""
        from shardlang.lower.module import build_model

        reference, span = self.references[name]
        return build_model(reference, span, device=device)

    @cached_property
    def facts(self) -> dict[str, Facts]:
        """Parameters and modules of each model that something gives: the checkpoint, else its function."""
        if not self.look_at_models:
            return {}
        if self.checkpoint is not None:
            return dict.fromkeys(self.program.models, checkpoint_facts(self.checkpoint))
        if not self.references:
            return {}
        facts: dict[str, Facts] = {}
        errors: list[Diagnostic] = []
        for name in self.references:
            try:
                module = self.build(name)
            except ShardlangError as error:
                errors += error.diagnostics
                continue
            from shardlang.lower.facts import facts_of

            facts[name] = facts_of(module)
        if errors:
            raise ShardlangError(errors)
        return facts

    @cached_property
    def layouts(self) -> dict[str, ModelLayouts]:
        """The checked layouts of each model whose parameters are known."""
        layouts: dict[str, ModelLayouts] = {}
        errors: list[Diagnostic] = []
        for name, facts in self.facts.items():
            try:
                layouts[name] = check_model(self.program.models[name], facts)
            except ShardlangError as error:
                errors += error.diagnostics
        for budget in self.program.budgets:
            if budget.model in layouts:
                errors += budget_faults(budget, layouts[budget.model])
        for transfer in self.program.transfers:
            if transfer.source in layouts and transfer.target in layouts:
                errors += transfer_faults(transfer, layouts[transfer.source], layouts[transfer.target])
        if errors:
            raise ShardlangError(errors)
        return layouts

    def untrainable(self, name: str) -> Diagnostic | None:
        """SL0637 where the module of a model lacks what ``run`` trains it with."""
        from shardlang.lower.module import import_module_of

        reference, span = self.references[name]
        home = import_module_of(reference, span)
        missing = [n for n in ("batch", "loss") if not callable(getattr(home, n, None))]
        return sl06_calls.not_runnable(span, reference, missing) if missing else None

    def step_plan(self, name: str) -> StepPlan:
        """The collectives of a training step of a model: as the artefact said, else found by going through one.

        Raises SL0637 where the model's module has no ``batch`` or ``loss``, SL0736 where a step needs values, SL0652
        where a budget forbids what it sends.
        """
        if name not in self._step_plans:
            plan = self._find_step_plan(name)
            mesh = self.program.models[name].mesh
            faults = [
                fault
                for budget in self.program.budgets
                if budget.model == name
                for sent in plan.collectives
                for fault in forbidden(budget, mesh, sent.kind, sent.axes, "a step")
            ]
            if faults:
                raise ShardlangError(faults)
            self._step_plans[name] = plan
        return self._step_plans[name]

    @cached_property
    def _step_plans(self) -> dict[str, StepPlan]:
        return {}

    def _find_step_plan(self, name: str) -> StepPlan:
        from shardlang.lower.module import import_module_of
        from shardlang.runtime.step_plan import StepPlan, plan_step

        said = self._said_steps()
        if name in said:
            try:
                return StepPlan.from_json(said[name])
            except (AttributeError, KeyError, TypeError):
                reason = f"its step of `{name}` is no plan"
                raise ShardlangError(sl02_names.malformed_artefact(self.source.name, reason)) from None
        fault = self.untrainable(name)
        if fault is not None:
            raise ShardlangError(fault)
        home: Any = import_module_of(*self.references[name])
        return plan_step(self.layouts[name], lambda: self.build(name, device="cpu"), home.batch, home.loss)

    def _said_steps(self) -> Mapping[str, Any]:
        """The plans of training steps of the artefact, where nothing has changed since that they depend on."""
        if self.said is None:
            return {}
        now = {"meshes": self._meshes(), "lets": dict(self.program.lets), "model": self.model}
        steps: Mapping[str, Any] = self.said["steps"] if all(self.said.get(k) == v for k, v in now.items()) else {}
        return steps

    def _meshes(self) -> dict[str, str]:
        return {name: str(mesh) for name, mesh in self.program.meshes.items()}

    def steps_json(self) -> dict[str, Any]:
        """The plan of a training step of each model that has one."""
        return {name: plan.to_json() for name, plan in self._planned_steps().items()}

    def _planned_steps(self) -> dict[str, StepPlan]:
        """The plan of a training step of each model with a whole mesh and a module that ``run`` can train."""
        return {
            name: self.step_plan(name)
            for name in self.layouts
            if self.checkpoint is None
            and name in self.references
            and not any(a.open for a in self.program.models[name].mesh.axes)
            and self.untrainable(name) is None
        }

    @cached_property
    def plans(self) -> dict[str, Plan]:
        """The plan of each ``reshard`` all of whose sizes are known."""
        from shardlang.check.planned import plan_cheapest

        plans: dict[str, Plan] = {}
        errors: list[Diagnostic] = []
        for name, declared in self.program.reshards.items():
            if name in self.open_sizes:
                continue
            try:
                plans[name] = plan_cheapest(bind_change(declared.source, declared.target, declared.mesh, Sizes()))
            except ShardlangError as error:
                errors += error.diagnostics
        if errors:
            raise ShardlangError(errors)
        return plans

    @cached_property
    def open_sizes(self) -> dict[str, tuple[str, ...]]:
        """For each ``reshard`` that can be planned only when it meets a tensor: the open sizes, axes' too."""
        found: dict[str, tuple[str, ...]] = {}
        for name, declared in self.program.reshards.items():
            sizes = Sizes()
            unify_change(declared.source, declared.target, sizes)
            names = [a.name for a in declared.mesh.axes if a.open]
            names += open_names(declared.source, declared.target, sizes)
            if names:
                found[name] = tuple(names)
        return found

    def without_models(self) -> Compilation:
        """The same, with no look at any model."""
        return evolve(self, look_at_models=False)

    def diagnose(self) -> tuple[Diagnostic, ...]:
        """Everything that checking has to say, in the order of the text."""
        try:
            _ = self.program
            _ = self.layouts
        except ShardlangError as error:
            return error.diagnostics
        return self.warnings

    @cached_property
    def warnings(self) -> tuple[Diagnostic, ...]:
        """What is no error, and yet to be known: sizes or budgets that could not be looked at."""
        found: list[Diagnostic] = []
        for name, facts in self.facts.items():
            if not facts.shapes_known:
                span, count = self.program.models[name].span, len(facts.parameters)
                found.append(sl06_models.checkpoint_without_shards(span, self.checkpoint or "", count))
        for budget in self.program.budgets:
            if budget.model in self.layouts:
                found += [f for f in budget_faults(budget, self.layouts[budget.model]) if f.severity == "warning"]
        return tuple(found)

    def python_source(self, name: str) -> str:
        """The model as a Python file that needs torch alone. Raises SL0227 for what torch cannot say, SL0664 for
        what torch alone does not have, and SL0316 for an open axis."""
        from shardlang.lower.model import lower_model
        from shardlang.runtime.plain_source import plain_source

        layouts = self.layouts[name]
        for axis in layouts.mesh.axes:
            if axis.open:
                raise ShardlangError(
                    sl03_layouts.open_axis(layouts.model.span, layouts.mesh.name, axis.name, "a file of plain torch")
                )
        modules = self.facts[name].modules
        return plain_source(lower_model(layouts), modules, self.references[name][0], self.source.name)

    @cached_property
    def lock(self) -> Lock:
        """What the file comes down to: layouts, calls, memory and plans, and the collectives of a step where they are
        known."""
        from shardlang.report.lock import make_lock

        sent: dict[str, list[tuple[str, tuple[str, ...], int, int]]] = {}
        for name, plan in self._planned_steps().items():
            # What values decide is marked: the bytes are then the most that there can be.
            sent[name] = [(t.kind + "<=" * t.at_most, t.axes, t.count, t.bytes) for t in plan.collectives]
        return make_lock(self.program, self.layouts, self.plans, self.open_sizes, sent)

    def plans_json(self) -> dict[str, Any]:
        """Each ``reshard`` with its plan, or with the sizes that are open until it meets a tensor."""
        return {
            name: {"open": list(self.open_sizes[name])} if name in self.open_sizes else self.plans[name].to_json()
            for name in self.program.reshards
        }

    def artefact(self) -> dict[str, Any]:
        """The versioned object of ``compile --emit json``: enough to make this compilation again, and its plans."""
        return {
            "shardlang": ARTEFACT_VERSION,
            "made_by": shardlang.__version__,
            "source": {"name": self.source.name, "text": self.source.text},
            "sets": dict(self.sets),
            "nproc": self.nproc,
            "model": self.model,
            "meshes": self._meshes(),
            "lets": dict(self.program.lets),
            "plans": self.plans_json(),
            "steps": self.steps_json(),
        }


def load(
    path: str,
    *,
    sets: Mapping[str, int] = {},
    nproc: int | None = None,
    model: str | None = None,
    checkpoint: str | None = None,
) -> Compilation:
    """The compilation of a ``.shard`` file, of the JSON that ``compile`` wrote, or (``-``) of standard input.

    What is given here goes before what such a JSON says. Raises SL0221 for a file that cannot be read, SL0222 and
    SL0223 for a JSON that is no artefact of this version.
    """
    name, data = read_bytes(path)
    return from_bytes(name, data, sets=sets, nproc=nproc, model=model, checkpoint=checkpoint)


def from_bytes(
    name: str,
    data: bytes,
    *,
    sets: Mapping[str, int] = {},
    nproc: int | None = None,
    model: str | None = None,
    checkpoint: str | None = None,
) -> Compilation:
    """As ``load``, of bytes that are read already; diagnostics call them ``name``."""
    if not data.lstrip().startswith(b"{"):
        return Compilation(decode(name, data), dict(sets), nproc, model, checkpoint)
    said = read_artefact(name, data)
    source = Source(said["source"]["name"], said["source"]["text"])
    return Compilation(
        source,
        {**said["sets"], **sets},
        said["nproc"] if nproc is None else nproc,
        said["model"] if model is None else model,
        checkpoint,
        said=said,
    )
