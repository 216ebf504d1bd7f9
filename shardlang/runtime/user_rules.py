"""``sl.rule`` and ``sl.check_rule``: users' own operators, declared and tried; ``sl.local_map``: blocks in and out."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from functools import lru_cache, wraps
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.utils import _pytree as pytree

from shardlang.check import Scope, Sizes, check_signature
from shardlang.check.bind import Operand, bind, bind_all
from shardlang.check.program import Fn, OperatorRule
from shardlang.check.sizes import evaluate
from shardlang.diagnostics import ShardlangError, sl05_functions, sl07_runtime
from shardlang.layout import Cut, Dim, Factor, Layout, Pending
from shardlang.lower.placements import device_mesh, mesh_of, placements_of
from shardlang.mesh import Axis, Mesh
from shardlang.plan.plan import dual
from shardlang.runtime.handle import ShardTensor
from shardlang.runtime.law import differences
from shardlang.runtime.reshard import layout_of, reshard
from shardlang.runtime.rows import on_mesh
from shardlang.source import Source
from shardlang.syntax.parse import parse_signature
from shardlang.trace.capture import TensorType, tracing, user_site
from shardlang.trace.compile import Argument, compile_function
from shardlang.trace.literals import source_of_literal
from shardlang.trace.rules import RULES, load
from shardlang.trace.rules.factors import declare, read

TRIALS = 40
"""How many random layouts a rule is tried on."""


def rule(text: str, *, linear: Sequence[Sequence[int]] | None = None) -> None:
    """Says how an operator treats splits: ``sl.rule("mylib.mm: [i k+] [k+ j] -> [i j]")``.

    The name is that of ``torch.ops`` (``mylib.mm``, or ``mylib.mm.out`` for one overload). ``+`` marks a factor that is
    summed, so that its axes are owed by the result; ``!`` one that must be whole. ``linear`` lists groups of operands
    in which the operator is linear together, through which pending values pass; by default each operand alone where a
    factor is summed, else none. A later rule takes the place of an earlier one. Raises ShardlangError for a bad text.
    """
    load()
    declared = _read(text)
    declare(declared.operator, declared, None if linear is None else tuple(frozenset(g) for g in linear))


def _read(text: str) -> OperatorRule:
    at, keyword = source_of_literal(text), "rule "
    shift = len(keyword)
    pieces = tuple((o + shift, line, column) for o, line, column in at.pieces[1:])
    if pieces:
        pieces = ((0, at.first_line, at.first_column - shift), *pieces)
    source = Source(at.name, keyword + text, at.first_line, at.first_column - shift, at.context, pieces)
    return read(source)[0]


def check_rule(
    text: str | None, function: Callable[..., Any], *tensors: torch.Tensor, tolerance: float = 1e-5, seed: int = 0
) -> None:
    """Tries an operator's rule on random layouts of ``tensors``, all ranks simulated, against one device.

    ``function(*tensors)`` calls the operator; ``text`` is the rule to try (``None``: the one that is registered).
    Values and gradients are compared. Raises ShardlangError: SL0517 with the layouts where the rule is wrong.
    """
    load()
    before: Any = None
    name = "the operator"
    if text is not None:
        declared = _read(text)
        name = declared.operator
        before = RULES.get(name)
        declare(name, declared, None)
    try:
        _try(name, function, tensors, tolerance, random.Random(seed))
    finally:
        if before is not None:
            RULES[name] = before
        elif text is not None:
            del RULES[name]


def _try(
    name: str, function: Callable[..., Any], tensors: Sequence[torch.Tensor], tolerance: float, draw: random.Random
) -> None:
    meshes = [Mesh("pod", (Axis("a", 2), Axis("b", 2))), Mesh("pod", (Axis("a", 3),))]
    for _ in range(TRIALS):
        mesh = draw.choice(meshes)
        layouts = [random_layout(mesh, t, draw) for t in tensors]
        arguments = [
            Argument(f"x{i}", TensorType(tuple(t.shape), t.dtype), layout)
            for i, (t, layout) in enumerate(zip(tensors, layouts, strict=True))
        ]
        shown = [f"{layout} on {mesh}" for layout in layouts]
        made = compile_function(function, arguments, mesh, lambda shapes: [None] * len(shapes), auto="near")
        try:
            found = differences(made, function, tensors, mesh, tolerance=tolerance)
        except RuntimeError as error:
            raise ShardlangError(sl05_functions.rule_is_wrong(name, shown, str(error).split("\n")[0])) from error
        if found:
            raise ShardlangError(sl05_functions.rule_is_wrong(name, shown, str(found[0])))


def random_layout(mesh: Mesh, tensor: torch.Tensor, draw: random.Random) -> Layout:
    """Each axis splits a dim, evenly where it divides; or owes a sum, of floating values; or leaves it whole."""
    cuts: list[list[str]] = [[] for _ in tensor.shape]
    pending: list[Pending] = []
    kinds = ["whole", "split", "split", *(["sum"] if tensor.is_floating_point() else [])]
    for axis in draw.sample(mesh.axes, len(mesh.axes)):
        kind = draw.choice(kinds)
        if kind == "split" and tensor.dim():
            cuts[draw.randrange(tensor.dim())].append(axis.name)
        elif kind == "sum":
            pending.append(Pending(axis.name, "sum"))
    dims = []
    for size, axes in zip(tensor.shape, cuts, strict=True):
        even = Dim((Factor(size, tuple(axes)),))
        ways = 1
        for axis_name in axes:
            ways *= mesh.axis(axis_name).size
        dims.append(even if size % ways == 0 else Dim((Factor(size),), tuple(Cut(a, uneven=True) for a in axes)))
    return Layout(mesh, tuple(dims), tuple(pending))


def local_map(signature: str, mesh: Any = None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A function of local blocks as a function of DTensors: ``shard_map``'s way, with nothing checked inside.

    Arguments (DTensors or handles) are brought to their specs; the function gets their blocks and returns the blocks of
    its results, which become DTensors (or handles) of the results' specs. The gradient that it gives to an argument
    is taken as whole where the value is whole; ``grad {+tp}`` in the spec says that ranks of tp give parts of a sum.

    Without ``mesh`` it is that of the first argument that is on one; given plain tensors alone the function then runs
    as it stands, on one device. In the function ``sl.send_rows`` sends rows over an axis of the mesh. A body that is
    traced has no local blocks: raises SL0724 in one.
    """
    source = source_of_literal(signature)
    given = mesh if mesh is None or isinstance(mesh, DeviceMesh | Mesh) else mesh.mesh

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        name = getattr(function, "__name__", "function")

        @lru_cache(maxsize=8)
        def declared_on(named: Mesh) -> Fn:
            return check_signature(parse_signature(source), Scope(named), name=name)

        if given is not None:
            declared_on(given if isinstance(given, Mesh) else mesh_of(given))

        @wraps(function)
        def mapped(*args: Any) -> Any:
            if tracing():
                site = user_site()
                raise ShardlangError(sl07_runtime.local_blocks_in_trace(name, site.span() if site else None))
            torch_mesh = device_mesh(given) if isinstance(given, Mesh) else given or _mesh_in(args)
            if torch_mesh is None:
                with on_mesh(None):
                    return function(*args)
            named = mesh_of(torch_mesh)
            declared = declared_on(named)
            if len(args) != len(declared.args):
                raise ShardlangError(
                    sl05_functions.signature_mismatch(name, "argument", len(declared.args), len(args), declared.span)
                )
            sizes = Sizes()
            operands = [
                Operand(a.name, a.spec, tuple(x.shape), named)
                for a, x in zip(declared.args, args, strict=True)
                if a.spec is not None
            ]
            blocks = []
            for arg, x, layout in zip(declared.args, args, bind_all(operands, sizes), strict=True):
                gradient = dual(layout)
                if arg.spec is not None and arg.spec.grad is not None:
                    gradient = bind(arg.spec.grad, tuple(x.shape), named, sizes, name=f"the gradient of {arg.name}")
                # A reshard to where a value is already would still bring its gradient in parts together.
                there = x if layout_of(x).equivalent(layout) else reshard(x, layout)
                blocks.append(_block(there, gradient))
            with on_mesh(torch_mesh):
                results, structure = pytree.tree_flatten(function(*blocks))
            made = []
            for arg, block in zip(declared.results, results, strict=True):
                assert arg.spec is not None
                shape = _global_shape(block, arg.spec, sizes, named)
                made.append(
                    _wrapped(block, bind(arg.spec, shape, named, sizes, name=arg.name or "the result"), torch_mesh)
                )
            return pytree.tree_unflatten(made, structure)

        return mapped

    return decorate


