"""The boundary of a ``call``: tensors enter and leave a module in the layouts that its line declares.

Hooks on the module take its arguments and results by name. A plain tensor is the rank's own block and becomes a
DTensor; a DTensor crosses to the declared layout by a plan, and its gradient comes back by the plan from whatever
layout it then has to the dual of the one that the value came in. What the line does not name passes untouched.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from attrs import field, frozen
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate

from shardlang.check import Scope, check_spec
from shardlang.check.bind import Operand, bind, bind_all, dims_for
from shardlang.check.program import Arg, CallLine, OperatorRule
from shardlang.check.sizes import evaluate
from shardlang.diagnostics import ShardlangError, sl05_functions, sl06_calls
from shardlang.dtypes import DTYPES
from shardlang.layout import Layout
from shardlang.lower import torch_private
from shardlang.lower.model import layout_on_leaves
from shardlang.lower.placements import carried, layout_of, placements_of
from shardlang.mesh import Mesh
from shardlang.plan.plan import Plan, dual
from shardlang.plan.search import plan_transition
from shardlang.syntax.parse import parse_spec
from shardlang.trace.capture import Mark, intercepts, mark

RunPlan = Callable[[Plan, Tensor], Tensor]
"""Carries out a plan on this rank's block and gives the block of the result."""

_KEPT = 1024
"""How many crossings of a model, and layouts of a call, are kept ready."""

_NAMES = {d.torch_name: d.name for d in DTYPES.values()}


@frozen(eq=False)
class Boundary:
    """What every crossing of a model needs: the mesh whose axes specs name, its leaves, on which layouts are, torch's
    mesh of these, what runs a plan, the sizes that the file and the parameters bind, and the file's rules."""

    declared: Mesh
    mesh: Mesh
    device_mesh: DeviceMesh
    run: RunPlan
    sizes: Mapping[str, int]
    rules: tuple[OperatorRule, ...]
    crossings: dict[Any, _Crossing] = field(factory=dict, init=False)
    """Those made ready, by what comes and by the layout that is asked for, which each keeps alive."""


def plan_of(source: Layout, target: Layout, dtype: torch.dtype) -> Plan:
    """The plan of a crossing, by torch's dtype."""
    return plan_transition(source, target, _NAMES[str(dtype).removeprefix("torch.")])


