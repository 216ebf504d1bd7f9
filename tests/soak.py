"""``make soak``: reshards in one world after another under random faults: no hang, no wrong value, no group left over.

    python -m tests.soak [WORLDS] [SEED]

In each world 20 random reshards run; in four of five worlds one rank is killed, raises, stays away, or asks for
something else, at a random point. Every other rank must then end within seconds, with a diagnostic that says so, and
hold no group, no connection and no tensor more than before.
"""

from __future__ import annotations

import gc
import os
import random
import resource
import signal
import sys
import time

import torch
import torch.distributed as dist

from shardlang.diagnostics import ShardlangError
from shardlang.layout import Cut, Dim, Factor, Layout
from shardlang.mesh import Axis, Mesh
from shardlang.plan.search import plan_transition
from shardlang.runtime import distributed, groups, simulate
from tests.runtime.transitions import same, value_of
from tests.world import Lost, Raised, World

RESHARDS = 20
WAIT = 3.0
"""Seconds that a rank may keep the others waiting."""
LATE = 3 * WAIT + 10
"""Seconds in which a rank must have told of a fault, on a busy machine."""
LEFT = 1 << 20
"""Bytes of tensors that may be kept: what plans that are ready look up."""
FAULTS = ("none", "killed", "raised", "absent", "other")
MESHES = (Mesh("m", (Axis("a", 2), Axis("b", 2))), Mesh("m", (Axis("a", 4),)))


def work(seed: int) -> tuple[int, str, float, tuple[int, int, int]]:
    """On a rank: how many reshards were right, how it ended, the seconds of the end, and what is left of it."""
    draw = random.Random(seed)
    fault, at, who = FAULTS[seed % len(FAULTS)], draw.randrange(RESHARDS), draw.randrange(4)
    # Where nothing is to fail, nothing may, however busy the machine is.
    os.environ["SHARDLANG_TIMEOUT"] = str(WAIT * 10 if fault == "none" else WAIT)
    rank = dist.get_rank()
    distributed.run_plan(plan_transition(*FIRST), torch.ones(2))  # the watcher and its connection are there from now on
    dist.barrier()
    groups.release()
    before = held()
    right, start = 0, time.monotonic()
    told = "done"
    try:
        for i in range(RESHARDS):
            source, target = transition(draw)
            struck = i == at and rank == who
            if struck and fault == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if struck and fault == "raised":
                raise ValueError("a fault of the user's own")
            if struck and fault == "absent":
                time.sleep(WAIT * 4)
                return right, "absent", 0.0, (0, 0, 0)
            if struck and fault == "other":
                target = Layout.whole(target.mesh, (*target.shape, 1))
                source = Layout.whole(target.mesh, (*source.shape, 1))
            value = value_of(source.shape)
            start = time.monotonic()
            block = simulate.shard(value, source, seed=i)[rank]
            result = distributed.run_plan(plan_transition(source, target), block)
            parts = simulate.shard(value, source, seed=i)
            expected = simulate.run_plan(plan_transition(source, target), parts)[rank]
            if not same(result, expected):
                return right, "wrong value", 0.0, (0, 0, 0)
            right += 1
    except ShardlangError as error:
        told = error.codes[0]
    seconds = time.monotonic() - start
    if told == "done":
        dist.barrier()
        groups.release()
    value = block = result = parts = expected = None
    after = held()
    return right, told, seconds, (after[0] - before[0], after[1] - before[1], after[2] - before[2])


FIRST = tuple(
    Layout(Mesh("m", (Axis("a", 4),)), (Dim((Factor(8),), cuts),)) for cuts in ((Cut("a"),), ())
)  # fmt: skip


def held() -> tuple[int, int, int]:
    """What this process holds: process groups of the executor, open files and connections, bytes of tensors."""
    gc.collect()
    tensors = [o for o in gc.get_objects() if issubclass(type(o), torch.Tensor)]
    return groups.open_groups(), len(os.listdir("/proc/self/fd")), sum(t.nbytes for t in tensors)


def transition(draw: random.Random) -> tuple[Layout, Layout]:
    """Two layouts of one tensor whose reductions go together."""
    from tests.runtime.test_laws import SHAPES, commutes, layout_at, placements

    mesh, shape = draw.choice(MESHES), draw.choice(SHAPES)
    ways = [w for w in placements(tuple(a.size for a in mesh.axes), shape) if commutes(w)]
    source, target = (layout_at(mesh, shape, draw.choice(ways)) for _ in range(2))
    return source, target


def one_world(seed: int) -> str:
    """Runs a world; says what was wrong, or nothing."""
    fault = FAULTS[seed % len(FAULTS)]
    start = time.monotonic()
    with World(4, group_timeout=20) as world:
        answers = world.run(work, seed, timeout=40 + WAIT * 10, expect_death=True)
    for rank, answer in enumerate(answers):
        if isinstance(answer, Lost):
            if fault not in ("killed", "absent"):
                return f"rank {rank} was lost: {answer.reason}"
        elif isinstance(answer, Raised):
            if fault != "raised" or answer.type_name != "ValueError":
                return f"rank {rank} raised {answer.text}"
        elif fault == "none" and answer[:2] != (RESHARDS, "done"):
            return f"rank {rank} ended with {answer} without a fault"
        elif answer[1] not in ("done", "SL0701", "SL0702", "absent"):
            return f"rank {rank} ended with {answer}"
        elif answer[2] > LATE:
            return f"rank {rank} ended late: {answer}"
        elif answer[3][0] or answer[3][1] > 0 or answer[3][2] > LEFT:
            return f"rank {rank} holds more groups, connections or bytes than before: {answer}"
    if time.monotonic() - start > 60:
        return "the world took more than a minute"
    return ""


def main(worlds: int, first: int) -> int:
    torch.set_num_threads(1)
    faults = 0
    for seed in range(first, first + worlds):
        start = time.monotonic()
        wrong = one_world(seed)
        faults += bool(wrong)
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
        told = wrong or "right"
        print(f"world {seed}: {FAULTS[seed % len(FAULTS)]}: {told} ({time.monotonic() - start:.1f} s, {memory} MiB)")
    print(f"{worlds} worlds, {faults} wrong")
    return 1 if faults else 0


if __name__ == "__main__":
    given = [int(a) for a in sys.argv[1:]]
    sys.exit(main(given[0] if given else 50, given[1] if len(given) > 1 else 0))
