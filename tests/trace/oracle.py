"""Functions split over a simulated mesh by specs, held against one device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from shardlang.check import Scope, check_spec
from shardlang.check.bind import bind
from shardlang.layout import Layout
from shardlang.mesh import Axis, Mesh
from shardlang.plan.steps import FREE
from shardlang.runtime.law import differences
from shardlang.source import Source
from shardlang.syntax.parse import parse_axes, parse_spec
from shardlang.trace.capture import Mark, TensorType, erased
from shardlang.trace.compile import Argument, Auto, compile_function
from shardlang.trace.describe import moves_in_order
from shardlang.trace.program import LocalProgram


def mesh_of(text: str) -> Mesh:
    """``dp:2 * tp:2``."""
    return Mesh("m", tuple(Axis(a.name.text, a.size or 1) for a in parse_axes(Source("<mesh>", text))))


def layout(mesh: Mesh, text: str, shape: Sequence[int]) -> Layout:
    """The layout that a spec gives a shape."""
    spec = check_spec(parse_spec(Source("<spec>", text)), Scope(mesh), name="x")
    return bind(spec, tuple(shape), mesh, {}, name="x")


def program(
    function: Callable[..., Any],
    tensors: Sequence[torch.Tensor],
    layouts: Sequence[Layout],
    mesh: Mesh,
    results: Sequence[Layout] | None = None,
    *,
    auto: Auto = False,
) -> LocalProgram:
    """The local program; without ``results`` every result stays in the layout that it comes in."""
    arguments = [
        Argument(f"x{i}", TensorType(tuple(t.shape), t.dtype), where)
        for i, (t, where) in enumerate(zip(tensors, layouts, strict=True))
    ]

    def marked(mark: Mark, shape: tuple[int, ...]) -> Layout:
        return layout(mesh, mark.spec, shape)

    return compile_function(
        function, arguments, mesh, lambda shapes: results or [None] * len(shapes), auto=auto, mark_layout=marked
    )


def check(
    function: Callable[..., Any],
    tensors: Sequence[torch.Tensor],
    specs: Sequence[str],
    mesh: str = "dp:2 * tp:2",
    results: Sequence[str] | None = None,
    *,
    auto: Auto = False,
    tolerance: float = 1e-9,
) -> LocalProgram:
    """Compiles and compares, with layouts written as specs; returns the program."""
    on = mesh_of(mesh)
    layouts = [layout(on, s, t.shape) for s, t in zip(specs, tensors, strict=True)]
    finals = None
    if results is not None:
        with erased():
            shapes = [tuple(t.shape) for t in pytree.tree_leaves(function(*tensors)) if isinstance(t, torch.Tensor)]
        finals = [layout(on, s, shape) for s, shape in zip(results, shapes, strict=True)]
    made = program(function, tensors, layouts, on, finals, auto=auto)
    assert differences(made, function, tensors, on, tolerance=tolerance) == []
    return made


def collectives(made: LocalProgram) -> dict[str, list[str]]:
    """The kinds and axes of what is sent, forward and backward."""
    found: dict[str, list[str]] = {"forward": [], "backward": []}
    for index in moves_in_order(made):
        for direction, kinds in found.items():
            plan = getattr(made.moves[index], direction)
            kinds += [f"{s.kind} {'/'.join(s.axes)}" for s in (plan.steps if plan else ()) if s.kind not in FREE]
    return {k: sorted(v) for k, v in found.items()}


def reals(*shape: int, seed: int = 0) -> torch.Tensor:
    """Random numbers in float64."""
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed + sum(shape)))


def indices(bound: int, *shape: int, seed: int = 0) -> torch.Tensor:
    """Random indices below ``bound``."""
    return torch.randint(0, bound, shape, generator=torch.Generator().manual_seed(seed + sum(shape)))
