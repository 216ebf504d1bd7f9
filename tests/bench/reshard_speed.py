"""The 58 transitions of a 2048 x 2048 float32 on (2, 2) that move something, in pairs with DTensor.redistribute.

Four ranks on gloo, in turn within one run; beside it DTensor on itself. Pairs below 0.9 are timed again, 101 times.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import shardlang as sl
from shardlang.lower.placements import layout_of, mesh_of
from shardlang.plan.search import plan_transition
from tests.world import World, torch_mesh

SIZE = 2048
ROUNDS = 9


def rows() -> Iterator[tuple[str, str, str]]:
    with World(4) as world:
        found = world.run(measure, timeout=600)[0]
        slow = [pair for pair, ours, theirs, _ in found if theirs / ours < 0.9]
        again = world.run(measure, slow, 101, timeout=600)[0] if slow else []
    ratios = [theirs / ours for _, ours, theirs, _ in found]
    nulls = [null / theirs for _, _, theirs, null in found]
    stay = [pair for pair, ours, theirs, _ in again if theirs / ours < 0.9]
    yield "transitions that move something", str(len(found)), "58"
    yield "times as fast as DTensor, geometric mean", f"{mean(ratios):.2f} (DTensor on itself {mean(nulls):.2f})", "2.5"
    yield "below 0.9, and still so after 101 more", f"{len(slow)}, {len(stay)}", "0 stay"


def mean(ratios: list[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def pairs() -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    ways = list(product(["R", "S0", "S1"], repeat=2))
    return [(a, b) for a, b in product(ways, ways) if a != b]


def placements(names: tuple[str, ...]) -> list[Any]:
    return [Replicate() if n == "R" else Shard(int(n[1])) for n in names]


def measure(chosen: list[Any] | None = None, rounds: int = ROUNDS) -> list[tuple[Any, float, float, float]]:
    """On a rank: for each pair, seconds of ours, DTensor's, and DTensor's once more."""
    mesh = torch_mesh((2, 2), ("a", "b"))
    value = torch.arange(SIZE * SIZE, dtype=torch.float32).view(SIZE, SIZE)
    found = []
    for pair in pairs() if chosen is None else [(tuple(a), tuple(b)) for a, b in chosen]:
        x = distribute_tensor(value, mesh, placements(pair[0]))
        start, target = (layout_of(mesh_of(mesh), tuple(placements(names)), (SIZE, SIZE)) for names in pair)
        if plan_transition(start, target).bytes_received == 0:
            continue

        def ours(x: Any = x, target: Any = target) -> Any:
            return sl.reshard(x, target)

        def theirs(x: Any = x, names: Any = pair[1]) -> Any:
            return x.redistribute(mesh, placements(names))

        assert torch.equal(ours().to_local(), theirs().to_local())
        found.append((pair, *in_turn([ours, theirs, theirs], rounds)))
    return found


def in_turn(calls: list[Callable[[], Any]], rounds: int) -> list[float]:
    """Median seconds of each call until all ranks are done with it; the calls take turns, in a rotating order."""
    times: list[list[float]] = [[] for _ in calls]
    for turn in range(rounds + 1):
        for k in range(len(calls)):
            index = (turn + k) % len(calls)
            dist.barrier()
            start = time.perf_counter()
            calls[index]()
            dist.barrier()
            if turn:
                times[index].append(time.perf_counter() - start)
    return [statistics.median(t) for t in times]
