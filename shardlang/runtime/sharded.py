"""``@sharded``: a function on global values, run by each rank on its blocks.

The body is ordinary PyTorch. At the first call with some shapes it is traced, typed and compiled to a local program
(``trace``); later calls with the same shapes and layouts go straight to it. A plain tensor is the global value, equal
on every rank; a DTensor brings its layout.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import update_wrapper
from typing import Any

import torch
import torch.distributed as dist
from attrs import evolve, frozen
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.utils import _pytree as pytree

from shardlang.check import Scope, Sizes, check_signature, check_spec, open_dims
from shardlang.check.bind import Operand, bind, bind_all
from shardlang.check.program import Fn, OperatorRule
from shardlang.diagnostics import ShardlangError, sl05_functions
from shardlang.layout import Layout
from shardlang.lower import torch_tracing
from shardlang.lower.placements import device_mesh, mesh_of, placements_of, ranks_of
from shardlang.mesh import Mesh
from shardlang.runtime import open_axes
from shardlang.runtime.arguments import (
    TENSORS,
    Placed,
    Tensor,
    argument_of,
    argument_unnamed,
    block_of,
    blocks_of,
    key_of,
)
from shardlang.runtime.attributes import in_place_of
from shardlang.runtime.closed_over import Outside, closed_over
from shardlang.runtime.groups import Team
from shardlang.runtime.handle import ShardTensor
from shardlang.runtime.inlined import inlined
from shardlang.runtime.local_program import function_for
from shardlang.runtime.recent import Recent, literal, surroundings
from shardlang.runtime.results import ArgumentKind, ResultKind, forget
from shardlang.runtime.seeds import seed_of_call
from shardlang.syntax.parse import parse_signature, parse_spec
from shardlang.trace import describe
from shardlang.trace.capture import Mark, TensorType, Trace, capture
from shardlang.trace.compile import lower
from shardlang.trace.literals import source_of_literal
from shardlang.trace.program import LocalProgram


@frozen(eq=False)
class _Compiled:
    """A local program made ready for this rank, and what goes around it."""

    program: LocalProgram
    run: Callable[..., tuple[torch.Tensor, ...]] | None
    arguments: tuple[ArgumentKind | None, ...]
    """What takes the block of each argument that is a DTensor."""
    results: tuple[ResultKind, ...] | None
    """What each result becomes, where results are DTensors or handles."""


class ShardedFunction:
    """What ``@sharded`` makes of a function. Raises ShardlangError (SL05) when it cannot be traced or typed.

    ``plan``, ``backward_signature`` and ``local_source`` describe the program of the last call.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        declared: Fn,
        scope: Scope,
        torch_mesh: DeviceMesh | None,
        auto: bool,
        rules: tuple[OperatorRule, ...] = (),
    ) -> None:
        update_wrapper(self, function)
        self.function, self.declared, self.scope, self.auto, self.rules = function, declared, scope, auto, rules
        self.mesh = scope.mesh
        self._torch_mesh = torch_mesh
        try:
            self._signature = inspect.signature(function)
        except (TypeError, ValueError):
            named = getattr(function, "__name__", repr(function))
            raise ShardlangError(sl05_functions.no_signature(named, declared.span)) from None
        self._compiled: dict[Any, _Compiled] = {}
        self._recent = Recent()
        self._traces: dict[Any, Trace] = {}
        self._last: LocalProgram | None = None
        self._closed: Outside | None = None
        self._names = tuple(self._signature.parameters)
        self._plain = self._names == tuple(a.name for a in declared.args)
        """Are the parameters just those of the signature, in its order?"""
        for arg in declared.args:
            if arg.name not in self._signature.parameters:
                raise ShardlangError(sl05_functions.unknown_parameter(declared.name, arg.name, self._names, arg.span))

    # -- calling ---------------------------------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._plain and not kwargs and len(args) == len(self._names):
            tensors, others = [*args, *self._outside().tensors()], ()
        else:
            tensors, others = self._taken(args, kwargs)
        rest = self._rest(tensors, others)
        found = self._recent.find(tensors, rest)
        if found is None:
            tensors, others = self._taken(args, kwargs)
            key = (tuple(map(key_of, tensors)), rest)
            found = self._compiled.get(key)
            if found is None:
                found = self._compiled[key] = self._compile(tensors, others)
                forget(self._compiled)
            self._recent.keep(tensors, rest, found)
        self._last = found.program
        local = blocks_of(tensors, found.arguments)
        if found.program.draws:
            local.append(seed_of_call())
        made = list(found.run(*local))
        if found.results is not None:
            made = [r.wrap(m) for m, r in zip(made, found.results, strict=True)]
        return pytree.tree_unflatten(made, found.program.structure)

    def program_for(self, *args: Any, **kwargs: Any) -> LocalProgram:
        """The local program for tensors of these shapes and layouts (of the meta device, too); nothing is run."""
        tensors, others = self._taken(args, kwargs)
        self._last = self._local_program(tensors, others)
        return self._last

    def program_in(self, layouts: Sequence[Layout], tensors: Sequence[torch.Tensor]) -> LocalProgram:
        """The local program for arguments that come in given layouts, with results as the signature has them."""
        handles = [Placed(t, w) for t, w in zip(tensors, layouts, strict=True)]
        self._last = self._local_program([*handles, *self._outside().tensors()], ())
        return self._last

    def local_for(
        self, layouts: Sequence[Layout], tensors: Sequence[torch.Tensor]
    ) -> Callable[..., tuple[torch.Tensor, ...]]:
        """This rank's function of local blocks, for arguments in given layouts; what ``torch.compile`` takes."""
        program, team = self.program_in(layouts, tensors), self._team(tensors)
        kinds = _kinds(self._outside().tensors(), program.gradients[len(tensors) :])
        eager = function_for(program, self._rank(team), team)
        looked_into = function_for(program, self._rank(team), team, moved=lambda made: inlined(made, team))

        def local(*blocks: torch.Tensor) -> tuple[torch.Tensor, ...]:
            blocks += tuple(block_of(t, k) for t, k in zip(self._outside().tensors(), kinds, strict=True))
            return looked_into(*blocks) if torch.compiler.is_compiling() else eager(*blocks)

        return local

    def _taken(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Tensor], tuple[Any, ...]]:
        """The declared tensors in the signature's order, and the other arguments by name."""
        if kwargs or len(args) != len(self._names):
            bound = self._signature.bind(*args, **kwargs)
            bound.apply_defaults()
            given = dict(bound.arguments)
        else:
            given = dict(zip(self._names, args, strict=True))
        tensors: list[Tensor] = []
        for arg in self.declared.args:
            value = given.pop(arg.name)
            if not isinstance(value, TENSORS):
                name = self.declared.name
                raise ShardlangError(sl05_functions.argument_not_tensor(name, arg.name, type(value).__name__, arg.span))
            tensors.append(value)
        for name, value in given.items():
            if isinstance(value, torch.Tensor):
                raise ShardlangError(sl05_functions.undeclared_tensor(self.declared.name, name, self.declared.span))
        return [*tensors, *self._outside().tensors()], tuple(given.items())

    def _outside(self) -> Outside:
        """What the function closes over."""
        if self._closed is None:
            self._closed = closed_over(self.function)
        return self._closed

    def _rest(self, tensors: Sequence[Any], others: tuple[Any, ...]) -> tuple[Any, ...]:
        """What a program depends on beside its tensors. Raises SL0530 and SL0531."""
        device = self._torch_mesh.device_type if self._torch_mesh is not None else "cpu"
        if self._torch_mesh is None and torch_tracing.autocast_state():
            device = next((t.device.type for t in tensors if isinstance(t, TENSORS)), device)
        named = tuple([(n, literal(v, n, self.declared.name)) for n, v in others])
        return named, surroundings(device), self._outside().training()

    # -- compiling -------------------------------------------------------------------------------------------------

    def _compile(self, tensors: Sequence[Tensor], others: tuple[Any, ...]) -> _Compiled:
        program = self._local_program(tensors, others)
        team = self._team(tensors)
        arguments = _kinds(tensors, program.gradients)
        results = None
        if any(isinstance(t, DTensor | ShardTensor) for t in tensors):
            mesh = self._device_mesh()
            results = tuple(ResultKind(w, mesh, d) for w, d in zip(program.results, program.result_dtypes, strict=True))
        return _Compiled(program, function_for(program, self._rank(team), team), arguments, results)

    def _local_program(self, tensors: Sequence[Tensor | Placed], others: tuple[Any, ...]) -> LocalProgram:
        count = len(self.declared.args)
        outside, tensors = tensors[count:], tensors[:count]
        ways = open_axes.options(self.declared, [tuple(t.shape) for t in tensors], self.mesh)
        sizes = Sizes()
        operands = [
            Operand(arg.name, specs[0], tuple(t.shape), self.mesh)
            for arg, specs, t in zip(self.declared.args, ways, tensors, strict=True)
        ]
        layouts = bind_all(operands, sizes)
        arguments = []
        for arg, specs, t, layout in zip(self.declared.args, ways, tensors, layouts, strict=True):
            others_of = [bind(s, tuple(t.shape), self.mesh, sizes, name=arg.name) for s in specs[1:]]
            made_of = argument_of(arg, t, layout, sizes, self.mesh, self.declared.name)
            arguments.append(evolve(made_of, options=(layout, *others_of)) if others_of else made_of)
        names = list(self._outside().slots)
        arguments += [
            argument_unnamed(n, t, self.mesh, self.declared.name) for n, t in zip(names, outside, strict=True)
        ]
        wrapped = any(isinstance(t, DTensor | ShardTensor | Placed) for t in (*tensors, *outside))

        def results(shapes: Sequence[tuple[int, ...]]) -> list[Layout | None]:
            declared = self.declared.results
            if len(declared) != len(shapes):
                raise ShardlangError(
                    sl05_functions.signature_mismatch(
                        self.declared.name, "result", len(declared), len(shapes), self.declared.span
                    )
                )
            made: list[Layout | None] = []
            for i, (arg, shape) in enumerate(zip(declared, shapes, strict=True)):
                name = arg.name or f"result {i}" if len(declared) > 1 else arg.name or "the result"
                bound = bind(arg.spec, shape, self.mesh, sizes, name=name) if arg.spec is not None else None
                made.append(bound if wrapped else Layout.whole(self.mesh, shape))
            return made

        def mark_layout(mark: Mark, shape: tuple[int, ...]) -> Layout:
            return self._marked(mark, shape, sizes)

        trace = self._trace([a.type for a in arguments], others, self._rest(tensors, others))
        return lower(
            trace,
            arguments,
            self.mesh,
            results,
            mark_layout=mark_layout,
            auto=self.auto or any(open_dims.is_open(a.spec) for a in self.declared.args if a.spec is not None),
            name=self.declared.name,
            span=self.declared.span,
            rules=self.rules,
        )

    def _trace(self, types: list[TensorType], others: tuple[Any, ...], rest: tuple[Any, ...]) -> Trace:
        key = (tuple(types), rest)
        if key not in self._traces:
            names = [a.name for a in self.declared.args]

            def call(*tensors: torch.Tensor) -> Any:
                with in_place_of(list(self._outside().slots.values()), tensors[len(names) :]):
                    return self.function(**dict(zip(names, tensors, strict=False)), **dict(others))

            self._traces[key] = capture(self.function, types, call)
            forget(self._traces)
        return self._traces[key]

    def _marked(self, mark: Mark, shape: tuple[int, ...], sizes: Sizes) -> Layout:
        if isinstance(mark.spec, Layout):
            return mark.spec
        if mark.source is None:
            span = mark.site.span() if mark.site else None
            raise ShardlangError(sl05_functions.spec_not_text(type(mark.spec).__name__, span))
        spec = check_spec(parse_spec(mark.source), self.scope, name="the value")
        return bind(spec, shape, self.mesh, sizes, name="the value")

    def _device_mesh(self) -> DeviceMesh:
        if self._torch_mesh is None:
            self._torch_mesh = device_mesh(self.mesh)
        return self._torch_mesh

    def _rank(self, team: Team) -> int:
        return team.logical(dist.get_rank()) if dist.is_initialized() else self.mesh.first_rank

    def _team(self, tensors: Sequence[Tensor]) -> Team:
        device = tensors[0].device.type if tensors else "cpu"
        if self._torch_mesh is None:
            return Team(device)
        return Team(device, self.mesh.first_rank, ranks_of(self._torch_mesh))

    # -- what was made ---------------------------------------------------------------------------------------------

    def _described(self) -> LocalProgram:
        if self._last is None:
            raise ShardlangError(sl05_functions.not_called_yet(self.declared.name))
        return self._last

    @property
    def plan(self) -> str:
        """The moves of the last program in order, each with its steps, bytes, modelled seconds and source line."""
        return describe.plan_text(self._described())

    @property
    def choices(self) -> str:
        """What ``explain()`` says."""
        return self.explain()

    def explain(self) -> str:
        """What ``auto`` and ``/?`` chose for the last program: each reshard, its price, and the next best program."""
        made = self._described()
        return made.explain() if made.explain is not None else describe.decisions_text(made)

    @property
    def backward_signature(self) -> str:
        """From the layouts of the results' gradients to those of the arguments'."""
        return describe.backward_signature(self._described())

    @property
    def local_source(self) -> str:
        """The local program as Python text."""
        return describe.local_source(self._described())


