"""What a diagnostic is: plain data. Prose lives in the ``slNN_*`` modules, drawing in ``render``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, Literal, ParamSpec

from attrs import evolve, frozen

from shardlang.source import Span

Severity = Literal["error", "warning"]


@frozen
class Label:
    """A second place that matters, with a few words on why."""

    span: Span
    text: str


@frozen
class Fix:
    """An edit that is surely right: put ``replacement`` in the place of ``span``."""

    span: Span
    replacement: str


@frozen
class Diagnostic:
    """One fault. ``label`` is the text beside the caret of ``span``."""

    message: str
    span: Span | None = None
    code: str = ""
    severity: Severity = "error"
    label: str = ""
    labels: tuple[Label, ...] = ()
    notes: tuple[str, ...] = ()
    helps: tuple[str, ...] = ()
    fix: Fix | None = None

    def to_json(self) -> dict[str, Any]:
        """The object of ``--format json``; ``span`` is null where no text is at fault."""
        return {
            "code": self.code,
            "severity": self.severity,
            "message": self.message,
            "span": _span_json(self.span),
            "labels": [{"span": _span_json(label.span), "text": label.text} for label in self.labels],
            "notes": list(self.notes),
            "helps": list(self.helps),
        }


def _span_json(span: Span | None) -> dict[str, Any] | None:
    if span is None:
        return None
    (line, column), (end_line, end_column) = span.begin, span.finish
    return {
        "file": span.source.name,
        "line": line,
        "column": column,
        "end_line": end_line,
        "end_column": end_column,
    }


class ShardlangError(Exception):
    """One or more diagnostics, raised together. ``str()`` renders them as the command line does."""

    def __init__(self, diagnostics: Diagnostic | Iterable[Diagnostic]) -> None:
        if isinstance(diagnostics, Diagnostic):
            diagnostics = (diagnostics,)
        self.diagnostics: tuple[Diagnostic, ...] = tuple(diagnostics)
        super().__init__(*self.diagnostics)

    @property
    def codes(self) -> tuple[str, ...]:
        return tuple(d.code for d in self.diagnostics)

    def __str__(self) -> str:
        from shardlang.diagnostics.render import render_all

        return render_all(self.diagnostics)


@frozen
class Code:
    """A registered code: its id and a title of a few words."""

    id: str
    title: str


REGISTRY: dict[str, Code] = {}
"""Every code, filled when the ``slNN_*`` modules are imported (``import shardlang.diagnostics`` does)."""

_P = ParamSpec("_P")


def message(code: str, title: str) -> Callable[[Callable[_P, Diagnostic]], Callable[_P, Diagnostic]]:
    """Registers a code for a function that writes its prose from meaning; a call site passes only the meaning."""
    if code in REGISTRY:
        raise ValueError(f"{code} is registered twice")
    REGISTRY[code] = Code(code, title)

    def decorate(write: Callable[_P, Diagnostic]) -> Callable[_P, Diagnostic]:
        @wraps(write)
        def build(*args: _P.args, **kwargs: _P.kwargs) -> Diagnostic:
            return evolve(write(*args, **kwargs), code=code)

        return build

    return decorate


__all__ = ["REGISTRY", "Code", "Diagnostic", "Fix", "Label", "Severity", "ShardlangError", "message"]
