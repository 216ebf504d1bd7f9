"""HTML pages on one layout or one plan."""

from __future__ import annotations

from shardlang.layout import Layout
from shardlang.plan.plan import Plan
from shardlang.report.drawing import layout_svg, page, plan_svg
from shardlang.report.plan import duration, size


def layout_page(layout: Layout, title: str) -> str:
    """A page on one layout: the picture, and every rank's runs."""
    return page(title, [(str(layout), layout_svg(layout), rank_table(layout))])


def plan_page(plan: Plan, title: str) -> str:
    """A page on one plan: its states, and its steps."""
    head = ("step", "axes", "layout after it", "received", "sent", "time")
    rows = [
        (s.kind, "/".join(s.axes), str(s.target), size(s.bytes_received), size(s.bytes_sent), duration(s.time))
        for s in plan.steps
    ]
    heading = f"{plan.dtype}{plan.source} => {plan.target} on {plan.source.mesh}"
    return page(title, [(heading, plan_svg(plan), [head, *rows])])


def rank_table(layout: Layout, most: int = 256, shown: range | None = None, hint: str = "") -> list[tuple[str, ...]]:
    """Rank, coordinates, local shape, and the indices of each dim: of ``shown``, or of the first ranks and a line that
    says how many more there are and (``hint``) how to see them."""
    mesh = layout.mesh
    rows: list[tuple[str, ...]] = [("rank", "at", "local shape", *(f"dim {d}" for d in range(len(layout.shape))))]
    for rank in mesh.ranks[:most] if shown is None else shown:
        at = " ".join(f"{a.name}={mesh.coordinate(rank, a.name)}" for a in mesh.axes)
        shape = "x".join(map(str, layout.local_shape(rank))) or "scalar"
        runs = [
            " ".join(f"{a}:{b}" for a, b in r[:6]) + (" ..." if len(r) > 6 else "") or "-" for r in layout.runs(rank)
        ]
        rows.append((str(rank), at, shape, *runs))
    if shown is None and mesh.size > most:
        rows.append((f"and {mesh.size - most:,} more{hint}", *[""] * (len(rows[0]) - 1)))
    return rows
