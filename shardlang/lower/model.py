"""From a model's layouts to what torch is told: placements of parameters, ``fully_shard`` groups, as data.

DTensor and FSDP2 know leaf axes only, so that everything here is on ``on_leaves(mesh)``, the same ranks with the
sub-axes in the place of the axes that are split. A parameter is a DTensor on all of it, whole axes too, and FSDP is
told which axes are its own: clipping, optimizers and state dicts then see one kind of tensor on one mesh.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from attrs import evolve, frozen
from torch.distributed.tensor import Placement

from shardlang.check.groups import FsdpGroup
from shardlang.check.model import ModelLayouts, ParameterLayout
from shardlang.check.program import CallLine, CompileLine, FsdpLine, OperatorRule
from shardlang.diagnostics import Diagnostic, ShardlangError, sl06_calls
from shardlang.dtypes import DTYPES
from shardlang.layout import Cut, Dim, Factor, Layout, Pending, canonical_dim
from shardlang.lower.placements import carried
from shardlang.mesh import Mesh


@frozen
class Parameter:
    """A parameter as it is placed: ``names`` are all of a tied one's, ``layout`` what the computation sees."""

    names: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    layout: Layout
    placements: tuple[Placement, ...]
    trainable: bool

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def itemsize(self) -> int:
        return DTYPES[self.dtype].itemsize


@frozen
class Group:
    """One ``fully_shard`` call. ``shard`` and ``replicate`` are leaf axes; ``dims`` has the dim by which each
    parameter is stored in parts, ``parameters`` those that it gathers, ``float8`` the names of those that it gathers
    as float8."""

    module: str
    parameters: tuple[Parameter, ...]
    dims: Mapping[str, int]
    shard: tuple[str, ...]
    replicate: tuple[str, ...]
    param_dtype: str | None
    reduce_dtype: str | None
    output_dtype: str | None
    reshard: bool | int
    prefetch: int
    offload: bool
    float8: tuple[str, ...] = ()


@frozen
class LoweredModel:
    """All that ``apply`` does, in its order. Specs name axes of the ``declared`` mesh, all else those of ``mesh``, its
    leaves. ``alone`` are parameters that no group gathers: their gradients are
    reduced one by one, where they are pending."""

    name: str
    declared: Mesh
    mesh: Mesh
    parameters: tuple[Parameter, ...]
    calls: tuple[tuple[str, CallLine], ...]
    checkpoint: tuple[str, ...]
    groups: tuple[Group, ...]
    alone: tuple[Parameter, ...]
    sizes: Mapping[str, int]
    compile: tuple[tuple[str, CompileLine], ...] = ()
    rules: tuple[OperatorRule, ...] = ()


def lower_model(layouts: ModelLayouts) -> LoweredModel:
    """Raises ShardlangError: SL0638 for a module whose own parameters of two dtypes one group cannot hold, SL0663 for
    a group that cannot be gathered as float8."""
    mesh = on_leaves(layouts.mesh)
    errors: list[Diagnostic] = []
    others = {names[0]: names for names in layouts.tied}
    parameters: dict[str, Parameter] = {}
    for declared in layouts.unique_parameters():
        layout = layout_on_leaves(declared.layout, mesh)
        names = others.get(declared.name, (declared.name,))
        parameters[declared.name] = Parameter(
            names, declared.shape, declared.dtype, layout, carried(layout), not declared.frozen and _is_float(declared)
        )
    groups = tuple(
        _float8(g, group.line, layouts.linear, errors)
        for group in layouts.groups
        for g in _groups(group, layouts.mesh, parameters, errors)
    )
    if errors:
        raise ShardlangError(errors)
    gathered = {p.name for g in groups for p in g.parameters}
    return LoweredModel(
        layouts.model.name,
        layouts.mesh,
        mesh,
        tuple(parameters.values()),
        tuple((c.module, c.line) for c in layouts.calls),
        layouts.checkpoint,
        groups,
        tuple(p for n, p in parameters.items() if n not in gathered),
        dict(layouts.sizes),
        layouts.compile,
        layouts.model.rules,
    )


def _is_float(declared: ParameterLayout) -> bool:
    known = DTYPES.get(declared.dtype)
    return known is not None and known.kind in ("float", "complex")


