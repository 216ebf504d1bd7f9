"""``make bench``: each module here that has ``rows()`` gives (what, figure, bound) lines; names choose some."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

from rich.console import Console
from rich.table import Table


def main(chosen: list[str]) -> None:
    folder = Path(__file__).parent
    table = Table()
    for column in ("bench", "what", "figure", "bound"):
        table.add_column(column)
    for path in sorted(folder.glob("*.py")):
        if path.stem.startswith("__") or (chosen and path.stem not in chosen):
            continue
        rows = getattr(import_module(f"tests.bench.{path.stem}"), "rows", None)
        for what, figure, bound in rows() if rows is not None else ():
            table.add_row(path.stem, what, figure, bound)
    Console(width=140).print(table)


if __name__ == "__main__":
    main(sys.argv[1:])
