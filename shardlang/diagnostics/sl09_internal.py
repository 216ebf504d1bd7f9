"""Codes SL09: internal faults. Each function takes meaning and writes the prose."""

from __future__ import annotations

from shardlang.diagnostics.diagnostic import Diagnostic, message


@message("SL0901", "a fault of shardlang itself")
def internal(kind: str, text: str, where: str) -> Diagnostic:
    return Diagnostic(
        f"shardlang failed: {kind}: {text}" if text else f"shardlang failed: {kind}",
        notes=(f"raised at {where}",) if where else (),
        helps=("this is a fault of shardlang, not of your text: please report it; SHARDLANG_TRACEBACK=1 shows more",),
    )
