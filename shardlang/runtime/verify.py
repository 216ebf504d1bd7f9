"""The law for what a file declares: each ``fn`` with its Python function, each ``reshard``, all ranks simulated."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from attrs import frozen

from shardlang.check.bind import Operand, axes_of, bind_all
from shardlang.check.planned import plan_cheapest
from shardlang.check.program import Fn, Program, Reshard, SpecDim, TensorSpec
from shardlang.check.scope import Scope
from shardlang.check.sizes import Sizes, evaluate, free_names
from shardlang.check.transition import bind_change, open_names, unify_change
from shardlang.diagnostics import ShardlangError, sl05_functions
from shardlang.dtypes import DTYPES
from shardlang.mesh import Mesh
from shardlang.runtime import open_axes, simulate
from shardlang.runtime.attributes import in_place_of
from shardlang.runtime.closed_over import closed_over
from shardlang.runtime.law import differences
from shardlang.runtime.sharded import ShardedFunction


@frozen
class Verdict:
    """What was held: a declaration, the shapes that it was tried on, and what moves."""

    kind: str
    name: str
    shapes: Mapping[str, tuple[int, ...]]
    collectives: int
    bytes: int
    gradients: int = 0
    """Gradients compared."""
    choices: str | None = None
    """What ``auto`` and ``/?`` chose, where it was asked for."""


def verify_fn(
    declared: Fn, function: Callable[..., Any], program: Program, *, auto: bool = False, explain: bool = False
) -> Verdict:
    """Runs a function on tensors of the least shapes that its signature allows, split and on one device.

    Floating values are drawn in double precision. ``explain`` adds what was chosen. Raises ShardlangError: SL0524 where
    they differ.
    """
    assert declared.mesh is not None
    mesh = declared.mesh
    sizes = least_sizes([a.spec for a in declared.args if a.spec], mesh, program.lets)
    draw = torch.Generator().manual_seed(0)
    tensors = []
    shapes = {}
    for arg in declared.args:
        assert arg.spec is not None
        shapes[arg.name] = shape_of(arg.spec, sizes, mesh)
        tensors.append(_tensor(arg.spec.dtype, shapes[arg.name], draw))
    body = function.function if isinstance(function, ShardedFunction) else function
    auto = auto or (isinstance(function, ShardedFunction) and function.auto)
    names = [a.name for a in declared.args]
    for parameter in inspect.signature(body).parameters.values():
        taken = parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if taken and parameter.default is parameter.empty and parameter.name not in names:
            raise ShardlangError(
                sl05_functions.undeclared_tensor(declared.name, parameter.name, declared.span, given=False)
            )
    compiled = ShardedFunction(body, declared, Scope(mesh, program.lets), None, auto, program.rules)
    # Of a dim that leaves its axis open the first that fits: the law is the same for all of them.
    chosen = [found[0] for found in open_axes.options(declared, list(shapes.values()), mesh)]
    operands = [Operand(a.name, s, shapes[a.name], mesh) for a, s in zip(declared.args, chosen, strict=True)]
    outside = list(closed_over(body).slots.values())
    held = [_double(owner[key].detach()) for owner, key in outside]
    with in_place_of(outside, held):
        made = compiled.program_in(bind_all(operands, Sizes()), tensors)

    def plain(*values: torch.Tensor) -> Any:
        with in_place_of(outside, values[len(tensors) :]):
            return body(**{a.name: v for a, v in zip(declared.args, values, strict=False)})

    found = differences(made, plain, [*tensors, *held], mesh, tolerance=1e-9)
    if found:
        raise ShardlangError(sl05_functions.law_broken("fn", declared.name, str(found[0]), declared.span))
    plans = [p for m in made.moves for p in (m.forward, m.backward) if p is not None]
    gradients = sum(t.is_floating_point() for t in tensors)
    count = sum(p.collectives for p in plans)
    choices = compiled.explain() if explain else None
    return Verdict("fn", declared.name, shapes, count, sum(p.bytes_received for p in plans), gradients, choices)


def verify_reshard(declared: Reshard, program: Program) -> Verdict:
    """Carries out the plan on whole numbers and compares every rank's block. Raises ShardlangError: SL0524."""
    mesh, sides = declared.mesh, (declared.source, declared.target)
    sizes = Sizes()
    unify_change(*sides, sizes)
    sizes.update(least_sizes(sides, mesh, {**program.lets, **sizes}))
    shape = None
    if open_names(*sides, sizes):
        written = next((s for s in sides if s.dims is not None and not any(d.rest for d in s.dims)), declared.source)
        shape = shape_of(written, sizes, mesh)
    plan = plan_cheapest(bind_change(*sides, mesh, sizes, shape=shape))
    source, target = plan.source, plan.target
    shape = source.shape
    value = torch.arange(math.prod(shape), dtype=torch.float64).reshape(shape)
    moved = simulate.run_plan(plan, simulate.shard(value, source, seed=1))
    if target.owed():
        right = torch.equal(simulate.assemble(moved, target), value)
    else:
        due = simulate.shard(value, target)
        right = all(torch.equal(moved[r], due[r]) for r in mesh.ranks)
    if not right:
        raise ShardlangError(
            sl05_functions.law_broken("reshard", declared.name, "a rank's block is another one", declared.span)
        )
    return Verdict("reshard", declared.name, {"tensor": shape}, plan.collectives, plan.bytes_received)


def least_sizes(specs: Iterable[TensorSpec], mesh: Mesh, lets: Mapping[str, int]) -> dict[str, int]:
    """A size for each free name of the specs: a small number times the ranks of all axes that split where it stands."""
    axes: dict[str, set[str]] = {}
    for spec in specs:
        for dim in spec.dims or ():
            cuts = [a.name for a in mesh.leaves()] if dim.choose else axes_of(dim)
            for factor in dim.factors:
                for name in free_names(factor.size) if factor.size else ():
                    axes.setdefault(name, set()).update(leaf for a in cuts for leaf in mesh.expand(a))
    small = iter([2, 3, 4, 5, 6, 8] * (len(axes) // 6 + 1))
    return {n: next(small) * math.prod(mesh.axis(a).size for a in split) for n, split in axes.items() if n not in lets}


def shape_of(spec: TensorSpec, sizes: Mapping[str, int], mesh: Mesh) -> tuple[int, ...]:
    """The shape that a spec gives at these sizes; ``_`` is twice the ranks that split it and ``...`` nothing."""
    return tuple(_size(d, sizes, mesh) for d in spec.dims or () if not d.rest)


def _size(dim: SpecDim, sizes: Mapping[str, int], mesh: Mesh) -> int:
    size = 1
    for factor in dim.factors:
        value = evaluate(factor.size, sizes) if factor.size is not None else None
        if value is None:
            value = 2 * math.prod(mesh.axis(a).size for a in factor.cuts)
        size *= value
    return size


def _double(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def _tensor(dtype: str | None, shape: tuple[int, ...], draw: torch.Generator) -> torch.Tensor:
    kind = DTYPES[dtype].kind if dtype is not None else "float"
    if kind == "bool":
        return torch.randint(0, 2, shape, generator=draw).bool()
    if kind == "int":
        return torch.randint(0, 2, shape, generator=draw)
    return torch.randn(shape, generator=draw, dtype=torch.complex128 if kind == "complex" else torch.float64)