def _groups(
    group: FsdpGroup, mesh: Mesh, parameters: Mapping[str, Parameter], errors: list[Diagnostic]
) -> Iterable[Group]:
    """The ``fully_shard`` calls for a declared group, bottom up.

    FSDP2 wants one dtype among a group's trained parameters, so that modules whose own are of another dtype than most
    get a group of their own. What has no parts stays out: scalars, and parameters of which some rank's block is empty.
    """
    members = [parameters[n] for n in group.parameters if n in parameters and _has_parts(parameters[n])]
    ranks = math.prod(mesh.axis(a).size for a in _leaves(group.line.over, mesh))
    sizes: dict[str, int] = {}
    for p in members:
        if p.trainable:
            sizes[p.dtype] = sizes.get(p.dtype, 0) + math.prod(p.shape)
    main = max(sizes, key=lambda d: sizes[d]) if sizes else ""
    odd: dict[str, list[Parameter]] = {}
    for p in members:
        if p.trainable and p.dtype != main:
            odd.setdefault(p.name.rpartition(".")[0], []).append(p)
    for module, others in sorted(odd.items(), key=lambda item: -item[0].count(".")):
        own = [p for p in members if p.name.rpartition(".")[0] == module]
        if module == group.module or len(own) != len(others) or len({p.dtype for p in own}) > 1:
            errors.append(
                sl06_calls.mixed_dtypes(group.line.pattern.span, module, sorted({p.dtype for p in own} | {main}))
            )
        yield _group(module, tuple(own), group, mesh, ranks)
    rest = tuple(p for p in members if p.name.rpartition(".")[0] not in odd)
    yield _group(group.module, rest, group, mesh, ranks)


def _has_parts(parameter: Parameter) -> bool:
    last = parameter.layout.mesh.ranks[-1]  # which has the smallest block
    return bool(parameter.shape) and math.prod(parameter.layout.local_shape(last)) > 0


def _group(module: str, members: tuple[Parameter, ...], group: FsdpGroup, mesh: Mesh, ranks: int) -> Group:
    line = group.line
    return Group(
        module,
        members,
        {p.name: stored_dim(p, ranks, line.reshard) for p in members},
        _leaves(line.over, mesh),
        _leaves(line.replicate, mesh),
        line.param_dtype,
        line.reduce_dtype,
        line.output_dtype,
        line.reshard,
        line.prefetch,
        line.offload,
    )


def _float8(group: Group, line: FsdpLine, linear: frozenset[str], errors: list[Diagnostic]) -> Group:
    """The group with what it gathers as float8."""
    if not line.float8:
        return group
    layers = [p for p in group.parameters if p.name in linear and len(p.names) == 1]
    split = next((p for p in layers if any(p.layout.mesh.axis(a).size > 1 for a in p.layout.cut_axes())), None)
    if split is not None or not layers:
        reason = "none is of a linear layer" if split is None else f"`{split.name}` is {split.layout}"
        errors.append(sl06_calls.not_float8(line.pattern.span, group.module, reason))
    return evolve(group, float8=tuple(p.name for p in layers))


def keeps_part(group: Group, mesh: Mesh) -> bool:
    """Does a group keep its parameters, after the forward pass, in parts over fewer ranks than it stores them over?"""
    return _to_fewer(group.reshard, math.prod(mesh.axis(a).size for a in group.shard))


def _to_fewer(reshard: bool | int, ranks: int) -> bool:
    return not isinstance(reshard, bool) and reshard < ranks


def stored_dim(parameter: Parameter, ranks: int, reshard: bool | int = True) -> int:
    """The dim by which FSDP stores a parameter in parts: 0, which it pads, but where that is cut unevenly or within its
    factors, so that torch's metadata of the stored parts could not say them; then one that both leave even, if there is
    one. A group that keeps parts over fewer ranks cuts these along dim 0, and takes them for parts along its own."""
    layout = parameter.layout
    if _is_plain(layout, 0) or _to_fewer(reshard, ranks):
        return 0
    local = layout.local_shape(layout.mesh.first_rank)
    for d in range(1, len(local)):
        if local[d] % ranks == 0 and _is_plain(layout, d):
            return d
    return 0


def _is_plain(layout: Layout, dim: int) -> bool:
    """Is each block of a dim one stretch, and all of them equal?"""
    canonical = canonical_dim(layout.mesh, layout.dims[dim])
    return not canonical.flat and all(d.axis is not None for d in canonical.digits[:-1])


def stored_numel(parameter: Parameter, dim: int, ranks: int) -> int:
    """Elements of the largest stored part, FSDP's padding included."""
    local = list(parameter.layout.local_shape(parameter.layout.mesh.first_rank))
    local[dim] = -(-local[dim] // ranks)
    return math.prod(local)


def on_leaves(mesh: Mesh) -> Mesh:
    """The same ranks, with leaf axes only."""
    return evolve(mesh, axes=tuple(mesh.leaves()), splits={}) if mesh.splits else mesh


def layout_on_leaves(layout: Layout, mesh: Mesh) -> Layout:
    """The layout with leaf axes in the place of the axes that they make up. ``mesh`` is ``on_leaves`` of its own."""
    if not layout.mesh.splits:
        return layout
    expand = layout.mesh.expand
    dims = tuple(
        Dim(
            tuple(Factor(f.size, tuple(leaf for a in f.cuts for leaf in expand(a))) for f in dim.factors),
            tuple(Cut(leaf, c.uneven) for c in dim.flat for leaf in expand(c.axis)),
        )
        for dim in layout.dims
    )
    return Layout(mesh, dims, tuple(Pending(leaf, p.op) for p in layout.pending for leaf in expand(p.axis)))


def _leaves(axes: Iterable[str], mesh: Mesh) -> tuple[str, ...]:
    return tuple(leaf for a in axes for leaf in mesh.expand(a))
