"""When something breaks: the same diagnostic everywhere, the step and the missing rank named, in seconds."""

from __future__ import annotations

import gc
import os
import signal
import time
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial

import shardlang as sl
from shardlang.lower import torch_private
from shardlang.runtime import groups, watch
from shardlang.runtime.embedding import embedding
from shardlang.runtime.rows import on_mesh
from tests import soak
from tests.world import Lost, Raised, World, torch_mesh


def disagree(kind: str) -> Any:
    mesh = torch_mesh((4,), ("tp",))
    odd = dist.get_rank() == 2
    # A size of its own: what was agreed on before in this world is not asked again.
    x = torch.ones(2, 44, dtype=torch.float64 if odd and kind == "dtype" else torch.float32)
    if odd and kind == "shape":
        x = torch.ones(3, 44)
    target = "[n d/tp]" if odd and kind == "spec" else "[n d]"
    try:
        sl.reshard(x, target, mesh, source="[n/tp d]")
    except sl.ShardlangError as error:
        return error.codes[0], error.diagnostics[0].message, error.diagnostics[0].notes
    return None


@pytest.mark.parametrize("kind", ["spec", "dtype", "shape"])
def test_ranks_that_differ_get_one_diagnostic_that_names_both_sides(world: World, kind: str) -> None:
    answers = world.run(disagree, kind)
    assert answers[0][:2] == ("SL0701", "rank 0 and rank 2 do not ask for the same transfer")
    assert answers == [answers[0]] * 4


def misfit() -> Any:
    mesh = torch_mesh((4,), ("tp",))
    rows = 1 if dist.get_rank() == 3 else 2
    try:
        sl.reshard(torch.ones(rows, 5), "[n d]", mesh, source="[n/tp d]", shape=(8, 5))
    except sl.ShardlangError as error:
        return error.codes[0], error.diagnostics[0].message
    return None


def test_a_block_of_the_wrong_size_is_told_on_all_ranks(world: World) -> None:
    answers = world.run(misfit)
    assert answers == [("SL0703", "rank 3 has a block of [1 5], where `[8/tp 5]` gives it [2 5]")] * 4


def on_another_device() -> list[str]:
    """Rank 1 comes with a block that is (as far as anybody can see) on a GPU, first time and later."""
    mesh = torch_mesh((4,), ("tp",))
    told = []
    for size in (5, 6, 6):
        if size == 6 and not told[1:]:
            sl.reshard(torch.ones(2, size), "[n d]", mesh, source="[n/tp d]")
        with FakeTensorMode() if dist.get_rank() == 1 else nullcontext():
            block = torch.ones(2, size, device="cuda" if dist.get_rank() == 1 else "cpu")
        try:
            sl.reshard(block, "[n d]", mesh, source="[n/tp d]", check=True)
        except sl.ShardlangError as error:
            told.append(f"{error.codes[0]} {error.diagnostics[0].message}")
    return told


def test_a_block_on_another_device_than_its_mesh_is_told_on_all_ranks(world: World) -> None:
    message = "SL0716 the block of `[8/tp {}]` that rank 1 has is on `cuda`, and its mesh on `cpu`"
    assert world.run(on_another_device) == [[message.format(n) for n in (5, 6, 6)]] * 4


def break_down(how: str) -> Any:
    """Rank 2 fails between two reshards (or never comes); the others are to say so."""
    os.environ["SHARDLANG_TIMEOUT"] = "3"
    mesh = torch_mesh((2, 2), ("a", "b"))
    x = sl.distribute(torch.arange(1 << 20).view(1024, 1024), "[n/a/b d]", mesh)
    sl.reshard(x, "[n d/a/b]")
    store: Any = torch_private.default_store()
    start = time.monotonic()
    try:
        for i in range(1000):
            if i == 3 and dist.get_rank() == 2:
                if how == "killed":
                    os.kill(os.getpid(), signal.SIGKILL)
                if how == "raised":
                    raise ValueError("the user's own fault")
                store.wait([f"told/{r}" for r in (0, 1, 3)], timedelta(seconds=60))
                os._exit(1)
            sl.reshard(x, "[n d/a/b]")
    except sl.ShardlangError as error:
        store.set(f"told/{dist.get_rank()}", "")
        d = error.diagnostics[0]
        return error.codes[0], d.message, d.notes[0], time.monotonic() - start
    return None


@pytest.mark.parametrize("how", ["killed", "raised", "absent"])
def test_a_rank_that_is_lost_is_named_with_the_step(how: str) -> None:
    with World(4) as world:
        answers = world.run(break_down, how, timeout=90, expect_death=True)
    assert isinstance(answers[2], Raised if how == "raised" else Lost)
    for rank in (0, 1, 3):
        code, message, note, seconds = answers[rank]
        assert (code, message) == ("SL0702", "rank 2 died or never came: `[1024/a/b 1024] => [1024 1024/a/b]`")
        assert note == "in step 1 of 1, all_to_all over `a/b`, among ranks 0, 1, 2 and 3"
        assert seconds < 40  # 7 on a quiet machine, and 60 where only the launch's own timeout ends a wait


