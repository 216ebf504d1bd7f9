"""What the JSON of both notations has in common: meshes, shapes, names; read with a fault for each that is not so."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence

from shardlang.diagnostics import Diagnostic, sl02_import
from shardlang.interchange.fold import NAME
from shardlang.interchange.json_text import Node, described
from shardlang.source import Span
from shardlang.syntax.build_spec import MAX_INT

AXIS = re.compile(r"[A-Za-z][A-Za-z0-9_]*|_[A-Za-z0-9_]+")
MESH = "mesh"
"""What the one mesh of an imported file is called."""
MODEL = "imported"


def entries(node: Node, what: str, errors: list[Diagnostic]) -> dict[str, Node]:
    """The members of an object; none and SL0251 where the value is no object."""
    if isinstance(node.value, dict):
        return node.value
    errors.append(sl02_import.wrong_form(node.span, what, "an object", described(node)))
    return {}


def known_keys(node: Node, keys: Sequence[str], errors: list[Diagnostic]) -> None:
    """SL0251 for every key of the outermost object that means nothing."""
    for key, value in entries(node, "the value", []).items():
        if key not in keys:
            wanted = f"one of {', '.join(keys)}"
            errors.append(sl02_import.wrong_form(value.key or value.span, f"key `{key}`", wanted, "not known here"))


def mesh_axes(node: Node, errors: list[Diagnostic]) -> dict[str, int]:
    """Axes and their sizes, major to minor, of ``{"data": 2, "model": 4}``. A size at fault is 1 in the result."""
    axes: dict[str, int] = {}
    for name, size in entries(node, "`mesh`", errors).items():
        if not AXIS.fullmatch(name):
            errors.append(sl02_import.unwritable_name(size.key or size.span, "axis", name))
        axes[name] = _count(size, f"the size of axis `{name}`", 1, errors)
    if math.prod(axes.values()) > MAX_INT:
        errors.append(sl02_import.wrong_form(node.span, "`mesh`", f"at most {MAX_INT} ranks", "larger than that"))
    if not axes and isinstance(node.value, dict):
        errors.append(sl02_import.wrong_form(node.span, "`mesh`", "at least one axis", "empty"))
    return axes


def _count(node: Node, what: str, least: int, errors: list[Diagnostic]) -> int:
    value = node.value
    if type(value) is int and least <= value <= MAX_INT:
        return value
    wanted = f"a whole number from {least} to {MAX_INT}"
    errors.append(sl02_import.wrong_form(node.span, what, wanted, "not one" if type(value) is int else described(node)))
    return 1


def shape(node: Node, name: str, errors: list[Diagnostic]) -> tuple[int, ...] | None:
    """A list of sizes; ``None`` and SL0251 where it is none."""
    if not isinstance(node.value, list):
        errors.append(sl02_import.wrong_form(node.span, f"the shape of `{name}`", "a list of sizes", described(node)))
        return None
    before = len(errors)
    sizes = tuple(_count(size, f"a size of `{name}`", 0, errors) for size in node.value)
    return sizes if len(errors) == before else None


def writable(name: str, span: Span, kind: str, errors: list[Diagnostic]) -> bool:
    """Can a pattern write this dotted name? SL0254 where not: ``root`` and ``otherwise`` mean something else."""
    if NAME.fullmatch(name) and name not in ("root", "otherwise"):
        return True
    errors.append(sl02_import.unwritable_name(span, kind, name))
    return False


def divides(
    span: Span, name: str, dim: int, size: int, cuts: Iterable[str], axes: Mapping[str, int], errors: list[Diagnostic]
) -> bool:
    """Does every even cut of the dim divide it? SL0259 where not."""
    ways = math.prod(axes[a] for a in cuts)
    if size % ways == 0:
        return True
    errors.append(sl02_import.does_not_divide(span, name, dim, size, ways))
    return False


def mesh_line(axes: Mapping[str, int | None]) -> str:
    """``mesh mesh = data:2 * model:4``; ``None`` is ``?``."""
    return f"mesh {MESH} = " + " * ".join(f"{a}:{'?' if n is None else n}" for a, n in axes.items())


__all__ = ["AXIS", "MESH", "MODEL", "divides", "entries", "known_keys", "mesh_axes", "mesh_line", "shape", "writable"]
