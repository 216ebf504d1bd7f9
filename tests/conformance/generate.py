"""Writes ``layouts.json`` and ``transitions.json``: ``python -m tests.conformance.generate``.

Blocks, and what must be received, come from ``reference``; the shares of the classic transitions from public reports
on torch; the times that a plan may take from our own planner, where its search was complete.
"""

from __future__ import annotations

import json
import random
from typing import Any

from tests.conformance import reference
from tests.conformance.cases import SUITE
from tests.conformance.reference import Cut, Dim, Sizes

MESHES: tuple[Sizes, ...] = ({"a": 2, "b": 2}, {"a": 4}, {"a": 2, "b": 3}, {"a": 2, "b": 2, "c": 2}, {"a": 1, "b": 4})

HAND: tuple[tuple[Sizes, tuple[Dim, ...]], ...] = (
    ({"a": 2, "b": 2}, ()),
    ({"a": 2, "b": 2}, (Dim(((8, ("a", "b")),)),)),
    ({"a": 2, "b": 2}, (Dim(((8, ("b", "a")),)),)),
    ({"a": 4}, (Dim(((10, ()),), (Cut("a", True),)),)),
    ({"a": 4}, (Dim(((1, ()),), (Cut("a", True),)),)),
    ({"a": 3}, (Dim(((7, ()),), (Cut("a", True),)),)),
    ({"a": 2, "b": 2}, (Dim(((7, ()),), (Cut("a", True), Cut("b", True))),)),
    ({"a": 2, "b": 2}, (Dim(((7, ()),), (Cut("b", True), Cut("a", True))),)),
    ({"a": 2, "b": 3}, (Dim(((1, ()),), (Cut("b", True), Cut("a", True))),)),
    ({"tp": 2}, (Dim(((3, ()), (4, ("tp",)), (2, ()))),)),
    ({"fsdp": 2, "tp": 2}, (Dim(((3, ()), (4, ("tp",)), (2, ())), (Cut("fsdp"),)),)),
    ({"fsdp": 4, "tp": 2}, (Dim(((3, ()), (4, ("tp",)), (2, ())), (Cut("fsdp"),)), Dim(((5, ()),)))),
    ({"a": 2, "b": 2}, (Dim(((4, ("a",)),)), Dim(((4, ("b",)),)))),
    ({"a": 2, "b": 2}, (Dim(((50257, ()),), (Cut("b", True),)), Dim(((2, ("a",)),)))),
)
SHAPES = ([[8], [6]], [[12]], [[2, 6], [4]], [[3, 4, 2]], [[5], [8]], [[24], [1]])

SQUARE = 8192 * 8192 * 4
CLASSIC = (
    ("whole and rows to columns", "[8192/b 8192] => [8192 8192/a/b]", 0.0137),
    ("rows to rows, other order", "[8192/b 8192] => [8192/a/b 8192]", 0.0156),
    ("rows joined over the outer axis", "[8192/a/b 8192] => [8192/b 8192]", 0.125),
    ("rows from one axis to the other", "[8192/a 8192] => [8192/b 8192]", 0.125),
    ("pending and rows to whole", "[8192/b 8192]{+a} => [8192 8192]", 1.094),
    ("pending twice to whole", "[8192 8192]{+a, +b} => [8192 8192]", 1.969),
    ("rows to columns over both", "[8192/a/b 8192] => [8192 8192/a/b]", 0.0154),
    ("rows and columns swapped", "[8192/a 8192/b] => [8192/b 8192/a]", 0.0156),
)


def layouts() -> list[dict[str, Any]]:
    found: dict[tuple[str, str], dict[str, Any]] = {}
    draw = random.Random(1)
    drawn = [(axes, reference.draw(draw, shape, axes, uneven=True)) for axes in MESHES for shape in SHAPES * 2]
    for axes, dims in [*HAND, *drawn]:
        mesh, spec = reference.mesh_text(axes), reference.spec_text(dims)
        found.setdefault((mesh, spec), {"mesh": mesh, "spec": spec, "blocks": reference.blocks(dims, axes)})
    return list(found.values())


def transitions() -> list[dict[str, Any]]:
    found = [
        {
            "name": name,
            "mesh": "a:8 * b:8",
            "change": f"f32{change}",
            "bytes_received_at_most": int((share + 5e-4 * (share >= 1) + 5e-5) * SQUARE),
        }
        for name, change, share in CLASSIC
    ]
    found.append(
        {
            "name": "an axis of one rank",
            "mesh": "a:1 * b:4",
            "change": "f32[8/a 8] => [8 8]",
            "bytes_received_at_most": 0,
            "seconds_at_most": 0,
        }
    )
    draw = random.Random(2)
    for axes in (*MESHES[:4], {"a": 4, "b": 2}):
        for shape in SHAPES * 3:
            large = [[n * 512 if i == 0 else n for i, n in enumerate(factors)] for factors in shape]
            source, target = (reference.draw(draw, large, axes, uneven=False) for _ in range(2))
            if source != target:
                found.append(_drawn(source, target, axes))
    return [*{case["change"] + case["mesh"]: case for case in found}.values()]


def _drawn(source: tuple[Dim, ...], target: tuple[Dim, ...], axes: Sizes) -> dict[str, Any]:
    from tests.spec.examples import mesh_of, plan_of

    mesh = reference.mesh_text(axes)
    change = f"f32{reference.spec_text(source)} => {reference.spec_text(target)}"
    case = {
        "name": f"{change} on {mesh}",
        "mesh": mesh,
        "change": change,
        "bytes_received_at_least": reference.missing(source, target, axes) * 4,
    }
    plan = plan_of(change, mesh_of(mesh))
    if plan.gap == 0:
        case["seconds_at_most"] = plan.seconds
    return case


def text(cases: list[dict[str, Any]]) -> str:
    """One case a line."""
    return "[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n"


if __name__ == "__main__":
    (SUITE / "layouts.json").write_text(text(layouts()), encoding="utf-8")
    (SUITE / "transitions.json").write_text(text(transitions()), encoding="utf-8")