WATCHED = {
    "a norm": "the norm of all gradients",
    "a mean": "the count of the whole batch, for a global mean",
    "a loss": "the largest logit of each prediction, in a cross entropy",
    "rows": "rows on their way over `tp`",
    "a function": "`[8 8]{+tp} => [8 8]`",
    "a count": "`[]{+tp} => []`",
    "indices": "`[8/tp] => [8]`",
}
"""What ranks do together outside of a reshard, and how a diagnostic names it."""


def lonely() -> Any:
    """Pairs of ranks, each about another thing, and of each the second one dies in its third round."""
    os.environ["SHARDLANG_TIMEOUT"] = "20"
    pairs = torch.arange(2 * len(WATCHED)).view(-1, 2)
    mesh = DeviceMesh("cpu", pairs, mesh_dim_names=("pair", "tp"))["tp"]
    how = list(WATCHED)[dist.get_rank() // 2]
    x = sl.distribute(torch.ones(8, 8), "[n d/tp]", mesh)
    parameter = torch.nn.Parameter(x)
    parameter.grad = x
    product = sl.sharded("(x: [n d/tp], w: [d/tp k]) -> [n k]", mesh)(lambda x, w: x @ w)
    count = DTensor.from_local(torch.ones(()), mesh, [Partial()])
    table = sl.distribute(torch.ones(8, 4), "[n/tp d]", mesh)
    indices = sl.distribute(torch.ones(8, dtype=torch.int64), "[n/tp]", mesh)
    do: dict[str, Any] = {
        "a norm": lambda: sl.clip_grad_norm_([parameter], 1.0),
        "a mean": lambda: sl.global_mean(torch.ones(()), 4, mesh),
        "a loss": lambda: sl.cross_entropy(x, torch.zeros(8, dtype=torch.int64)),
        "rows": lambda: sl.send_rows(torch.ones(4, 3), torch.arange(4), here=2, over="tp"),
        "a function": lambda: product(x, sl.distribute(torch.ones(8, 8), "[d/tp k]", mesh)),
        "a count": lambda: sl.global_mean(sl.distribute(torch.ones(()), "[]", mesh), count),
        "indices": lambda: embedding(indices, table),
    }
    start = time.monotonic()
    try:
        with on_mesh(mesh):
            for i in range(3):
                if i == 2 and dist.get_rank() % 2:
                    os.kill(os.getpid(), signal.SIGKILL)
                do[how]()
    except sl.ShardlangError as error:
        d = error.diagnostics[0]
        return error.codes[0], d.message, d.notes[0], time.monotonic() - start
    return None


def test_a_rank_that_dies_is_named_in_whatever_ranks_do_together() -> None:
    with World(2 * len(WATCHED)) as world:
        answers = world.run(lonely, timeout=120, expect_death=True)
    for i, what in enumerate(WATCHED.values()):
        assert isinstance(answers[2 * i + 1], Lost)
        code, message, note, seconds = answers[2 * i]
        assert (code, message) == ("SL0702", f"rank {2 * i + 1} died or never came: {what}")
        assert note.endswith(f"among ranks {2 * i} and {2 * i + 1}")
        assert seconds < 100


def out_of_step(how: str) -> Any:
    """Rank 2 does something that was agreed on before, while the others do something else."""
    watch.LATE = 1.0
    mesh = torch_mesh((4,), ("tp",))
    x = sl.distribute(torch.arange(48.0).view(8, 6), "[n/tp d]", mesh)
    large = sl.distribute(torch.ones(1024, 1024), "[n/tp d]", mesh)
    for y, spec in ((x, "[n d]"), (large, "[n d]"), (large, "[n d/tp]")):
        sl.reshard(y, spec)
    odd = dist.get_rank() == 2
    start = time.monotonic()
    try:
        if how == "an agreed plan beside a new one":
            sl.reshard(x, "[n d]" if odd else "[n d/~tp]")
        elif how == "two agreed plans of large blocks":
            sl.reshard(large, "[n d]" if odd else "[n d/tp]")
        elif how == "an agreed plan beside many new ones":
            sl.reshard(x, "[n d]") if odd else sl.reshard_many([x, x], ["[n d]", "[n d/~tp]"])
        elif how == "a tensor beside a look at copies":
            sl.reshard(x, "[n d]") if odd else sl.check_copies(x)
        else:
            sl.save({"w": x}, "/nowhere") if odd else sl.reshard(x, "[n d]")
    except sl.ShardlangError as error:
        d = error.diagnostics[0]
        return error.codes[0], d.message, d.notes, time.monotonic() - start
    return None


OUT_OF_STEP = {
    "an agreed plan beside a new one": ("float32 [8/tp 6] => [8 6/~tp], for the first time", "f32 [8/tp 6] => [8 6]"),
    "two agreed plans of large blocks": ("[1024/tp 1024] => [1024 1024/tp]", "[1024/tp 1024] => [1024 1024]"),
    "an agreed plan beside many new ones": ("2 tensors, the first float32 [8/tp 6] => [8 6]", "f32 [8/tp 6] => [8 6]"),
    "a tensor beside a look at copies": ("comparing the copies of a value in `[8/tp 6]`", "f32 [8/tp 6] => [8 6]"),
    "a save beside a tensor": ("f32 [8/tp 6] => [8 6]", "saving `/nowhere`"),
}


@pytest.mark.parametrize("how", OUT_OF_STEP)
def test_ranks_that_wait_for_each_other_in_different_turns_find_out(how: str) -> None:
    """In seconds, and not after the 300 of the timeout: one diagnostic on all ranks, which names both sides."""
    with World(4) as world:
        answers = world.run(out_of_step, how, timeout=120)
    code, message, notes, _ = answers[0]
    one, other = sorted(notes[:2], key=lambda note: note.startswith("rank 2: "))
    assert code == "SL0701"
    assert "and rank 2 do" in message or "rank 2 and" in message
    assert OUT_OF_STEP[how][0] in one
    assert other.startswith("rank 2: ")
    assert OUT_OF_STEP[how][1] in other
    assert [a[:3] for a in answers] == [answers[0][:3]] * 4
    assert max(a[3] for a in answers) < 60


def slow_but_sound() -> bool:
    """Rank 1 works for longer than ranks wait before they look at each other."""
    watch.LATE = 1.0
    mesh = torch_mesh((4,), ("tp",))
    x = sl.distribute(torch.arange(8.0), "[n/tp]", mesh)
    for _ in range(3):
        sl.reshard(x, "[n]")
    if dist.get_rank() == 1:
        time.sleep(2 * watch.LATE + 1)
    return torch.equal(sl.reshard(x, "[n]").to_local(), torch.arange(8.0))


def test_a_rank_that_is_only_slow_is_waited_for() -> None:
    with World(4) as world:
        assert world.run(slow_but_sound) == [True] * 4


def leak() -> tuple[int, int, bool]:
    mesh = torch_mesh((2, 2), ("a", "b"))
    value = torch.arange(64.0).view(8, 8)
    x = sl.distribute(value, "[n/a d/b]", mesh)
    groups.release()
    for spec in ("[n d]", "[n/a d]", "[n d/b]", "[n/b d/a]", "[n d/a/b]") * 2:
        sl.reshard(x, spec)
    held = groups.open_groups()
    groups.release()
    again = sl.reshard(x, "[n d]")
    return held, groups.open_groups(), torch.equal(again.to_local(), value)


def test_groups_are_few_and_can_be_released_and_made_again(world: World) -> None:
    assert [a[0] <= 4 and a[1] <= 2 and a[2] for a in world.run(leak)] == [True] * 4


def held_open() -> int:
    """How many files and connections this process has open."""
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def released() -> tuple[int, int, int, int, bool]:
    """Groups and open connections while a program is in use, and after it; whether it can be used again."""
    program = sl.loads("mesh pod = a:2 * b:2\nmesh half = c:2\nmodel m on pod { param otherwise : whole }")
    mesh = program.mesh("pod").device_mesh()
    value = torch.arange(64.0).view(8, 8)
    x = sl.distribute(value, "[n/a d/b]", mesh)
    sl.reshard(x, "[n d/a/b]")  # the watcher's own connection is there from now on
    dist.barrier()
    program.release()
    before = held_open()
    with program:
        for spec in ("[n d]", "[n/a d]", "[n d/b]", "[n/b d/a]"):
            sl.reshard(x, spec)
        during = groups.open_groups(), held_open() - before
        dist.barrier()
    after = groups.open_groups(), held_open() - before
    return *during, *after, torch.equal(sl.reshard(x, "[n d]").to_local(), value)


def test_a_program_releases_its_groups_and_their_connections() -> None:
    with World(4) as world:
        for groups_held, connections, groups_left, left, again in world.run(released):
            assert 2 <= groups_held <= 5
            assert connections >= 3 * groups_held
            assert (groups_left, left, again) == (0, 0, True)


@pytest.mark.parametrize("seed", [1, 4])
def test_a_world_of_random_reshards_ends_well_when_a_rank_is_killed_or_asks_for_something_else(seed: int) -> None:
    """Two of the worlds of ``make soak``: nothing wrong, nobody late, nothing left over."""
    assert soak.FAULTS[seed] == {1: "killed", 4: "other"}[seed]
    assert soak.one_world(seed) == ""
