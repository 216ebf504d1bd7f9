"""What an editor shows about the place under the pointer, as Markdown."""

from __future__ import annotations

from attrs import frozen

from shardlang.editor.definition import declared, occurrence_at
from shardlang.editor.document import Document
from shardlang.editor.local_shape import local_shape, reshard_sizes
from shardlang.editor.occurrences import Occurrence, SpecPlace, spec_places
from shardlang.mesh import Axis, Link, Mesh
from shardlang.source import Span
from shardlang.syntax import tree


@frozen
class Hover:
    """Markdown, and the text that it is about."""

    markdown: str
    span: Span


def hover(document: Document, offset: int) -> Hover | None:
    """About the name at the offset, and about the spec around it: its local shape."""
    at = occurrence_at(document, offset)
    place = _spec_at(document, offset)
    parts = []
    if at is not None:
        about = _about(document, at)
        if about:
            parts.append(about)
    shape = local_shape(document, place) if place is not None else None
    if shape is not None:
        parts.append(shape)
    if not parts:
        return None
    span = at.span if at is not None else place.spec.span if place is not None else None
    assert span is not None
    return Hover("\n\n".join(parts), span)


def _spec_at(document: Document, offset: int) -> SpecPlace | None:
    found = [p for p in spec_places(document.file) if p.spec.span.start <= offset <= p.spec.span.end]
    return max(found, key=lambda p: p.spec.span.start, default=None)


def _about(document: Document, at: Occurrence) -> str | None:
    if at.kind == "axis":
        scope = document.scope_of(at.mesh)
        return None if scope is None else _axis(at.text, scope.mesh)
    if at.kind == "link":
        link = document.links.get(at.text)
        return None if link is None else f"link `{link.name}`: {_speed(link)}"
    if at.kind == "mesh":
        mesh = document.meshes.get(at.text)
        return None if mesh is None else _mesh(mesh)
    if at.kind == "size":
        return _size(document, at)
    return None


def _axis(name: str, mesh: Mesh) -> str | None:
    axis = next((a for a in mesh.all_axes() if a.name == name), None)
    if axis is None:
        return None
    lines = [f"axis `{name}` of mesh `{mesh.name}`: {_count(axis)}", f"link `{axis.link.name}`: {_speed(axis.link)}"]
    parent = mesh.parent(name)
    if parent is not None:
        lines.insert(1, f"a part of axis `{parent}`")
    if name in mesh.splits:
        lines.insert(1, "made of " + " * ".join(f"`{p.name}:{p.size}`" for p in mesh.splits[name]))
    return "\n\n".join(lines)


def _count(axis: Axis) -> str:
    return "as many ranks as the launch leaves (`?`)" if axis.open else f"{axis.size} rank{'s' * (axis.size != 1)}"


def _speed(link: Link) -> str:
    return f"{link.bandwidth / 10**9:g} GB/s, {link.latency / 10**6:g} us"


def _mesh(mesh: Mesh) -> str:
    if any(a.open for a in mesh.axes):
        return f"mesh `{mesh.name}`: `{mesh}`"
    first, last = mesh.ranks[0], mesh.ranks[-1]
    return f"mesh `{mesh.name}`: `{mesh}`, {mesh.size} ranks, {first} to {last}"


def _size(document: Document, at: Occurrence) -> str:
    """The size of a name, and who bound it."""
    place = declared(document, at)
    where = "" if place is None else f", line {place.begin[0]}"
    if at.text in document.lets:
        return f"`{at.text}` = {document.lets[at.text]}, by `let`{where}"
    lines = []
    if isinstance(at.decl, tree.Reshard):
        scope = document.scope_of(at.decl.mesh)
        sizes = reshard_sizes(at.decl, scope) if scope is not None else {}
        if at.text in sizes:
            binder = getattr(sizes, "binders", {}).get(at.text)
            by = f", by {binder.where}" if binder is not None else ""
            return f"`{at.text}` = {sizes[at.text]}{by}"
    what = {tree.Fn: "fn", tree.Reshard: "reshard", tree.Model: "model"}.get(type(at.decl), "")
    name = getattr(getattr(at.decl, "name", None), "text", "")
    if what:
        lines.append(f"`{at.text}`: a size that the tensors of {what} `{name}` give it; first named here{where}")
    rule = _rule(document, at)
    if rule:
        lines.append(rule)
    return "\n\n".join(lines) if lines else f"`{at.text}`: the name of a dim"


def _rule(document: Document, at: Occurrence) -> str | None:
    """The rules line that gives axes to dims of this name."""
    if isinstance(at.decl, tree.Reshard):
        return None
    mesh = at.decl.mesh if isinstance(at.decl, tree.Fn | tree.Model | tree.Rules) else None
    scope = document.scope_of(mesh)
    rule = scope.rules.get(at.text) if scope is not None else None
    if rule is None or not rule.axes:
        return None
    fallback = ", else whole" if rule.fallback else ""
    return f"split over `{'/'.join(rule.axes)}`{fallback} where its spec names no axis, by a rule"


__all__ = ["Hover", "hover"]
