"""Pictures of layouts and plans as SVG, and the HTML page around them; plain text, no library."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from attrs import frozen

from shardlang.layout import Layout
from shardlang.plan.plan import Plan
from shardlang.plan.steps import Step
from shardlang.report.picture import Picture, picture, ranks_text
from shardlang.report.plan import duration, size

SIDE, LEAST, GAP = 260.0, 60.0, 14.0
"""Pixels of the longer side of a tensor, of the shorter one at least, and between drawings."""
FONT = "font-family='DejaVu Sans Mono,Menlo,Consolas,monospace'"
INK, DIM = "#1d2433", "#6a7285"


@frozen
class Drawing:
    """SVG elements in their own coordinates, and the room they take in pixels."""

    body: str
    width: float
    height: float


def svg(drawing: Drawing) -> str:
    """The SVG document of a drawing, without a newline at the end."""
    width, height = f"{drawing.width:.0f}", f"{drawing.height:.0f}"
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{height}'"
        f" viewBox='0 0 {width} {height}' {FONT}>"
        f"<rect width='100%' height='100%' fill='#ffffff'/>{drawing.body}</svg>"
    )


def layout_svg(layout: Layout) -> str:
    """Who holds what, as an SVG document."""
    return svg(layout_drawing(layout))


def plan_svg(plan: Plan) -> str:
    """The states of a plan, as an SVG document."""
    return svg(plan_drawing(plan))


def page(title: str, sections: Iterable[tuple[str, str, Sequence[Sequence[str]]]]) -> str:
    """An HTML page: for each section a heading, an SVG, and a table whose first row is its head."""
    body = []
    for heading, picture_of, table in sections:
        head, *rows = table or [()]
        cells = "".join(f"<th>{escape(c)}</th>" for c in head)
        lines = "".join("<tr>" + "".join(f"<td>{escape(c)}</td>" for c in row) + "</tr>" for row in rows)
        grid = f"<table><thead><tr>{cells}</tr></thead><tbody>{lines}</tbody></table>" if rows else ""
        drawn = f"<div class='picture'>{picture_of}</div>" if picture_of else ""
        body.append(f"<section><h2>{escape(heading)}</h2>{drawn}{grid}</section>")
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; color: {INK}; margin: 2rem auto; max-width: 75rem; padding: 0 1rem; }}
h1 {{ font-size: 1.3rem; }}
h2 {{ font: 600 1rem ui-monospace, Menlo, Consolas, monospace; }}
.picture {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font: 13px ui-monospace, Menlo, Consolas, monospace; margin: .5rem 0 2rem; }}
th, td {{ text-align: left; padding: .15rem .9rem .15rem 0; border-bottom: 1px solid #e3e6ec; }}
th {{ color: {DIM}; font-weight: 500; }}
</style></head><body><h1>{escape(title)}</h1>
{"".join(body)}
</body></html>
"""


def beside(drawings: Sequence[Drawing]) -> Drawing:
    """Drawings from left to right."""
    parts, x = [], 0.0
    for drawing in drawings:
        parts.append(f"<g transform='translate({x:.1f} 0)'>{drawing.body}</g>")
        x += drawing.width + GAP
    return Drawing("".join(parts), max(x - GAP, 0.0), max((d.height for d in drawings), default=0.0))


def below(drawings: Sequence[Drawing]) -> Drawing:
    """Drawings from top to bottom."""
    parts, y = [], 0.0
    for drawing in drawings:
        parts.append(f"<g transform='translate(0 {y:.1f})'>{drawing.body}</g>")
        y += drawing.height + GAP
    return Drawing("".join(parts), max((d.width for d in drawings), default=0.0), max(y - GAP, 0.0))


def layout_drawing(layout: Layout, name: str = "") -> Drawing:
    """Who holds what: the tensor to scale, each cell in the colours of its holders."""
    return _named(_tensor(layout), name)


def plan_drawing(plan: Plan, name: str = "") -> Drawing:
    """The states of a plan from left to right, with its steps between them."""
    states = [_tensor(plan.source)]
    for step in plan.steps:
        states += [_arrow(step), _tensor(step.target)]
    return _named(beside(states), name)


def _named(drawing: Drawing, name: str) -> Drawing:
    if not name:
        return drawing
    head = _text(10, 20, name, 14, "start", INK, " font-weight='700'")
    return below([Drawing(head, 8.6 * len(name) + 20, 14), drawing])


