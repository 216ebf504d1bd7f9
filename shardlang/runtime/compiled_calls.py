"""The body of a ``call``, compiled: the module's forward as a local program, inside whatever hooks the module has.

What is inside the module is compiled with it. The ``call`` lines of modules in there say the layouts of what enters
and leaves them; those that need hooks of their own are called from the program (``inner_calls``).

Parameters, buffers and tensor arguments come as DTensors, so that their layouts are known; the forward is traced once
for each set of shapes, layouts and other arguments, typed with the cheapest reshards inserted, and then runs on local
blocks. A gradient of a parameter that FSDP reduces stays in parts over FSDP's axes, that of an
argument over all axes, since what comes next is a reduce-scatter or goes with it.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from itertools import islice
from operator import attrgetter
from typing import Any

import torch
from attrs import evolve, frozen
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils import _pytree as pytree

from shardlang.diagnostics import ShardlangError
from shardlang.layout import Layout
from shardlang.lower.placements import carried, layout_of
from shardlang.plan.plan import Plan
from shardlang.runtime.arguments import blocks_of, key_of
from shardlang.runtime.attributes import Slot, in_place_of, plain_tensors
from shardlang.runtime.calls import Boundary, Call
from shardlang.runtime.groups import Team
from shardlang.runtime.held import Held, take_apart
from shardlang.runtime.inner_calls import STATIC, Apart, Noted, caller, noting
from shardlang.runtime.local_program import function_for
from shardlang.runtime.recent import Recent, literal, surroundings
from shardlang.runtime.results import ArgumentKind, ResultKind, forget
from shardlang.runtime.seeds import seed_of_call
from shardlang.runtime.torch_compile import Compiler
from shardlang.trace.capture import Mark, TensorType, capture, intercepts
from shardlang.trace.compile import Argument, lower
from shardlang.trace.program import LocalProgram


@frozen(eq=False)
class _Compiled:
    program: LocalProgram
    run: Callable[..., tuple[Tensor, ...]]
    arguments: tuple[ArgumentKind | None, ...]
    results: tuple[ResultKind, ...]
    leaves: tuple[Any, ...]
    """What the module gives: ``None``, flags; ``Tensor`` stands for a tensor, ``Held`` for an object with some."""
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


@frozen(eq=False)
class _Body:
    """A module whose forward is compiled. ``twin`` is it without hooks; ``own`` are the axes over which FSDP adds up a
    parameter's gradient, by its name in the module; ``line`` gives the layouts of the results; modules ``apart`` inside
    it are called as they are."""

    module: nn.Module
    twin: nn.Module
    path: str
    boundary: Boundary
    own: Mapping[str, frozenset[str]]
    line: Call
    apart: tuple[Apart, ...]
    compiler: Compiler | None


def install(
    module: nn.Module,
    path: str,
    boundary: Boundary,
    own: Mapping[str, frozenset[str]],
    line: Call,
    apart: Sequence[Apart] = (),
    compiler: Compiler | None = None,
) -> None:
    """Compiles the module's forward; what is inside it with it, but for modules ``apart``. The program then goes
    through ``compiler``."""
    eager = module.forward
    body = _Body(module, _without_hooks(module), path, boundary, own, line, tuple(apart), compiler)
    modules = _inside(module, {p.module for p in apart})
    slots = _slots(modules)
    plain: dict[str, Slot] = {}
    made: dict[Any, _Compiled] = {}
    recent = Recent()
    parts = tuple(modules.values())
    device = boundary.device_mesh.device_type
    called = f"the call of {path or 'root'}"

    def tensors_of(given: list[Tensor]) -> list[Any]:
        return [owner[last] for owner, last in (*slots.values(), *plain.values())] + given

    @wraps(eager)
    def forward(*args: Any, **kwargs: Any) -> Any:
        if intercepts():
            return eager(*args, **kwargs)  # a part of a trace around it
        leaves, structure = pytree.tree_flatten((args, kwargs))
        given = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        others = tuple(None if isinstance(leaf, Tensor) else leaf for leaf in leaves)
        if not all(isinstance(leaf, STATIC) for leaf in others):
            return eager(*args, **kwargs)
        tensors = tensors_of(given)
        values = tuple([literal(leaf, "an argument", called) for leaf in others])
        try:
            rest = structure, values, surroundings(device), tuple(map(_training, parts))
            found = recent.find(tensors, rest)
            if found is None:
                found = made.get((tuple(map(key_of, tensors)), rest))
                if found is None:
                    plain.update(plain_tensors(modules))
                    tensors = tensors_of(given)
                    found = _compile(body, list(slots), plain, leaves, structure, tensors)
                    made[tuple(map(key_of, tensors)), rest] = found
                    forget(made)
                recent.keep(tensors, rest, found)
        except ShardlangError as error:
            way_out = f"write `eager` at the end of the `call` line of `{path or 'root'}` to keep DTensor's dispatch"
            raise ShardlangError([evolve(d, helps=(*d.helps, way_out)) for d in error.diagnostics]) from error
        local = blocks_of(tensors, found.arguments)
        if found.program.draws:
            seed = seed_of_call()
            local.append(seed if compiler is None else torch.tensor(seed))
        blocks = found.run(*local)
        wrapped = iter([kind.wrap(b) for b, kind in zip(blocks, found.results, strict=True)])
        return pytree.tree_unflatten([_filled(leaf, wrapped) for leaf in found.leaves], found.structure)

    module.forward = forward


_training = attrgetter("training")


def _filled(leaf: Any, wrapped: Iterator[Any]) -> Any:
    """What comes out in the place of a leaf: the next tensor, an object with the next ones, or the leaf itself."""
    if isinstance(leaf, Held):
        return leaf.filled(islice(wrapped, leaf.count))
    return next(wrapped) if leaf is Tensor else leaf


def _inside(module: nn.Module, apart: set[nn.Module]) -> dict[str, nn.Module]:
    """The module and those in it, by name, but for what is in modules apart."""
    found: dict[str, nn.Module] = {}
    outside: list[str] = []
    for name, part in module.named_modules(remove_duplicate=False):
        if part in apart or any(name.startswith(f"{o}.") for o in outside):
            if part in apart:
                outside.append(name)
            continue
        found[name] = part
    return found


def _slots(modules: Mapping[str, nn.Module]) -> dict[str, tuple[dict[str, Any], str]]:
    """Where the parameters and buffers of modules are, by name; each tensor once."""
    found: dict[str, tuple[dict[str, Any], str]] = {}
    seen: set[int] = set()
    for path, part in modules.items():
        for tensors in (part._parameters, part._buffers):
            for last, tensor in tensors.items():
                if tensor is not None and id(tensor) not in seen:
                    seen.add(id(tensor))
                    found[f"{path}.{last}" if path else last] = tensors, last
    return found


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
    body: _Body,
    owned: Sequence[str],
    plain: Mapping[str, Slot],
    leaves: Sequence[Any],
    structure: pytree.TreeSpec,
    tensors: Sequence[Tensor],
) -> _Compiled:
    boundary, path, line = body.boundary, body.path, body.line
    names = [*owned, *plain]
    count = len(names)
    twins = [(vars(body.twin), key) if owner is vars(body.module) else (owner, key) for owner, key in plain.values()]
    made: list[Any] = []
    shape_of: list[pytree.TreeSpec] = []
    declared: list[Any] = []
    noted: list[Noted] = []

    def call(*values: Tensor) -> Any:
        feed = iter(values[count:])
        filled = [next(feed) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        args, kwargs = pytree.tree_unflatten(filled, structure)
        own = dict(zip(owned, values[: len(owned)], strict=True))
        with noting(body.apart, noted), in_place_of(twins, values[len(owned) : count]):
            output = torch.func.functional_call(body.twin, own, args, kwargs)
        out, spec = pytree.tree_flatten(output)
        made[:], shape_of[:] = [], [spec]
        given: list[Any] = []
        for leaf in out:
            held = None if isinstance(leaf, (Tensor, *STATIC)) else take_apart(leaf)
            made.append(leaf if isinstance(leaf, STATIC) else Tensor if held is None else held[0])
            given += [] if isinstance(leaf, STATIC) else [leaf] if held is None else held[1]
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
        parts = body.own.get(names[i], frozenset()) if i < count else every
        arguments.append(Argument(name, TensorType(shape, tensor.dtype), layout, parts=parts))
    with torch.no_grad():
        trace = capture(type(body.twin).forward, [a.type for a in arguments], call)
    name = path.replace(".", "_") or "root"

    def marked(mark: Mark, shape: tuple[int, ...]) -> Layout:
        return line.layout_of(mark, shape)

    def results(shapes: Sequence[tuple[int, ...]]) -> list[Layout | None]:
        return line.layouts_of(declared, shapes)

    program = lower(
        trace, arguments, boundary.mesh, results,
        mark_layout=marked, auto="near", name=f"call_{name}", rules=boundary.rules,
    )  # fmt: skip
    rank = _rank(boundary)
    team = Team(boundary.device_mesh.device_type)
    inner = [caller(noted[c.number], c, boundary.device_mesh) for c in program.inner]
    run = function_for(program, rank, team, lambda plan, in_place: _Run(plan, boundary), inner)
    return _Compiled(
        program,
        run if body.compiler is None else body.compiler(run),
        tuple(
            ArgumentKind(carried(g), t.device_mesh, t.shape, t.dtype, t.placements) if isinstance(t, DTensor) else None
            for t, g in zip(tensors, program.gradients, strict=True)
        ),
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
