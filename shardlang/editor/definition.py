"""Where a name comes from."""

from __future__ import annotations

from shardlang.editor.document import Document
from shardlang.editor.occurrences import Occurrence, occurrences
from shardlang.source import Span


def occurrence_at(document: Document, offset: int) -> Occurrence | None:
    """The name that the offset is in or just behind."""
    found = [o for o in occurrences(document.file) if o.span.start <= offset <= o.span.end]
    return max(found, key=lambda o: o.span.start, default=None)


def definition(document: Document, offset: int) -> Span | None:
    """Where the axis, constant, link, mesh or model at the offset is declared; a size that nothing declares: where
    its declaration has it first."""
    at = occurrence_at(document, offset)
    return None if at is None else declared(document, at)


def declared(document: Document, at: Occurrence) -> Span | None:
    """As ``definition``, for a name that is known already."""
    same = [o for o in occurrences(document.file) if o.kind == at.kind and o.text == at.text]
    if at.kind == "axis":
        scope = document.scope_of(at.mesh)
        mesh = scope.mesh.name if scope is not None else at.mesh.text if at.mesh is not None else None
        same = [o for o in same if o.declares and o.mesh is not None and (mesh is None or o.mesh.text == mesh)]
    elif at.kind == "tensor" or (at.kind == "size" and not any(o.declares for o in same)):
        same = [o for o in same if o.decl is at.decl]
    else:
        same = [o for o in same if o.declares]
    return min((o.span for o in same), key=lambda s: s.start, default=None)


__all__ = ["declared", "definition", "occurrence_at"]
