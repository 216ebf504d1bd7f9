"""Links, meshes and their splits: from the tree to sized meshes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from attrs import evolve

from shardlang.check.sizes import LIMIT
from shardlang.diagnostics import Diagnostic, ShardlangError, sl02_names, sl03_layouts
from shardlang.mesh import DEFAULT_LINK, Axis, Link, Mesh
from shardlang.source import Span
from shardlang.syntax import tree

UNNAMED = ""
"""The name of a mesh that is given by its axes alone; a text then calls it the mesh."""


def check_links(links: Iterable[tree.Link], errors: list[Diagnostic]) -> dict[str, Link]:
    """Links by name. Two of one name are SL0202."""
    checked: dict[str, Link] = {}
    places: dict[str, Span] = {}
    for link in links:
        name = link.name.text
        if name in checked:
            errors.append(sl02_names.declared_twice(link.name.span, "link", name, places[name]))
            continue
        checked[name] = Link(name, link.bandwidth.value, link.latency.value)
        places[name] = link.name.span
    return checked


def check_mesh(
    axes: tuple[tree.Axis, ...],
    splits: Iterable[tree.Split] = (),
    links: Mapping[str, Link] = {},
    *,
    first_rank: int = 0,
) -> Mesh:
    """The mesh of ``a:2 * b:4@ib`` as the command line and Python take it, without a name, with its splits applied.

    Raises ShardlangError with all faults.
    """
    errors: list[Diagnostic] = []
    span = axes[0].span.join(axes[-1].span)
    declared = tree.Mesh(tree.Name(UNNAMED, span), axes, None, span)
    checked = Mesh(UNNAMED, _axes(list(axes), UNNAMED, links, errors), first_rank=first_rank)
    for split in splits:
        checked = _split(split, checked, declared, links, errors)
    if errors:
        raise ShardlangError(errors)
    return checked


def _axes(
    axes: list[tree.Axis], mesh: str, links: Mapping[str, Link], errors: list[Diagnostic], default: Link = DEFAULT_LINK
) -> tuple[Axis, ...]:
    checked: dict[str, Axis] = {}
    spans: dict[str, Span] = {}
    open_axis: Span | None = None
    for axis in axes:
        name = axis.name.text
        if name in spans:
            errors.append(sl02_names.repeated_axis(axis.name.span, name, mesh, spans[name]))
            continue
        spans[name] = axis.name.span
        if axis.size is None:
            if open_axis is not None:
                errors.append(sl03_layouts.two_open_axes(axis.size_span, mesh, open_axis))
            open_axis = open_axis or axis.size_span
        link = default
        if axis.link is not None:
            if axis.link.text in links:
                link = links[axis.link.text]
            else:
                errors.append(sl02_names.unknown_link(axis.link.span, axis.link.text, list(links)))
        checked[name] = Axis(name, 1 if axis.size is None else axis.size, link, axis.size is None)
    if math.prod(a.size for a in checked.values()) > LIMIT and axes:
        errors.append(sl03_layouts.number_too_large(axes[0].span.join(axes[-1].span), LIMIT))
    return tuple(checked.values())


def check_meshes(
    meshes: Iterable[tree.Mesh],
    splits: Iterable[tree.Split],
    links: Mapping[str, Link],
    errors: list[Diagnostic],
    *,
    nproc: int | None,
) -> dict[str, Mesh]:
    """Meshes by name, splits applied, and ``?`` given its size where ``nproc`` is known or a split says it.

    A mesh without ``ranks`` is over the whole launch. Reports SL0202, SL0204, SL0205, SL0212, SL0217, SL0312, SL0313,
    SL0315 and, with ``nproc``, SL0311.
    """
    declared: dict[str, tree.Mesh] = {}
    checked: dict[str, Mesh] = {}
    for mesh in meshes:
        name = mesh.name.text
        if name in declared:
            errors.append(sl02_names.declared_twice(mesh.name.span, "mesh", name, declared[name].name.span))
            continue
        declared[name] = mesh
        first = mesh.ranks.first if mesh.ranks else 0
        checked[name] = Mesh(name, _axes(list(mesh.axes), name, links, errors), first_rank=first)
    for split in splits:
        name = split.mesh.text
        if name not in checked:
            errors.append(sl02_names.unknown_mesh(split.mesh.span, name, list(checked)))
            continue
        checked[name] = _split(split, checked[name], declared[name], links, errors)
    for name, mesh in declared.items():
        checked[name] = _size(mesh, checked[name], nproc, errors)
    return checked


def _split(
    split: tree.Split, mesh: Mesh, declared: tree.Mesh, links: Mapping[str, Link], errors: list[Diagnostic]
) -> Mesh:
    """The mesh with one axis made of sub-axes; an open axis takes the size that they multiply to."""
    name = split.axis.text
    if name not in [a.name for a in mesh.axes]:
        errors.append(sl02_names.unknown_split_axis(split.axis.span, name, mesh.name, [a.name for a in mesh.axes]))
        return mesh
    axis = mesh.top(name)
    if name in mesh.splits:
        errors.append(sl02_names.declared_twice(split.axis.span, "split of", name, declared.name.span))
        return mesh
    before = len(errors)
    parts = _axes(list(split.parts), mesh.name, links, errors, axis.link)
    spans = {a.name.text: a.name.span for a in declared.axes}
    for part in split.parts:
        if part.name.text in [a.name for a in mesh.all_axes()]:
            first = spans.get(part.name.text, declared.name.span)
            errors.append(sl02_names.repeated_axis(part.name.span, part.name.text, mesh.name, first))
    product = math.prod(p.size for p in parts)
    if axis.open:
        axis = Axis(name, product, axis.link)
    elif product != axis.size and len(errors) == before:
        whole = split.parts[0].span.join(split.parts[-1].span)
        errors.append(sl03_layouts.split_product(whole, name, axis.size, product))
    if len(errors) > before:
        return mesh
    axes = tuple(axis if a.name == name else a for a in mesh.axes)
    return evolve(mesh, axes=axes, splits={**mesh.splits, name: parts})


def _size(declared: tree.Mesh, mesh: Mesh, nproc: int | None, errors: list[Diagnostic]) -> Mesh:
    """The mesh of the launch: its ``?`` resolved, and its ranks held against the declaration and the launch."""
    ranks, open_axis = declared.ranks, any(a.open for a in mesh.axes)
    if sum(a.open for a in mesh.axes) > 1:
        return mesh  # which of them has what, nobody knows: SL0312
    span = declared.axes[0].span.join(declared.axes[-1].span)
    if ranks is not None:
        have = ranks.last - ranks.first + 1
        fits = have % mesh.size == 0 if open_axis else have == mesh.size
        if not fits:
            errors.append(sl03_layouts.ranks_range(ranks.span, mesh.name, mesh.size, ranks.first, ranks.last))
            return mesh
        if nproc is not None and ranks.last >= nproc:
            errors.append(sl03_layouts.ranks_beyond(ranks.span, mesh.name, ranks.last, nproc))
        return mesh.resolve(have)
    if nproc is None:
        return mesh
    try:
        return resolve(mesh, nproc, span)
    except ShardlangError as error:
        errors.extend(error.diagnostics)
        return mesh


def resolve(mesh: Mesh, nproc: int, span: Span | None = None) -> Mesh:
    """The mesh of a launch of ``nproc`` ranks that it is to fill. Raises SL0311 where it does not."""
    fits = nproc % mesh.size == 0 if any(a.open for a in mesh.axes) else nproc == mesh.size
    if not fits or nproc < 1:
        open_axis = any(a.open for a in mesh.axes)
        raise ShardlangError(sl03_layouts.world_size(span, mesh.name, str(mesh), nproc, mesh.size, open_axis))
    return mesh.resolve(nproc)
