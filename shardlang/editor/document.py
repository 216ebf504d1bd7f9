"""A text that is being edited: its diagnostics, and what can be read of its meaning while parts of it are broken."""

from __future__ import annotations

import re
from functools import cached_property

from attrs import frozen

from shardlang.check.lets import fold_lets
from shardlang.check.meshes import check_links, check_meshes
from shardlang.check.scope import DimRule, Scope
from shardlang.compilation import Compilation
from shardlang.diagnostics import Diagnostic, ShardlangError
from shardlang.mesh import Link, Mesh
from shardlang.source import Source
from shardlang.syntax import tree
from shardlang.syntax.parse import parse
from shardlang.syntax.place import DECLARATIONS

TRIES = 40
"""How often a broken text is read again, each time with more of it left out."""

_DECLARATION = re.compile(rf"^(?:{'|'.join(DECLARATIONS)})\b", re.MULTILINE)


@frozen(slots=False)
class Document:
    """A text under its name. What is derived is computed once; a change of the text is another document."""

    name: str
    text: str

    @cached_property
    def source(self) -> Source:
        return Source(self.name, self.text)

    @cached_property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """What ``shardlang check --no-model`` says of the text."""
        return Compilation(self.source, look_at_models=False).diagnose()

    @cached_property
    def file(self) -> tree.File:
        """The declarations that can be read, at their places; lines that are at fault are left out.

        In a text that cannot be read at all (controls, too large) there are none.
        """
        text = self.text
        for _ in range(TRIES):
            source = Source(self.name, text)
            try:
                return parse(source)
            except ShardlangError as error:
                masked = _mask(text, error.diagnostics)
                if masked == text:
                    break
                text = masked
        return tree.File((), self.source.span(0, 0))

    @cached_property
    def links(self) -> dict[str, Link]:
        return check_links((d for d in self.file.decls if isinstance(d, tree.Link)), [])

    @cached_property
    def meshes(self) -> dict[str, Mesh]:
        meshes = (d for d in self.file.decls if isinstance(d, tree.Mesh))
        splits = (d for d in self.file.decls if isinstance(d, tree.Split))
        return check_meshes(meshes, splits, self.links, [], nproc=None)

    @cached_property
    def lets(self) -> dict[str, int]:
        return fold_lets((d for d in self.file.decls if isinstance(d, tree.Let)), {}, [], file=self.name)

    @cached_property
    def scopes(self) -> dict[str, Scope]:
        """What specs on each mesh may refer to."""
        return {name: Scope(mesh, self.lets, _rules(self.file, mesh)) for name, mesh in self.meshes.items()}

    def scope_of(self, mesh: tree.Name | None) -> Scope | None:
        """The scope of the mesh that a declaration names, else of the only one of the text."""
        if mesh is not None:
            return self.scopes.get(mesh.text)
        return next(iter(self.scopes.values())) if len(self.scopes) == 1 else None


def _rules(file: tree.File, mesh: Mesh) -> dict[str, DimRule]:
    known = {a.name for a in mesh.all_axes()}
    found: dict[str, DimRule] = {}
    for line in (ln for d in file.decls if isinstance(d, tree.Rules) and d.mesh.text == mesh.name for ln in d.lines):
        axes = tuple(a.text for a in line.axes if a.text in known)
        for dim in line.dims:
            found.setdefault(dim.text, DimRule(dim.text, axes, line.fallback, dim.span))
    return found


def _mask(text: str, faults: tuple[Diagnostic, ...]) -> str:
    """The text with blanks for each line that is at fault, or for its whole declaration where that line is blank."""
    for fault in faults:
        if fault.span is None:
            return text
        start = text.rfind("\n", 0, fault.span.start) + 1
        end = text.find("\n", fault.span.start)
        end = len(text) if end < 0 else end
        if not text[start:end].strip() or _DECLARATION.match(text, start):
            start, end = _declaration(text, fault.span.start)
        text = text[:start] + re.sub(r"[^\n]", " ", text[start:end]) + text[end:]
    return text


def _declaration(text: str, at: int) -> tuple[int, int]:
    """From the last keyword of a declaration at the margin, up to the next; all of it where there is none."""
    start, end = 0, len(text)
    for match in _DECLARATION.finditer(text):
        if match.start() <= at:
            start = match.start()
        else:
            end = match.start()
            break
    return start, end


__all__ = ["Document"]
