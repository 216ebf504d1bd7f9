"""The planner beside DTensor's two: bytes over the information bound, time, largest array; and how long planning takes.

``python -m tests.bench planner`` prints the rows; ``python -m tests.bench.planner`` also writes ``RESULTS.md``.
"""

from __future__ import annotations

import gc
import platform
import sys
from collections.abc import Callable, Iterator
from datetime import date
from importlib.metadata import version
from itertools import product
from os import cpu_count, getloadavg
from pathlib import Path
from random import Random
from time import process_time

from shardlang import layout as layouts
from shardlang.layout import Dim, Factor, Layout, Pending
from shardlang.mesh import Mesh
from shardlang.plan import astar
from shardlang.plan.bundle import plan_bundle
from shardlang.plan.plan import Plan
from shardlang.plan.search import plan_transition
from tests.plan.drawn import FAST, NEAR, SLOW, any_layout, layout_of, mesh_of

RESULTS = Path(__file__).with_name("RESULTS.md")
Row = tuple[str, str, str]
LINKS = {"1 link": (SLOW,), "2 links": (SLOW, FAST), "3 links": (SLOW, FAST, NEAR)}
SPEED = [
    ((8, 8), 2, "1 link", 1, 10),
    ((8, 8), 2, "2 links", 1, 10),
    ((2, 2, 2), 2, "2 links", 1, 10),
    ((2, 8, 8), 2, "1 link", 1, 10),
    ((2, 8, 8), 3, "2 links", 1, 10),
    ((2, 2, 2, 2, 2), 2, "1 link", 50, 50),
    ((2, 2, 2, 2, 2), 2, "2 links", 50, 50),
    ((2, 8, 8, 8), 4, "3 links", 200, 200),
]


def placed(mesh: Mesh, dims: int, *, pending: bool) -> Iterator[tuple[Layout, Layout]]:
    """All pairs of layouts that placements can say: axes in the mesh's order."""
    places = dims + 1 + pending
    found = []
    for where in product(range(places), repeat=len(mesh.axes)):
        cuts = [tuple(a.name for a, w in zip(mesh.axes, where, strict=True) if w == d) for d in range(dims)]
        owed = tuple(Pending(a.name, "sum") for a, w in zip(mesh.axes, where, strict=True) if w == dims + 1)
        found.append(Layout(mesh, tuple(Dim((Factor(8192, c),)) for c in cuts), owed))
    return ((a, b) for a in found for b in found if a != b)


def beside(sizes: tuple[int, ...], *, pending: bool, sample: int) -> dict[str, tuple[float, float, float]]:
    """(mean, worst) of received over the bound, and the worst largest array, of each planner. Imports torch."""
    from shardlang.report.compare import rival

    mesh = mesh_of(*sizes)
    pairs = list(placed(mesh, 2, pending=pending))
    pairs = Random(0).sample(pairs, min(sample, len(pairs)))
    found: dict[str, list[tuple[float, float]]] = {"shardlang": [], "DTensor default": [], "DTensor min-cost": []}
    for source, target in pairs:
        plan = plan_transition(source, target, objective="bytes")
        if not plan.bytes_received:
            continue
        bound = plan.bytes_received if pending else plan.bytes_bound
        found["shardlang"].append((plan.bytes_received / bound, plan.largest_array_ratio))
        for name, least in (("DTensor default", False), ("DTensor min-cost", True)):
            other = rival(plan, least_cost=least)
            assert other is not None
            found[name].append((other.received / bound, other.largest / plan.ends_bytes))
    return {
        name: (sum(r for r, _ in of) / len(of), max(r for r, _ in of), max(a for _, a in of))
        for name, of in found.items()
    }


def cold(sizes: tuple[int, ...], dims: int, links: str, *, pending: bool, count: int) -> tuple[list[float], list[Plan]]:
    """Seconds of processor time of plans nobody asked for before, ascending, and the plans."""
    random = Random(f"{sizes}{dims}{links}{pending}")
    seconds, plans = [], []
    # What torch has brought along for the rivals is not to be looked through while we plan.
    gc.collect()
    gc.freeze()
    for _ in range(count):
        given = sorted((random.choice(LINKS[links]) for _ in sizes), key=lambda x: x.bandwidth)
        mesh = mesh_of(*sizes, links=tuple(given))
        shape = (random.choice([1024, 8192]),) * dims
        source, target = (any_layout(random, mesh, shape, pending=pending) for _ in range(2))
        for cache in (plan_transition, astar.solve, layouts.canonical_dim):
            cache.cache_clear()
        start = process_time()
        plans.append(plan_transition(source, target))
        seconds.append(process_time() - start)
    return sorted(seconds), plans


def repeated() -> float:
    """Seconds to answer a question again."""
    mesh = mesh_of(2, 8, 8)
    source, target = layout_of(mesh, (8192, 8192), "ab", "c"), layout_of(mesh, (8192, 8192), "c", "ab")
    plan_transition(source, target)
    start = process_time()
    for _ in range(1000):
        plan_transition(source, target)
    return (process_time() - start) / 1000


