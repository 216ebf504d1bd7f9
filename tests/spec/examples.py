"""The examples of the language reference, as the tests run them."""

from __future__ import annotations

from pathlib import Path

from shardlang.check.asked import read_mesh
from shardlang.check.planned import plan_cheapest
from shardlang.check.transition import transitions
from shardlang.diagnostics.explanations import Fence, fences
from shardlang.layout import Layout, Runs
from shardlang.mesh import Mesh
from shardlang.plan.plan import Plan
from shardlang.source import Source
from shardlang.syntax.parse import parse_change

SPEC = Path(__file__).parents[2] / "spec"


def examples(*languages: str) -> dict[str, Fence]:
    """The fenced blocks of all chapters in these languages, by chapter and line."""
    return {
        f"{path.name}:{fence.line}": fence
        for path in sorted(SPEC.glob("*.md"))
        for fence in fences(path.read_text(encoding="utf-8"))
        if fence.language in languages
    }


def mesh_of(axes: str) -> Mesh:
    return read_mesh(axes)


def layout_of(spec: str, mesh: Mesh) -> Layout:
    """The layout that a spec with literal sizes says."""
    (found,) = transitions(parse_change(Source("<spec>", f"{spec} => {spec}")), mesh)
    return found.source


def plan_of(change: str, mesh: Mesh, objective: str = "time", cap: float | None = 1.0) -> Plan:
    assert objective in ("time", "bytes")
    found = transitions(parse_change(Source("<change>", change)), mesh)
    return plan_cheapest(found, objective="bytes" if objective == "bytes" else "time", cap=cap)


def runs_text(runs: Runs) -> str:
    """``0..2,4..6``; ``-`` for none."""
    return ",".join(f"{a}..{b}" for a, b in runs) or "-"


def block_text(layout: Layout, rank: int) -> str:
    """The block of a rank as the chapter on layouts writes it."""
    return " | ".join(runs_text(runs) for runs in layout.runs(rank))