def _kinds(tensors: Sequence[Tensor], gradients: Sequence[Layout]) -> tuple[ArgumentKind | None, ...]:
    """What takes the blocks of tensors that are DTensors, with the layouts of their gradients."""
    return tuple(
        ArgumentKind(placements_of(g) or (), t.device_mesh, t.shape, t.dtype, t.placements)
        if isinstance(t, DTensor)
        else None
        for t, g in zip(tensors, gradients, strict=True)
    )


def sharded(signature: str, mesh: Any, *, auto: bool = False) -> Callable[[Callable[..., Any]], ShardedFunction]:
    """Compiles a function of tensors for a mesh. ``signature``: ``(x: [b/dp d], w: [d f/tp]) -> [b/dp f/tp]``.

    ``mesh`` is a torch ``DeviceMesh`` or a shardlang mesh (``program.mesh(..)``). ``auto``: where an operator does not
    fit the layouts of its operands, the cheapest reshards are inserted; without it that is an error. Raises
    ShardlangError with every fault of the signature.
    """
    source = source_of_literal(signature)
    named, torch_mesh = _mesh(mesh)

    def decorate(function: Callable[..., Any]) -> ShardedFunction:
        name = getattr(function, "__name__", "function")
        scope = Scope(named)
        declared = check_signature(parse_signature(source), scope, name=name)
        return ShardedFunction(function, declared, scope, torch_mesh, auto)

    return decorate


def _mesh(mesh: Any) -> tuple[Mesh, DeviceMesh | None]:
    if isinstance(mesh, DeviceMesh):
        return mesh_of(mesh), mesh
    if isinstance(mesh, Mesh):
        return mesh, None
    inner = getattr(mesh, "mesh", None)
    if isinstance(inner, Mesh):
        return inner, None
    raise TypeError(f"a mesh is a torch DeviceMesh or a shardlang Mesh, not a {type(mesh).__name__}")
