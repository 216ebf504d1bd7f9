"""The body of a ``call``, compiled: the module's forward as a local program, inside whatever hooks the module has.

Parameters, buffers and tensor arguments come as DTensors, so that their layouts are known; the forward is traced once
for each set of shapes, layouts and other arguments, typed with the cheapest reshards inserted, and then runs on local
blocks. A gradient of a parameter that FSDP reduces stays in parts over FSDP's axes, that of an
argument over all axes, since what comes next is a reduce-scatter or goes with it.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any

import torch
from attrs import evolve, frozen
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils import _pytree as pytree

from shardlang.diagnostics import ShardlangError
from shardlang.layout import Layout
from shardlang.lower import torch_private
from shardlang.lower.placements import carried, layout_of
from shardlang.plan.plan import Plan
from shardlang.runtime.calls import Boundary, Call
from shardlang.runtime.seeds import seed_of_call
from shardlang.runtime.groups import Team
from shardlang.runtime.local_program import function_for
from shardlang.runtime.results import ResultKind, forget
from shardlang.trace.capture import TensorType, capture
from shardlang.trace.compile import Argument, lower
from shardlang.trace.program import LocalProgram

STATIC = (int, float, bool, str, type(None), torch.dtype, torch.device)
"""Types of arguments that a program may be made for; others keep DTensor's dispatch."""


@frozen(eq=False)
class _Compiled:
    program: LocalProgram
    run: Callable[..., tuple[Tensor, ...]]
    gradients: tuple[Any, ...]
    results: tuple[ResultKind, ...]
    leaves: tuple[Any, ...]
    """What the module gives beside tensors, in its place: ``None``, flags; ``Tensor`` stands for a tensor."""
    structure: pytree.TreeSpec


@frozen(eq=False)
class _Run:
    """A plan on this rank, by whatever the boundary runs plans with."""

    plan: Plan
    boundary: Boundary
    in_place: bool = False

    def __call__(self, block: Tensor) -> Tensor:
        return self.boundary.run(self.plan, block)

    def shape(self) -> tuple[int, ...]:
        return self.plan.target.local_shape(_rank(self.boundary))


def install(module: nn.Module, path: str, boundary: Boundary, own: Mapping[str, frozenset[str]], line: Call) -> None:
    """Compiles the module's forward. ``own``: the axes over which FSDP adds up a parameter's gradient, by its name in
    the module. ``line`` gives the layouts of the results.
    """
    eager = module.forward
    twin = _without_hooks(module)
    made: dict[Any, _Compiled] = {}

    @wraps(eager)
    def forward(*args: Any, **kwargs: Any) -> Any:
        leaves, structure = pytree.tree_flatten((args, kwargs))
        given = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        others = tuple(None if isinstance(leaf, Tensor) else leaf for leaf in leaves)
        if not all(isinstance(leaf, STATIC) for leaf in others):
            return eager(*args, **kwargs)
        held = dict(module.named_parameters()) | dict(module.named_buffers())
        tensors = [*held.values(), *given]
        key = (structure, others, tuple(map(_key, tensors)), module.training)
        found = made.get(key)
        if found is None:
            try:
                found = made[key] = _compile(twin, path, boundary, own, line, held, leaves, structure, tensors)
                forget(made)
            except ShardlangError as error:
                way_out = (
                    f"write `eager` at the end of the `call` line of `{path or 'root'}` to keep DTensor's dispatch"
                )
                raise ShardlangError([evolve(d, helps=(*d.helps, way_out)) for d in error.diagnostics]) from error
        local: list[Any] = [
            t.to_local(grad_placements=g) if isinstance(t, DTensor) else t
            for t, g in zip(tensors, found.gradients, strict=True)
        ]
        if found.program.draws:
            local.append(seed_of_call())
        blocks = found.run(*local)
        wrapped = iter([kind.wrap(b) for b, kind in zip(blocks, found.results, strict=True)])
        filled = [next(wrapped) if leaf is Tensor else leaf for leaf in found.leaves]
        return pytree.tree_unflatten(filled, found.structure)

    module.forward = forward


def _without_hooks(module: nn.Module) -> nn.Module:
    """The module itself with its own hooks left out; what is inside it is shared."""
    twin = copy.copy(module)
    for name, value in vars(module).items():
        if name.startswith(("_forward", "_backward")) and isinstance(value, OrderedDict):
            twin.__dict__[name] = OrderedDict()
    twin._parameters = dict(module._parameters)
    twin._buffers = dict(module._buffers)
    return twin


def _compile(
    twin: nn.Module,
    path: str,
    boundary: Boundary,
    own: Mapping[str, frozenset[str]],
    line: Call,
    held: Mapping[str, Tensor],
    leaves: Sequence[Any],
    structure: pytree.TreeSpec,
    tensors: Sequence[Tensor],
) -> _Compiled:
    names = list(held)
    count = len(names)
    made: list[Any] = []
    shape_of: list[pytree.TreeSpec] = []
    declared: list[Any] = []

    def call(*values: Tensor) -> Any:
        feed = iter(values[count:])
        filled = [next(feed) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        args, kwargs = pytree.tree_unflatten(filled, structure)
        output = torch.func.functional_call(twin, dict(zip(names, values[:count], strict=True)), args, kwargs)
        out, spec = pytree.tree_flatten(output)
        made[:] = [leaf if isinstance(leaf, STATIC) else Tensor for leaf in out]
        shape_of[:] = [spec]
        given = [leaf for leaf in out if not isinstance(leaf, STATIC)]
        by_value = {id(value): result for result, value in line.declared(output)}
        declared[:] = [by_value.get(id(value)) for value in given]
        return given

    arguments = []
    every = frozenset(a.name for a in boundary.mesh.leaves())
    for i, tensor in enumerate(tensors):
        shape = tuple(tensor.shape)
        layout = Layout.whole(boundary.mesh, shape)
        if isinstance(tensor, DTensor):
            layout = layout_of(boundary.mesh, tensor.placements, shape)
        name = names[i].replace(".", "_") if i < count else f"argument{i - count}"
        # The crossing into the call takes a gradient in parts straight to where it belongs.
        parts = own.get(names[i], frozenset()) if i < count else every
        arguments.append(Argument(name, TensorType(shape, tensor.dtype), layout, parts=parts))
    with torch.no_grad():
        trace = capture(type(twin).forward, [a.type for a in arguments], call)
    name = path.replace(".", "_") or "root"

    def results(shapes: Sequence[tuple[int, ...]]) -> list[Layout | None]:
        return line.layouts_of(declared, shapes)

    program = lower(trace, arguments, boundary.mesh, results, auto=True, name=f"call_{name}")
    rank = _rank(boundary)
    team = Team(boundary.device_mesh.device_type)
    run = function_for(program, rank, team, lambda plan, in_place: _Run(plan, boundary))
    return _Compiled(
        program,
        run,
        tuple(carried(g) for g in program.gradients),
        tuple(
            ResultKind(w, boundary.device_mesh, d) for w, d in zip(program.results, program.result_dtypes, strict=True)
        ),
        tuple(made),
        shape_of[0],
    )


def _rank(boundary: Boundary) -> int:
    """This process's rank in the mesh of the layouts."""
    coordinate = boundary.device_mesh.get_coordinate()
    assert coordinate is not None
    mesh = boundary.mesh
    return mesh.rank_at({a.name: at for a, at in zip(mesh.axes, coordinate, strict=True)})


def _key(tensor: Tensor) -> Any:
    if isinstance(tensor, DTensor):
        return torch_private.spec_of(tensor)
    return tensor.shape, tensor.dtype
