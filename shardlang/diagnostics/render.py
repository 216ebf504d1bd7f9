"""The one renderer: a diagnostic as people read it in a terminal."""

from __future__ import annotations

from shardlang.diagnostics.diagnostic import Diagnostic


def render(diagnostic: Diagnostic) -> str:
    """The text of DESIGN section 7, without colour."""
    return f"{diagnostic.severity}[{diagnostic.code}]: {diagnostic.message}"