def bundled() -> Iterator[tuple[Layout, Layout]]:
    """A model's 2,000 tensors, of 175 shapes."""
    mesh = mesh_of(2, 4)
    for i in range(2000):
        shape = (64 * (1 + i % 25), 64 * (1 + i % 7))
        yield layout_of(mesh, shape, "ab", ""), layout_of(mesh, shape, "a", "b")


def rows() -> Iterator[Row]:
    for sizes, sample in (((2, 2), 72), ((2, 2, 2, 2), 60)):
        for name, (mean, worst, array) in beside(sizes, pending=False, sample=sample).items():
            what = f"{'x'.join(map(str, sizes))}, nothing pending: {name}, received over bound, mean / worst"
            yield what, f"{mean:.2f} / {worst:.2f}", "1.00 / 1.00" if name == "shardlang" else ""
            yield (
                f"{what.split(', received')[0]}, largest array at worst",
                f"{array:.2f}x",
                ("1.00x" if name == "shardlang" else ""),
            )
    for name, (mean, worst, _) in beside((2, 2, 2), pending=True, sample=120).items():
        what = f"2x2x2, with pending: {name}, received over ours, mean / worst"
        yield what, f"{mean:.2f} / {worst:.2f}", ""
    together: dict[str, list[float]] = {"two and three axes": [], "five axes": [], "2x8x8x8, 4-D, 3 links": []}
    gaps_together: dict[str, list[float]] = {name: [] for name in together}
    for sizes, dims, links, median, late in SPEED:
        for pending in (False, True):
            seconds, plans = cold(sizes, dims, links, pending=pending, count=100)
            gaps = [p.gap for p in plans]
            among = [0.0 if p.complete_together else p.gap for p in plans]
            name = list(together)[max(0, len(sizes) - 3) and (1 if len(sizes) == 5 else 2)]
            together[name] += seconds
            gaps_together[name] += gaps
            what = f"{'x'.join(map(str, sizes))} {dims}-D {links}{', pending' if pending else ''}"
            figure = f"{seconds[50] * 1e3:.2f} / {seconds[98] * 1e3:.1f} / {seconds[-1] * 1e3:.1f} ms"
            yield f"{what}: planning cold, median / p99 / max", figure, f"{median} / {late} / 200 ms"
            yield (
                f"{what}: stated gap, median / mean",
                _spread(gaps),
                "0 / 2%",
            )
            if among != gaps:
                yield f"{what}: the same, among plans that keep digits together", _spread(among), "0 / 2%"
    for name, bound in zip(together, ("1 / 10", "- / 50", "- / -"), strict=True):
        seconds = sorted(together[name])
        late_one = seconds[len(seconds) * 99 // 100]
        figure = f"{seconds[len(seconds) // 2] * 1e3:.2f} / {late_one * 1e3:.1f} / {seconds[-1] * 1e3:.1f} ms"
        yield f"{name}, all of the above: planning cold, median / p99 / max", figure, f"{bound} / 200 ms"
        gaps = gaps_together[name]
        yield f"{name}, all of the above: stated gap, median / mean", _spread(gaps), "0 / 2%"
    bundle = [(a, b, "f32") for a, b in bundled()]
    start = process_time()
    made = plan_bundle(bundle)
    yield "a bundle of 2,000 tensors", f"{process_time() - start:.2f} s, {len(made.collectives)} collectives", "1 s"
    yield "a repeated question", f"{repeated() * 1e6:.1f} us", "20 us"


def _spread(gaps: list[float]) -> str:
    return f"{sorted(gaps)[len(gaps) // 2]:.1%} / {sum(gaps) / len(gaps):.2%}"


def main(write: Callable[[str], object]) -> None:
    lines = [f"| {what} | {figure} | {bound} |" for what, figure, bound in rows()]
    head = (
        f"Planner, {date.today()}: Python {platform.python_version()}, torch {version('torch')}, "
        f"numpy {version('numpy')}, {platform.machine()}, one core of a shared machine (load {getloadavg()[1]:.0f} on "
        f"{cpu_count()} cores); processor time."
    )
    text = RESULTS.read_text() if RESULTS.exists() else "# Results\n"
    before = text.split("\n## Planner\n")[0].rstrip()
    rest = text.split("\n## Planner\n")[1] if "\n## Planner\n" in text else ""
    after = rest[rest.index("\n## ") :] if "\n## " in rest else "\n"
    table = "\n".join(["| what | figure | target |", "|---|---|---|", *lines])
    write(f"{before}\n\n## Planner\n\n{head}\n\n{table}\n{after}")


if __name__ == "__main__":
    main(RESULTS.write_text)
    sys.stdout.write(RESULTS.read_text())
