"""A plan as text: its steps in a table, what they come to, and who holds what in each state."""

from __future__ import annotations

from shardlang.diagnostics.prose import plural
from shardlang.plan.plan import Plan, live_bytes
from shardlang.report.picture import picture_text


def plan_text(plan: Plan, *, pictures: bool = True) -> str:
    """The whole report, without a newline at the end."""
    lines = [f"{plan.dtype}{plan.source} => {plan.target}  on  {plan.source.mesh}", ""]
    if plan.target.mesh != plan.source.mesh:
        lines[0] += f"  to  {plan.target.mesh}"
    if plan.steps:
        lines += _table(plan)
    else:
        lines.append("nothing to do: both ends say the same of every rank")
    lines += ["", *_totals(plan)]
    if pictures:
        lines += ["", *_pictures(plan)]
    return "\n".join(line.rstrip() for line in lines)


def _table(plan: Plan) -> list[str]:
    head = ("", "step", "axes", "layout after it", "received", "sent", "time", "alive")
    rows = [("0", "source", "", str(plan.source), "", "", "", size(plan.source.block_numel() * plan.itemsize))]
    for i, s in enumerate(plan.steps, 1):
        kind = s.kind if s.op is None else f"{s.kind} {s.op}"
        if s.scale is not None:
            kind += f" {s.scale}"
        alive = size(live_bytes(s, plan.itemsize))
        moved = (size(s.bytes_received), size(s.bytes_sent), duration(s.time))
        rows.append((str(i), kind, "/".join(s.axes), str(s.target), *moved, alive))
    widths = [max(len(r[c]) for r in [head, *rows]) for c in range(len(head))]
    right = {4, 5, 6, 7}

    def line(row: tuple[str, ...]) -> str:
        cells = [t.rjust(w) if c in right else t.ljust(w) for c, (t, w) in enumerate(zip(row, widths, strict=True))]
        return "  ".join(cells)

    return [line(head), "-" * (sum(widths) + 2 * (len(widths) - 1)), *(line(r) for r in rows)]


def _totals(plan: Plan) -> list[str]:
    bound = f"at least {size(plan.bytes_bound)} by what ranks lack"
    if plan.bytes_bound and not (plan.source.owed() or plan.target.owed()):
        bound += f", {plan.bytes_received / plan.bytes_bound:.2f}x"
    known = "no plan is faster" if plan.objective == "time" else "no plan receives less"
    if plan.gap:
        known += f" by more than {max(plan.gap, 0.001):.1%}"
        if plan.complete_together:
            known += ", none at all that keeps digits together"
    over = "no cap" if plan.cap is None else f"cap {plan.cap:g}x"
    return [
        f"received  {size(plan.bytes_received)} ({bound})",
        f"sent      {size(plan.bytes_sent)}",
        f"time      {duration(plan.time)} in {plural(plan.collectives, 'collective')} ({known})",
        f"memory    {plan.largest_array_ratio:.2f}x of the larger end ({over}), {size(plan.live_peak_bytes)} alive",
        f"hash      {plan.hash}",
    ]


def _pictures(plan: Plan) -> list[str]:
    lines: list[str] = ["who holds what, by rank"]
    for i, layout in enumerate([plan.source, *(s.target for s in plan.steps)]):
        owed = ", each a part to be reduced" if layout.owed() else ""
        lines += ["", f"{i}  {layout}{owed}", *("   " + line for line in picture_text(layout))]
    return lines


def size(count: int) -> str:
    """``1.5 MiB``."""
    value, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]
    while value >= 1024 and len(units) > 1:
        value /= 1024
        units.pop(0)
    return f"{count} B" if units[0] == "B" else f"{value:.4g} {units[0]}"


def duration(picoseconds: int) -> str:
    """``12.5 us``."""
    for unit, length in (("s", 10**12), ("ms", 10**9), ("us", 10**6), ("ns", 10**3)):
        if picoseconds >= length:
            return f"{picoseconds / length:.4g} {unit}"
    return f"{picoseconds} ps"
