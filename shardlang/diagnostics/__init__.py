"""Diagnostics: one class, one registry of codes, one renderer. Importing this room registers every code."""

from shardlang.diagnostics import (
    sl01_syntax,
    sl01_text,
    sl02_import,
    sl02_names,
    sl03_layouts,
    sl04_plans,
    sl05_functions,
    sl06_budgets,
    sl06_calls,
    sl06_models,
    sl07_launch,
    sl07_runtime,
    sl07_state,
    sl09_internal,
)
from shardlang.diagnostics.diagnostic import REGISTRY, Code, Diagnostic, Fix, Label, ShardlangError

__all__ = [
    "REGISTRY",
    "Code",
    "Diagnostic",
    "Fix",
    "Label",
    "ShardlangError",
    "sl01_syntax",
    "sl01_text",
    "sl02_import",
    "sl02_names",
    "sl03_layouts",
    "sl04_plans",
    "sl05_functions",
    "sl06_budgets",
    "sl06_calls",
    "sl06_models",
    "sl07_launch",
    "sl07_runtime",
    "sl07_state",
    "sl09_internal",
]
