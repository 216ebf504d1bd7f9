"""Host time of one cached reshard S0 -> R on a fake process group, which sends nothing, beside the collective's own."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import shardlang as sl

ROUNDS, CALLS = 41, 200


def rows() -> Iterator[tuple[str, str, str]]:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    try:
        mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))
        x = distribute_tensor(torch.ones(64, 64), mesh, [Shard(0)])
        graded = x.detach().requires_grad_()
        block = x.to_local()
        gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
        group = mesh.get_group()

        def bare() -> torch.Tensor:
            out = block.new_empty(64, 64)
            gather(out, block, group)
            return out

        with torch.no_grad():
            base, ours, theirs = timed(
                bare, lambda: sl.reshard(x, "[n d]"), lambda: x.redistribute(mesh, [Replicate()])
            )
        _, graph, torchs = timed(
            bare, lambda: sl.reshard(graded, "[n d]"), lambda: graded.redistribute(mesh, [Replicate()])
        )
    finally:
        dist.destroy_process_group()
    yield "bare all-gather", f"{base:.1f} us", ""
    yield "reshard, no_grad", f"{ours:.1f} us, {ours / base:.2f} of bare", "1.5"
    yield "reshard, with gradients", f"{graph:.1f} us, {graph / base:.2f} of bare", "2.5"
    yield "DTensor, no_grad / with gradients", f"{theirs / base:.2f} / {torchs / base:.2f} of bare", ""


def timed(*calls: Callable[[], Any]) -> list[float]:
    """Microseconds of this thread for one call of each: medians of rounds in turn."""
    times: list[list[float]] = [[] for _ in calls]
    for call in calls:
        for _ in range(50):
            call()
    for _ in range(ROUNDS):
        for call, found in zip(calls, times, strict=True):
            start = time.thread_time()
            for _ in range(CALLS):
                call()
            found.append((time.thread_time() - start) / CALLS * 1e6)
    return [statistics.median(t) for t in times]