def _arrow(step: Step) -> Drawing:
    """A step: its kind and axes over an arrow, what it moves and how long under it."""
    over = [step.kind, "/".join(step.axes)]
    under = [size(step.bytes_received), duration(step.time)] if step.bytes_received else []
    wide, middle = max(7.4 * max(map(len, over + under)), 60.0), 112.0
    stroke = f"fill='none' stroke='{INK}' stroke-width='1.5'"
    parts = [f"<path d='M0 {middle}h{wide:.1f}m-7 -5l7 5l-7 5' {stroke}/>"]
    parts.append(_text(wide / 2, middle - 25, over[0], 12, "middle", INK, " font-weight='600'"))
    parts.append(_text(wide / 2, middle - 10, over[1], 12, "middle", INK))
    parts += [_text(wide / 2, middle + 18 + 15 * i, line, 12, "middle", DIM) for i, line in enumerate(under)]
    return Drawing("".join(parts), wide, middle + 40)


def _tensor(layout: Layout) -> Drawing:
    """One tensor: its spec, what is owed, and the grid."""
    grid = picture(layout)
    title = str(layout)
    parts = [_text(10, 22, title, 13, "start", INK, " font-weight='600'")]
    owed = layout.owed()
    says = "each rank holds a part: " + ", ".join(f"{p.op} over {p.axis}" for p in owed) if owed else ""
    if says:
        parts.append(_text(10, 38, says, 11, "start", DIM))
    top, left = 62.0, 10.0
    room = max(7.9 * len(title), 6.7 * len(says)) + 20
    if grid is None:
        parts.append(
            _text(left, top, f"{layout.mesh.size} ranks, {layout.block_numel()} elements each", 12, "start", DIM)
        )
        return Drawing("".join(parts), max(room, 260.0), 90.0)
    widths, heights = _scaled(grid)
    if len(heights) > 1:
        left += 7 * max(len(r) for r in grid.rows) + 6
    at_y = top
    for name, height, row in zip(grid.rows, heights, grid.cells, strict=True):
        if len(heights) > 1:
            parts.append(_text(left - 5, at_y + height / 2 + 4, name, 10.5, "end", DIM))
        at_x = left
        for width, holders in zip(widths, row, strict=True):
            parts.append(_cell(at_x, at_y, width, height, holders, layout, bool(owed)))
            at_x += width
        at_y += height
    if len(widths) > 1:
        at_x = left
        fits = all(6.4 * len(name) <= width + 2 for name, width in zip(grid.columns, widths, strict=True))
        for name, width in zip(grid.columns, widths, strict=True):
            if fits:
                parts.append(_text(at_x + width / 2, top - 6, name, 10.5, "middle", DIM))
            at_x += width
    return Drawing("".join(parts), max(left + sum(widths) + 10, room), at_y + 14)


def _scaled(grid: Picture) -> tuple[list[float], list[float]]:
    """Pixels of columns and rows: the tensor to scale, within limits, and no cell too small to see."""
    tall, wide = max(1, sum(grid.heights)), max(1, sum(grid.widths))
    longer = max(tall, wide)
    width, height = max(LEAST, SIDE * wide / longer), max(LEAST, SIDE * tall / longer)
    columns = [max(26.0, width * n / wide) for n in grid.widths]
    rows = [max(20.0, height * n / tall) for n in grid.heights]
    return columns, rows


def _cell(x: float, y: float, width: float, height: float, holders: tuple[int, ...], layout: Layout, part: bool) -> str:
    """One cell in stripes of its holders' colours, with their ranks."""
    label = ranks_text(holders)
    stripes = []
    count = max(1, len(holders))
    for i, rank in enumerate(holders):
        fill = _colour(rank - layout.mesh.first_rank, layout.mesh.size)
        stripes.append(_rect(x + width * i / count, y, width / count, height, f"fill='{fill}'"))
    dash = " stroke-dasharray='4 3'" if part else ""
    frame = _rect(x, y, width, height, f"fill='none' stroke='{INK}' stroke-width='1'{dash}")
    room = int((width - 4) / 6.6)
    shown = label if len(label) <= room else f"{len(holders)} ranks"
    text = ""
    if len(shown) <= room and height >= 14:
        text = _text(x + width / 2, y + height / 2 + 4, shown, 11, "middle", INK)
    return f"<g><title>ranks {label or 'none'}</title>{''.join(stripes)}{frame}{text}</g>"


def _colour(index: int, count: int) -> str:
    """A light colour of a rank; neighbours differ in hue, and beyond a dozen in lightness too."""
    hue = 360 * index / max(count, 1)
    light = 80 if index % 2 == 0 else 72
    return f"hsl({hue:.0f} 62% {light}%)" if count > 1 else "#dfe6f2"


def _rect(x: float, y: float, width: float, height: float, look: str) -> str:
    return f"<rect x='{x:.2f}' y='{y:.2f}' width='{width:.2f}' height='{height:.2f}' {look}/>"


def _text(x: float, y: float, text: str, points: float, anchor: str, fill: str, more: str = "") -> str:
    look = f"font-size='{points}' text-anchor='{anchor}' fill='{fill}'{more}"
    return f"<text x='{x:.1f}' y='{y:.1f}' {look}>{escape(text)}</text>"
