"""Who holds what, as a grid: the tensor cut at every boundary of any rank's block, and the holders of each cell."""

from __future__ import annotations

import math
from itertools import pairwise, product

from attrs import frozen

from shardlang.layout import Layout
from shardlang.plan.certificate import formulas

RANKS, CELLS = 64, 24
"""Beyond so many ranks, or cells along a side, a picture says less than the spec."""


@frozen
class Picture:
    """``cells[row][column]`` are the ranks that hold a cell, ascending.

    Rows run over the first dim, columns over the second (of more than two dims, over the first that is cut and the
    others that are); ``rows`` and ``columns`` name the index ranges.
    """

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: tuple[tuple[tuple[int, ...], ...], ...]
    heights: tuple[int, ...]
    widths: tuple[int, ...]
    dims: tuple[int, ...]


def picture(layout: Layout) -> Picture | None:
    """The grid of a layout; ``None`` where it would be too large to read."""
    mesh = layout.mesh
    if mesh.size > RANKS:
        return None
    held = {rank: layout.runs(rank) for rank in mesh.ranks}
    edges: list[list[int]] = []
    for d, n in enumerate(layout.shape):
        marks = {0, n, *(x for runs in held.values() for run in runs[d] for x in run)}
        edges.append(sorted(marks))
    pieces = [list(pairwise(e)) or [(0, 0)] for e in edges]
    cut = [d for d, p in enumerate(pieces) if len(p) > 1] if len(pieces) > 2 else list(range(len(pieces)))
    first, rest = cut[:1], cut[1:]
    rows = pieces[first[0]] if first else [(0, 1)]
    columns = list(product(*(pieces[d] for d in rest)))
    if len(rows) > CELLS or len(columns) > CELLS:
        return None

    def holders(row: tuple[int, int], column: tuple[tuple[int, int], ...]) -> tuple[int, ...]:
        box = dict(zip([*first, *rest], [*([row] if first else []), *column], strict=True))
        return tuple(
            rank
            for rank, runs in held.items()
            if all(any(a <= lo and hi <= b for a, b in runs[d]) for d, (lo, hi) in box.items() if hi > lo)
        )

    return Picture(
        tuple(_range(r) for r in rows) if first else ("",),
        tuple(" ".join(_range(c) for c in column) for column in columns),
        tuple(tuple(holders(row, column) for column in columns) for row in rows),
        tuple(b - a for a, b in rows),
        tuple(math.prod(b - a for a, b in column) for column in columns),
        tuple(cut),
    )


def ranks_text(ranks: tuple[int, ...]) -> str:
    """``0-3 6``: ranks with neighbours joined."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and runs[-1][1] == rank - 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return " ".join(str(a) if a == b else f"{a}-{b}" if b > a + 1 else f"{a} {b}" for a, b in runs)


def picture_text(layout: Layout) -> list[str]:
    """The grid in characters, one line a string."""
    grid = picture(layout)
    if grid is None:
        return [f"dim {d}: {text}" for d, text in enumerate(formulas(layout))]
    texts = [[ranks_text(c) or "-" for c in row] for row in grid.cells]
    heads = list(grid.columns) if len(grid.columns) > 1 else [""]
    width = max(3, *(len(t) for row in texts for t in row), *(len(h) for h in heads))
    side = max(len(r) for r in grid.rows) if len(grid.rows) > 1 else 0
    bar = " " * (side + 1) + "+" + ("-" * (width + 2) + "+") * len(heads)
    lines = []
    if any(heads):
        lines.append(" " * (side + 1) + " " + " ".join(h.center(width + 2) for h in heads))
    lines.append(bar)
    for name, row in zip(grid.rows, texts, strict=True):
        label = name.rjust(side) if side else ""
        lines.append(label + " |" + "|".join(t.center(width + 2) for t in row) + "|")
        lines.append(bar)
    return [line.rstrip() for line in lines]


def _range(run: tuple[int, int]) -> str:
    return f"{run[0]}:{run[1]}"
