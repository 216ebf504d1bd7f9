"""Plans are never above what DTensor's planners do under the cap. In a process of its own: it needs a fake world."""

from __future__ import annotations

import subprocess
import sys

import pytest

ASK = """
import sys
from random import Random
from shardlang.plan.search import plan_transition
from shardlang.report.compare import rival
from tests.bench.planner import placed
from tests.plan.drawn import mesh_of

sizes = tuple(map(int, sys.argv[1].split("x")))
pairs = list(placed(mesh_of(*sizes), 2, pending=True))
for source, target in Random(1).sample(pairs, int(sys.argv[2])):
    for objective in ("time", "bytes"):
        plan = plan_transition(source, target, objective=objective)
        for least_cost in (False, True):
            other = rival(plan, least_cost=least_cost)
            if other is None or other.largest > max(plan.ends_bytes, 1 << 20):
                continue
            slack = len(other.steps) + len(plan.steps)
            cost = other.time + slack if objective == "time" else other.received
            assert plan.cost <= cost, (str(source), str(target), objective, least_cost, plan.cost, cost)
print("held")
"""


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("sizes", "count"),
    [
        ("2x2", "60"),
        ("2x2x2", "40"),
        ("8x8", "40"),
        # All pairs of two axes, and many of three.
        pytest.param("2x2", "240", marks=pytest.mark.nightly),
        pytest.param("2x4", "240", marks=pytest.mark.nightly),
        pytest.param("2x2x2", "400", marks=pytest.mark.nightly),
    ],
)
def test_never_above_dtensor(sizes: str, count: str) -> None:
    done = subprocess.run([sys.executable, "-c", ASK, sizes, count], capture_output=True, text=True, timeout=880)
    assert done.stdout == "held\n", done.stderr[-2000:]
