"""Results of a stage as JSON: the syntax tree, the checked program, the layouts of a model."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import attrs

from shardlang.check.model import ModelLayouts
from shardlang.source import Source, Span


def node_json(value: Any) -> Any:
    """A tree of attrs objects as JSON: ``node`` is the class; spans are ``[line, column, end line, end column]``."""
    if isinstance(value, Span):
        return [*value.begin, *value.finish]
    if isinstance(value, Source):
        return value.name
    if isinstance(value, (str, int, float)) or value is None:
        return value
    if isinstance(value, Fraction):
        return str(value)
    if isinstance(value, Mapping):
        return {str(k): node_json(v) for k, v in value.items()}
    if isinstance(value, (tuple, list)):
        return [node_json(v) for v in value]
    fields = [f for f in attrs.fields(type(value)) if f.init]
    return {"node": type(value).__name__} | {f.name.lstrip("_"): node_json(getattr(value, f.name)) for f in fields}


def layouts_json(layouts: ModelLayouts) -> dict[str, Any]:
    """The layouts that a model's declaration comes down to: each parameter, FSDP group and call."""
    return {
        "mesh": str(layouts.mesh),
        "sizes": dict(layouts.sizes),
        "parameters": {
            p.name: {
                "shape": list(p.shape),
                "dtype": p.dtype,
                "layout": str(p.layout),
                "block": list(p.layout.local_shape(p.layout.mesh.first_rank)),
                "frozen": p.frozen,
                "line": p.line.pattern.text,
            }
            for p in layouts.parameters.values()
        },
        "tied": [list(names) for names in layouts.tied],
        "groups": [
            {
                "module": g.module or "root",
                "over": list(g.line.over),
                "replicate": list(g.line.replicate),
                "parameters": len(g.parameters),
            }
            for g in layouts.groups
        ],
        "calls": [{"module": c.module or "root", "line": c.line.pattern.text} for c in layouts.calls],
        "checkpoint": [m or "root" for m in layouts.checkpoint],
        "compile": [{"module": m or "root", "backend": line.backend} for m, line in layouts.compile],
    }
