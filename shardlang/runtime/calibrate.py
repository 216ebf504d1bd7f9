"""Measures the links of a launch: ``python -m shardlang.runtime.calibrate DIRECTORY`` is one of its ranks.

On every axis of the mesh all groups gather at once, as in a training step, messages from a few bytes to some MiB.
The time of the smallest, over log2 of the group, is the latency; the slope over the large ones is the bandwidth.
"""

from __future__ import annotations

import json
import math
import os
import sys
from datetime import timedelta
from pathlib import Path
from statistics import median
from time import perf_counter

import torch
import torch.distributed as dist

from shardlang.runtime.launch import account, end_with_parent

SMALL = 64
"""Bytes of the message that shows the latency."""
LARGE = (1 << 20, 2 << 20, 4 << 20, 8 << 20)
"""Bytes of the messages that show the bandwidth."""
ROUNDS = 7


def links_of(sizes: list[int], device: str) -> list[tuple[float, float]]:
    """(bytes a second, seconds) of each axis of more than one rank, as this rank sees it; ``(0, 0)`` for the others.

    The default process group must be there, of as many ranks as the axes' product.
    """
    found = []
    rank, world = dist.get_rank(), dist.get_world_size()
    for i, size in enumerate(sizes):
        if size == 1:
            found.append((0.0, 0.0))
            continue
        stride = math.prod(sizes[i + 1 :])
        mine = None
        for start in range(world):
            if start // stride % size == 0:
                ranks = [start + stride * k for k in range(size)]
                group = dist.new_group(ranks)
                mine = group if rank in ranks else mine
        assert mine is not None
        small = _seconds(SMALL, size, mine, device)
        times = [_seconds(n, size, mine, device) for n in LARGE]
        received = [n * (size - 1) for n in LARGE]
        found.append((_slope(received, times), small / math.log2(size)))
    return found


def _seconds(count: int, ways: int, group: dist.ProcessGroup, device: str) -> float:
    """The median time of a gather of blocks of so many bytes."""
    block = torch.zeros(count, dtype=torch.uint8, device=device)
    out = torch.empty(count * ways, dtype=torch.uint8, device=device)
    times = []
    for i in range(ROUNDS + 2):
        dist.barrier()
        start = perf_counter()
        dist.all_gather_into_tensor(out, block, group=group)
        if device != "cpu":
            torch.accelerator.synchronize()
        if i > 1:
            times.append(perf_counter() - start)
    return median(times)


def _slope(received: list[int], times: list[float]) -> float:
    """Bytes a second, by least squares; that of the largest message where noise hides the slope."""
    mean_r, mean_t = sum(received) / len(received), sum(times) / len(times)
    across = sum((r - mean_r) * (t - mean_t) for r, t in zip(received, times, strict=True))
    along = sum((r - mean_r) ** 2 for r in received)
    largest = received[-1] / times[-1]
    return max(along / across, largest) if across > 0 else largest


def main() -> None:
    directory = Path(sys.argv[1])
    rank = int(os.environ["RANK"])
    end_with_parent()
    try:
        task = json.loads((directory / "task.json").read_text())
        device = task["device"]
        if device != "cpu":
            torch.accelerator.set_device_index(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("gloo" if device == "cpu" else "nccl", timeout=timedelta(seconds=60))
        found = torch.tensor(links_of(task["sizes"], device), dtype=torch.float64, device=device).reshape(-1, 2)
        # A link is as good as the slowest of its groups.
        slowest = found * torch.tensor([1.0, -1.0], dtype=torch.float64, device=device)
        dist.all_reduce(slowest, op=dist.ReduceOp.MIN)
        if rank == 0:
            pairs = [[bandwidth, -latency] for bandwidth, latency in slowest.tolist()]
            (directory / "links.json").write_text(json.dumps(pairs))
        dist.destroy_process_group()
    except BaseException as error:
        account(directory, rank, error)
        os._exit(1)


if __name__ == "__main__":
    main()
