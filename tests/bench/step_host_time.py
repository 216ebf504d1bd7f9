"""Host time of a training step of a lowered model over that of torch code written by hand for the same plan.

    python -m tests.bench.step_host_time [--layers 4] [--rounds 30]

A Llama of small tensors on dp:2 * tp:2 under a fake process group, so that nothing but the host's work is timed: the
processor time of this process, as other processes take the machine away. Both sides send the same collectives, which is
checked first. In turn, in an order drawn anew each round; figures are medians of the rounds' ratios, and the null pair
is a second model placed by hand.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.experimental import implicit_replication

import shardlang as sl
from examples.llama.model import Llama
from shardlang.lower import torch_private
from shardlang.lower.placements import mesh_of
from shardlang.runtime.observe import Observer, Tally, tally
from shardlang.runtime.record import Recorder
from tests.bench import step_by_hand
from tests.models.test_law import llama

VOCAB, DIM, HIDDEN, HEADS, KV_HEADS, BATCH, SEQ = 64, 32, 64, 4, 2, 4, 8
TEXT = llama(kv=KV_HEADS, g=HEADS // KV_HEADS, k=DIM // HEADS)
EAGER = "\n".join(f"{line} eager" if line.strip().startswith("call ") else line for line in TEXT.splitlines())


def net(layers: int) -> Llama:
    torch.manual_seed(0)
    return Llama(VOCAB, DIM, HIDDEN, layers, HEADS, KV_HEADS, SEQ)


def batch() -> dict[str, torch.Tensor]:
    both = torch.arange(BATCH * (SEQ + 1)).view(BATCH, SEQ + 1) % VOCAB
    return {"tokens": both[:, :-1].contiguous(), "targets": both[:, 1:].contiguous()}


def lowered(text: str, layers: int, mesh: Any) -> tuple[nn.Module, Callable[[], Any]]:
    """A placed model, and a forward and backward pass of it."""
    model = sl.loads(text).apply(net(layers), mesh)
    placed = sl.place(model, batch())

    def run() -> None:
        with sl.global_view():
            logits = model(placed["tokens"])
            total = sl.cross_entropy(logits.flatten(0, 1), placed["targets"].flatten(), reduction="sum")
            sl.global_mean(total, BATCH * SEQ).backward()

    return model, run


def by_hand(layers: int, mesh: Any) -> tuple[nn.Module, Callable[[], Any]]:
    model = step_by_hand.placed(net(layers), mesh)
    rows = {
        n: DTensor.from_local(t.chunk(2)[mesh.get_local_rank("dp")], mesh, (Shard(0), Replicate()))
        for n, t in batch().items()
    }

    def run() -> None:
        with implicit_replication():
            step_by_hand.loss(model, rows["tokens"], rows["targets"], BATCH * SEQ).backward()

    return model, run


def sent(run: Callable[[], Any], mesh: Any) -> tuple[Tally, ...]:
    run()
    with Recorder() as recorder, Observer(mesh_of(mesh), 0):
        run()
    return tally(recorder.issued, mesh_of(mesh))


def turns(ways: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Seconds of processor time of each way, each round in another order."""
    for way in ways.values():
        for _ in range(2):
            way()
    times: dict[str, list[float]] = {name: [] for name in ways}
    draw = random.Random(0)
    for _ in range(rounds):
        for name in draw.sample(list(ways), len(ways)):
            gc.collect()
            gc.disable()
            start = time.process_time()
            ways[name]()
            times[name].append(time.process_time() - start)
            gc.enable()
    return times


def ratio(times: dict[str, list[float]], name: str) -> float:
    """The median of a way's time over that of the first way in the same round."""
    first = next(iter(times))
    return statistics.median(a / b for a, b in zip(times[name], times[first], strict=True))


def measure(layers: int = 4, rounds: int = 30) -> dict[str, dict[str, list[float]]]:
    """Seconds by passes and way. Raises ValueError where the two sides do not send the same."""
    dist.init_process_group("fake", store=torch_private.fake_store(), rank=0, world_size=4)
    try:
        mesh = sl.loads(TEXT).mesh("m").device_mesh("cpu")
        ways = {
            "by hand": by_hand(layers, mesh),
            "by hand again": by_hand(layers, mesh),
            "lowered, DTensor's dispatch": lowered(EAGER, layers, mesh),
            "lowered, compiled calls": lowered(TEXT, layers, mesh),
        }
        told = {name: sent(run, mesh) for name, (_, run) in ways.items()}
        if len({told[n] for n in ways if n != "lowered, compiled calls"}) > 1:
            raise ValueError(f"not the same plan: {told}")
        optimizers = {n: torch.optim.AdamW(model.parameters(), lr=1e-3) for n, (model, _) in ways.items()}

        def passes(name: str) -> Callable[[], None]:
            def run() -> None:
                ways[name][1]()
                optimizers[name].zero_grad()

            return run

        def step(name: str) -> Callable[[], None]:
            def run() -> None:
                model, both = ways[name]
                both()
                if name.startswith("lowered"):
                    sl.clip_grad_norm_(model.parameters(), 1.0)
                else:
                    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizers[name].step()
                optimizers[name].zero_grad()

            return run

        found = {}
        for title, made in (("forward and backward", passes), ("whole step with clipping and AdamW", step)):
            found[title] = turns({name: made(name) for name in ways}, rounds)
        return found
    finally:
        dist.destroy_process_group()


BOUNDS = {"lowered, DTensor's dispatch": "<= 1.03", "lowered, compiled calls": "< 1"}


def rows() -> list[tuple[str, str, str]]:
    """Lines of ``make bench``."""
    torch.set_num_threads(1)
    lines = []
    for title, times in measure().items():
        for name in [n for n in times if n != "by hand"]:
            figure = f"{ratio(times, name):.3f}"
            lines.append((f"Llama step, {title}: {name} over by hand", figure, BOUNDS.get(name, "")))
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=30)
    given = parser.parse_args()
    torch.set_num_threads(1)
    for title, times in measure(given.layers, given.rounds).items():
        print(title)
        for name, seconds in times.items():
            print(f"  {name:<30} {statistics.median(seconds) * 1e3:8.1f} ms  {ratio(times, name):6.3f}")


if __name__ == "__main__":
    main()