def _mesh_in(args: Sequence[Any]) -> DeviceMesh | None:
    """The mesh of the first argument that is on one."""
    return next((a.device_mesh for a in args if isinstance(a, DTensor | ShardTensor)), None)


def _block(x: DTensor | ShardTensor, gradient: Layout) -> torch.Tensor:
    if isinstance(x, ShardTensor):
        return x.block
    return x.to_local(grad_placements=placements_of(gradient))


def _global_shape(block: torch.Tensor, spec: Any, sizes: Sizes, mesh: Mesh) -> tuple[int, ...]:
    """The shape of the tensor of which this is a block: known sizes, else the block's times the ranks that split it."""
    if spec.dims is None:
        return tuple(block.shape)
    shape = []
    for size, dim in zip(block.shape, spec.dims, strict=True):
        factors = [None if f.size is None else evaluate(f.size, sizes) for f in dim.factors]
        axes = [c for f in dim.factors for c in f.cuts] + [c.axis for c in dim.flat]
        known = math.prod(f for f in factors if f is not None)
        shape.append(size * math.prod(mesh.axis(a).size for a in axes) if None in factors else known)
    return tuple(shape)


def _wrapped(block: torch.Tensor, layout: Layout, mesh: DeviceMesh) -> Any:
    placements = placements_of(layout)
    if placements is None:
        return ShardTensor(block, layout, mesh)
    whole = torch.empty(layout.shape, device="meta")
    return DTensor.from_local(block, mesh, placements, run_check=False, shape=whole.shape, stride=whole.stride())