def install(module: nn.Module, path: str, line: CallLine, boundary: Boundary) -> Call:
    """Puts the boundary of a ``call`` line around a module.

    Raises ShardlangError where the line names an argument that the module's ``forward`` does not take.
    """
    signature = inspect.signature(module.forward)
    free = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in signature.parameters.values())
    for arg in line.args:
        if arg.name not in signature.parameters and not free:
            raise ShardlangError(sl06_calls.unknown_argument(arg.span, arg.name, path, list(signature.parameters)))
    call = Call(path, line, boundary, signature)
    names = list(signature.parameters)

    def enter(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        changed = call.enter(call.named(args, kwargs))
        new_args = tuple(changed.get(names[i], v) if i < len(names) else v for i, v in enumerate(args))
        return new_args, {n: changed.get(n, v) for n, v in kwargs.items()}

    def leave(_: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        return call.leave(output)

    module.register_forward_pre_hook(enter, with_kwargs=True)
    module.register_forward_hook(leave, with_kwargs=True)
    return call


class Call:
    """The boundary of one module. Between ``enter`` and ``leave`` it keeps the sizes that the arguments bound.

    In a trace around the module tensors are global values, and a crossing is a mark that asks for the layout.
    """

    def __init__(self, path: str, line: CallLine, boundary: Boundary, signature: inspect.Signature) -> None:
        self.path, self.line, self.boundary, self.signature = path, line, boundary, signature
        self.sizes: list[dict[str, int]] = []
        self._bound: dict[Any, tuple[list[Layout], dict[str, int]]] = {}
        """Layouts by arguments of the line (kept alive by it), shapes and known sizes; with all sizes then known."""

    def named(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments that the line names."""
        declared = {a.name for a in self.line.args}
        bound = self.signature.bind(*args, **kwargs)
        return {n: v for n, v in (*bound.arguments.items(), *bound.kwargs.items()) if n in declared}

    def enter(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {name: self._cross(name, values[name], layout) for name, layout in self.taken(values).items()}

    def taken(self, values: Mapping[str, Any]) -> dict[str, Layout]:
        """The layouts of the tensors that the line names; a call is under way from here until its sizes are popped."""
        args = [a for a in self.line.args if isinstance(values.get(a.name), Tensor) and a.spec is not None]
        sizes = dict(self.boundary.sizes)
        shapes = [
            tuple(values[a.name].shape)
            if intercepts()
            else global_shape(a, values[a.name], sizes, self.boundary.declared)
            for a in args
        ]
        layouts = self._layouts(args, shapes, sizes)
        self.sizes.append(sizes)
        return dict(zip((a.name for a in args), layouts, strict=True))

    def declared(self, output: Any) -> list[tuple[Arg, Any]]:
        """The results that the line names, each with what the module gave for it: by field name or by position."""
        results = self.line.results
        if isinstance(output, Tensor):
            return [(r, output) for r in results[:1]]
        if isinstance(output, Mapping):
            return [(r, output[r.name]) for r in results if r.name in output]
        if isinstance(output, tuple | list):
            return list(zip(results, output, strict=False))
        if dataclasses.is_dataclass(output) and not isinstance(output, type):
            return [(r, getattr(output, r.name)) for r in results if r.name]
        return []

    def layouts_of(self, results: Sequence[Arg | None], shapes: Sequence[tuple[int, ...]]) -> list[Layout | None]:
        """The layouts of results of the call under way, from their shapes; ``None`` where the line has none."""
        return [
            self._layouts([r], [shape], dict(self.sizes[-1]))[0] if r is not None and r.spec is not None else None
            for r, shape in zip(results, shapes, strict=True)
        ]

    def layout_of(self, asked: Mark, shape: tuple[int, ...]) -> Layout:
        """The layout that an ``sl.reshard`` in the traced body asks for, or a ``call`` line within it."""
        if isinstance(asked.spec, Layout):
            return asked.spec
        if asked.source is None:
            span = asked.site.span() if asked.site else None
            raise ShardlangError(sl05_functions.spec_not_text(type(asked.spec).__name__, span))
        declared = self.boundary.declared
        spec = check_spec(parse_spec(asked.source), Scope(declared, self.boundary.sizes), name="the value")
        layout = bind(spec, shape, declared, dict(self.sizes[-1]), name="the value")
        return layout_on_leaves(layout, self.boundary.mesh)

    def leave(self, output: Any) -> Any:
        sizes = self.sizes.pop()
        taken = [self._result(r, v, sizes) for r, v in self.declared(output)]
        if isinstance(output, Tensor):
            return taken[0] if taken else output
        if isinstance(output, tuple | list):
            rest = list(output[len(taken) :])
            if hasattr(output, "_fields"):
                return type(output)(*taken, *rest)
            return type(output)([*taken, *rest])
        names = [r.name for r, _ in self.declared(output)]
        if isinstance(output, Mapping):
            for name, value in zip(names, taken, strict=True):
                output[name] = value  # type: ignore[index]  # outputs are dicts
            return output
        return dataclasses.replace(output, **dict(zip(names, taken, strict=True))) if taken else output

    def _result(self, result: Arg, value: Any, sizes: dict[str, int]) -> Any:
        if result.spec is None or not isinstance(value, Tensor):
            return value
        if not isinstance(value, DTensor) and not intercepts():
            whole = [Replicate()] * self.boundary.device_mesh.ndim
            value = DTensor.from_local(value, self.boundary.device_mesh, whole, run_check=False)
        (layout,) = self._layouts([result], [tuple(value.shape)], sizes)
        return self._cross(result.name or "the result", value, layout)

    def _layouts(self, args: list[Arg], shapes: list[tuple[int, ...]], sizes: dict[str, int]) -> list[Layout]:
        key = tuple(map(id, args)), tuple(shapes), frozenset(sizes.items())
        found = self._bound.get(key)
        if found is None:
            layouts = self._bind(args, shapes, sizes)
            if len(self._bound) >= _KEPT:
                self._bound.clear()
            found = self._bound[key] = layouts, dict(sizes)
        sizes.update(found[1])
        return found[0]

    def _bind(self, args: list[Arg], shapes: list[tuple[int, ...]], sizes: dict[str, int]) -> list[Layout]:
        operands = [
            Operand(f"{a.name or 'the result'} of {self.path}", a.spec, s, self.boundary.declared)
            for a, s in zip(args, shapes, strict=True)
            if a.spec is not None
        ]
        return [layout_on_leaves(layout, self.boundary.mesh) for layout in bind_all(operands, sizes)]

    def _cross(self, name: str, value: Tensor, layout: Layout) -> Tensor:
        if intercepts():
            return mark(value, layout)
        placements = placements_of(layout)
        if placements is None:
            raise ShardlangError(sl06_calls.no_placement(self.line.span, name, self.path, str(layout)))
        mesh = self.boundary.device_mesh
        if not isinstance(value, DTensor):
            stride = torch_private.contiguous_stride(layout.shape)
            shape = torch.Size(layout.shape)
            return DTensor.from_local(value, mesh, placements, run_check=False, shape=shape, stride=stride)
        if value.device_mesh != mesh:
            raise ShardlangError(
                sl06_calls.other_mesh(self.line.span, name, self.path, str(value.device_mesh), str(mesh))
            )
        return cross(value, layout, self.boundary)


def global_shape(arg: Arg, value: Tensor, sizes: Mapping[str, int], mesh: Mesh) -> tuple[int, ...]:
    """The shape of the whole tensor: a DTensor's own, or worked out from a rank's own block.

    Raises ShardlangError where the block leaves it open (an uneven cut of a dim whose size nothing else gives).
    """
    shape = tuple(value.shape)
    if isinstance(value, DTensor) or arg.spec is None:
        return shape
    whole: list[int] = []
    for size, dim in zip(shape, dims_for(Operand(arg.name, arg.spec, shape, mesh)), strict=True):
        factors = [None if f.size is None else evaluate(f.size, sizes) for f in dim.factors]
        if all(f is not None for f in factors):
            whole.append(math.prod(f for f in factors if f is not None))
        elif any(c.uneven and mesh.axis(c.axis).size > 1 for c in dim.flat):
            raise ShardlangError(sl06_calls.open_size(dim.span or arg.span, arg.name))
        else:
            axes = [a for f in dim.factors for a in f.cuts] + [c.axis for c in dim.flat]
            whole.append(size * math.prod(mesh.axis(a).size for a in axes))
    return tuple(whole)


def cross(value: DTensor, target: Layout, boundary: Boundary) -> Tensor:
    """A DTensor in another layout, differentiable. Nothing is sent where it has that layout already."""
    crossed: Tensor = _Cross.apply(value, target, boundary)  # type: ignore[no-untyped-call]  # nor does it this
    return crossed


class _Cross(torch.autograd.Function):
    """Forward: the plan to ``target``. Backward: the plan from the gradient's layout to the dual of the source."""

    @staticmethod
    def forward(ctx: Any, value: DTensor, target: Layout, boundary: Boundary) -> Tensor:
        ctx.boundary = boundary
        moved, source = _move(value, target, boundary)
        ctx.wanted = _dual(source)
        return moved

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        grad = grads[0]
        if not isinstance(grad, DTensor):
            whole = [Replicate()] * ctx.boundary.device_mesh.ndim
            grad = DTensor.from_local(grad, ctx.boundary.device_mesh, whole, run_check=False)
        if torch.is_grad_enabled() and grad.requires_grad:
            return cross(grad, ctx.wanted, ctx.boundary), None, None  # a second derivative goes through it
        return _move(grad, ctx.wanted, ctx.boundary)[0], None, None


_dual = lru_cache(maxsize=_KEPT)(dual)
"""The same layout each time, so that a crossing back is found by it."""


def cross_without_grad(value: DTensor, target: Layout, boundary: Boundary) -> Tensor:
    """A DTensor in another layout, outside autograd."""
    with torch.no_grad():
        return _move(value, target, boundary)[0]


@frozen(eq=False)
class _Crossing:
    """A plan from the layout of a DTensor to ``target``, with the record of the DTensor that it gives."""

    target: Layout
    source: Layout
    plan: Plan
    spec: Any


def _move(value: DTensor, target: Layout, boundary: Boundary) -> tuple[Tensor, Layout]:
    """The value in another layout, without autograd; and the layout that it came in."""
    block, settled = torch_private.settle_masks(torch_private.block_of(value), value.placements)
    key = settled, value.shape, value.dtype, id(target)
    found = boundary.crossings.get(key)
    if found is None:
        if len(boundary.crossings) >= _KEPT:
            boundary.crossings.clear()
        found = boundary.crossings[key] = _crossing(value, settled, target, boundary)
    # As its record says: where nothing moves, a block comes out as it came in, and may have been transposed.
    moved = boundary.run(found.plan, block).contiguous()
    return torch_private.dtensor_of(moved.view_as(moved), found.spec, requires_grad=False), found.source


def _crossing(value: DTensor, settled: Any, target: Layout, boundary: Boundary) -> _Crossing:
    source = layout_of(boundary.mesh, settled, tuple(value.shape))
    stride = torch_private.contiguous_stride(value.shape)
    spec = torch_private.dtensor_spec(boundary.device_mesh, carried(target), value.shape, stride, value.dtype)
    return _Crossing(target, source, plan_of(source, target, value.dtype), spec)
