"""A pytree of JAX's PartitionSpecs, as JSON, to a ``model`` with a ``param`` line for each form of parameter."""

from __future__ import annotations

from attrs import frozen

from shardlang.diagnostics import Diagnostic, ShardlangError, sl02_import, sl02_names
from shardlang.interchange import Imported
from shardlang.interchange.fold import fold
from shardlang.interchange.form import (
    MESH,
    MODEL,
    divides,
    entries,
    known_keys,
    mesh_axes,
    mesh_line,
    shape,
    writable,
)
from shardlang.interchange.json_text import Node, described, read
from shardlang.source import Source, Span
from shardlang.syntax.format import format_source

KEYS = ("mesh", "specs", "shapes")
UNCONSTRAINED = "?"
"""Stands for ``PartitionSpec.UNCONSTRAINED``, which JSON cannot write."""


@frozen
class _Entry:
    """One entry of a spec: the axes of a dim, major to minor, and where they are written."""

    axes: tuple[tuple[str, Span], ...]
    span: Span


def import_jax(source: Source) -> Imported:
    """The ``.shard`` text of a pytree of PartitionSpecs. Raises ``ShardlangError`` with every fault of the JSON.

    ``mesh`` maps axes to sizes, major to minor. ``specs`` nests as the parameters do; a leaf is a list with, for each
    dim, null, an axis or a list of axes (major to minor), and may be shorter than the number of dims. A leaf may stand
    for a whole subtree of ``shapes``, as in JAX a tree of specs may be a prefix of the parameters' tree.
    """
    errors: list[Diagnostic] = []
    top = read(source)
    found = entries(top, "the value", errors)
    for key, wanted in (
        ("mesh", '{"data": 2, "model": 4}'),
        ("specs", "nested objects of lists"),
        ("shapes", "nested"),
    ):
        if key not in found and not errors:
            errors.append(sl02_import.missing_key(top.span, key, wanted))
    if errors:
        raise ShardlangError(errors)
    known_keys(top, KEYS, errors)
    axes = mesh_axes(found["mesh"], errors)
    if errors:
        raise ShardlangError(errors)
    specs: dict[str, str] = {}
    _pair(found["specs"], found["shapes"], "", axes, specs, errors)
    if errors:
        raise ShardlangError(errors)
    lines = [mesh_line(axes), "", f"model {MODEL} on {MESH} {{", *(f"param {p} : {s}" for p, s in fold(specs)), "}"]
    return Imported(format_source(Source(source.name, "\n".join(lines) + "\n")))


def _pair(
    spec: Node, sizes: Node, path: str, axes: dict[str, int], specs: dict[str, str], errors: list[Diagnostic]
) -> None:
    """Walks both trees side by side, down to the leaves of the shapes."""
    branches, shapes = _branches(spec), _branches(sizes)
    if shapes is None:
        if branches is not None:
            errors.append(sl02_import.wrong_form(spec.span, f"the spec of `{path}`", "a list", "a tree"))
        elif writable(path, sizes.key or sizes.span, "parameter", errors):
            dims = shape(sizes, path, errors)
            if dims is not None:
                text = _spec(spec, path, dims, axes, errors)
                specs[path] = text
        return
    for key, below in shapes.items():
        name = f"{path}.{key}" if path else key
        if branches is None:
            _pair(spec, below, name, axes, specs, errors)
        elif key not in branches:
            errors.append(sl02_import.shape_without_spec(below.key or below.span, name))
        else:
            _pair(branches[key], below, name, axes, specs, errors)
    for key, below in (branches or {}).items():
        if key not in shapes:
            name = f"{path}.{key}" if path else key
            errors.append(sl02_import.spec_without_shape(below.key or below.span, name))


def _branches(node: Node) -> dict[str, Node] | None:
    """The subtrees of a dict, or of a list of dicts (by position); ``None`` for a leaf."""
    if isinstance(node.value, dict):
        return node.value
    if isinstance(node.value, list) and node.value and all(isinstance(n.value, dict) for n in node.value):
        return {str(i): n for i, n in enumerate(node.value)}
    return None


def _spec(node: Node, name: str, dims: tuple[int, ...], axes: dict[str, int], errors: list[Diagnostic]) -> str:
    """The spec of one parameter, its sizes written out."""
    if not isinstance(node.value, list):
        wanted = "a list; `[]` for a parameter that is whole"
        errors.append(sl02_import.wrong_form(node.span, f"the spec of `{name}`", wanted, described(node)))
        return "whole"
    if len(node.value) > len(dims):
        errors.append(sl02_import.spec_too_long(node.span, name, len(node.value), dims))
        return "whole"
    cuts = [_entry(entry, name, axes, errors) for entry in node.value]
    used: dict[str, Span] = {}
    for i, entry in enumerate(cuts):
        for axis, span in entry.axes:
            if axis in used:
                same = any(axis == a and s == used[axis] for a, s in entry.axes)
                errors.append(sl02_names.splits_two_dims(span, axis, name, used[axis], same))
            used.setdefault(axis, span)
        divides(entry.span, name, i, dims[i], (a for a, _ in entry.axes), axes, errors)
    if not used:
        return "whole"
    texts = [str(n) for n in dims]
    for i, entry in enumerate(cuts):
        texts[i] += "".join(f"/{axis}" for axis, _ in entry.axes)
    return "[" + " ".join(texts) + "]"


def _entry(node: Node, name: str, axes: dict[str, int], errors: list[Diagnostic]) -> _Entry:
    if node.value is None:
        return _Entry((), node.span)
    parts = node.value if isinstance(node.value, list) else [node]
    kept: list[tuple[str, Span]] = []
    for part in parts:
        if not isinstance(part.value, str):
            wanted = "null, an axis or a list of axes"
            errors.append(sl02_import.wrong_form(part.span, f"an entry of `{name}`", wanted, described(part)))
        elif part.value == UNCONSTRAINED:
            errors.append(sl02_import.unconstrained(part.span, name))
        elif part.value not in axes:
            errors.append(sl02_names.unknown_axis(part.span, part.value, MESH, list(axes)))
        else:
            kept.append((part.value, part.span))
    return _Entry(tuple(kept), node.span)


__all__ = ["import_jax"]
