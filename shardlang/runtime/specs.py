"""Specs as they come to the executor: texts or layouts, beside tensors, on torch's device meshes."""

from __future__ import annotations

import json
import math
from functools import lru_cache

import torch
from torch.distributed.device_mesh import DeviceMesh

from shardlang.check.bind import Operand, bind, dims_for, gradient_spec
from shardlang.check.program import TensorSpec
from shardlang.check.scope import Scope
from shardlang.check.specs import resolve_spec
from shardlang.diagnostics import Diagnostic, ShardlangError, sl07_runtime
from shardlang.dtypes import DTYPES
from shardlang.layout import Layout
from shardlang.lower.placements import ranks_of
from shardlang.mesh import Mesh
from shardlang.plan.plan import dual
from shardlang.runtime import words
from shardlang.runtime.faults import told_apart
from shardlang.runtime.groups import Team
from shardlang.source import Source
from shardlang.syntax.parse import parse_spec

Spec = str | TensorSpec | Layout
"""What says where a tensor lives: a spec's text, a checked spec, or a layout (of the tensor's own shape)."""

NAMES = {d.torch_name: d.name for d in DTYPES.values()}
"""Names of dtypes in specs by torch's names."""
DTYPE_OF: dict[str, torch.dtype] = {d.name: getattr(torch, d.torch_name) for d in DTYPES.values()}


def dtype_name(dtype: torch.dtype) -> str:
    """``f32`` for ``torch.float32``."""
    return NAMES[str(dtype).removeprefix("torch.")]


@lru_cache(maxsize=1 << 12)
def tensor_spec(text: str, mesh: Mesh) -> TensorSpec:
    """The checked spec of a text on a mesh. Raises ShardlangError with all that is wrong in it."""
    return checked_spec(text, Scope(mesh))


def checked_spec(text: str, scope: Scope) -> TensorSpec:
    """The checked spec of a text, with the constants and rules that it may refer to. Raises as ``tensor_spec``."""
    errors: list[Diagnostic] = []
    spec = resolve_spec(parse_spec(Source("<spec>", text)), scope, errors, name="the tensor")
    if errors:
        raise ShardlangError(errors)
    return spec


def layout_for(spec: Spec, shape: tuple[int, ...], mesh: Mesh, dtype: torch.dtype | None = None) -> Layout:
    """The layout that a spec gives a tensor of this global shape (and dtype, where it is known)."""
    if isinstance(spec, Layout):
        return spec
    checked = tensor_spec(spec, mesh) if isinstance(spec, str) else spec
    if dtype is not None and checked.dtype is not None and checked.dtype != dtype_name(dtype):
        raise ShardlangError(sl07_runtime.dtype_differs(str_of(spec), checked.dtype, dtype_name(dtype)))
    return bind(checked, shape, mesh, {}, name="the tensor")


def gradient_layout(spec: Spec, shape: tuple[int, ...], mesh: Mesh) -> Layout:
    """The layout of the gradient: as the spec's ``grad`` says, else split stays split and the rest is whole."""
    if isinstance(spec, Layout):
        return dual(spec)
    checked = tensor_spec(spec, mesh) if isinstance(spec, str) else spec
    return bind(gradient_spec(checked), shape, mesh, {}, name="the gradient")


def str_of(spec: Spec) -> str:
    """A spec as a message shows it."""
    if isinstance(spec, TensorSpec):
        return spec.span.text
    return str(spec)


def team_of(*meshes: DeviceMesh) -> Team:
    """Who is who on device meshes that take part in one transfer.

    Raises ShardlangError for two meshes whose ranks do not both follow each other.
    """
    device = meshes[0].device_type
    if all(_consecutive(ranks_of(m)) for m in meshes):
        return Team(device)
    if len({ranks_of(m) for m in meshes}) == 1:
        return Team(device, 0, ranks_of(meshes[0]))
    raise ShardlangError(sl07_runtime.scattered_ranks([ranks_of(m) for m in meshes]))


def _consecutive(ranks: tuple[int, ...]) -> bool:
    return ranks == tuple(range(ranks[0], ranks[0] + len(ranks)))


def global_shape(spec: Spec, local: tuple[int, ...], mesh: Mesh, team: Team, *, ask: bool) -> tuple[int, ...]:
    """The shape of the whole tensor of which this rank has a block of shape ``local``.

    Even splits say it; for uneven ones, or where ``ask`` is set, the ranks of the mesh tell each other their blocks'
    shapes, and SL0712 is raised, on all of them, where the blocks make no tensor.
    """
    if isinstance(spec, Layout):
        return spec.shape
    checked = tensor_spec(spec, mesh) if isinstance(spec, str) else spec
    dims = dims_for(Operand("the tensor", checked, local, mesh))
    uneven = any(cut.uneven for dim in dims for cut in dim.flat)
    if not uneven and not ask:
        return tuple(n * _ways(mesh, [a for f in d.factors for a in f.cuts] + [c.axis for c in d.flat])
                     for n, d in zip(local, dims, strict=True))  # fmt: skip
    ranks = [team.physical(r) for r in mesh.ranks]
    told = gather_shapes(tuple(ranks), local)
    by_rank = dict(zip(mesh.ranks, (told[r] for r in ranks), strict=True))
    if len({len(s) for s in by_rank.values()}) == 1:
        shape = tuple(_total(mesh, [*(a for f in dim.factors for a in f.cuts), *(c.axis for c in dim.flat)],
                             {r: s[d] for r, s in by_rank.items()}) for d, dim in enumerate(dims))  # fmt: skip
        try:
            layout = bind(checked, shape, mesh, {}, name="the tensor")
        except ShardlangError:
            layout = None
        if layout is not None and all(layout.local_shape(r) == s for r, s in by_rank.items()):
            return shape
    raise ShardlangError(
        sl07_runtime.blocks_do_not_fit(str_of(spec), tuple(by_rank.values()), tuple(ranks)),
    )


def gather_shapes(ranks: tuple[int, ...], local: tuple[int, ...]) -> dict[int, tuple[int, ...]]:
    """The local shape of every rank, by torch's rank; one small collective."""
    members = tuple(sorted(ranks))
    about = "telling each other the shapes of their blocks"
    with told_apart(members, about):
        told = words.tell(words.group_for_words(members), about, json.dumps(local).encode())
    if told is None:
        return dict.fromkeys(members, local)
    return {r: tuple(json.loads(t)) for r, t in zip(members, told, strict=True)}


def _ways(mesh: Mesh, axes: list[str]) -> int:
    return math.prod(mesh.axis(a).size for a in axes)


def _total(mesh: Mesh, axes: list[str], sizes: dict[int, int]) -> int:
    """The size of a dim: the sizes of its parts along its axes, at the origin of all other axes."""
    cut = {leaf for a in axes for leaf in mesh.expand(a)}
    others = [a.name for a in mesh.leaves() if a.name not in cut]
    return sum(n for r, n in sizes.items() if all(mesh.coordinate(r, a) == 0 for a in others))
