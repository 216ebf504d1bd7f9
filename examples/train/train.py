"""A training run that can be ended and taken up again: take it and change what is yours.

    torchrun --nproc-per-node 4 -m examples.train.train --steps 100 --every 20 --checkpoint out/llama

Model and layouts are those of ``examples/llama``. The first rank has a step planned before anything starts, and says
in the second step, once, what it took of memory and what it sent beside that plan. Every ``--every`` steps the state
is saved, each rank its own blocks; a run that is started again goes on from there, on the same mesh or, with other
axes in the ``.shard`` file, on another. SIGTERM (what a scheduler sends) and SIGINT end the run after the step under
way, saved. A save that breaks off leaves the checkpoint before it.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from pathlib import Path

import click
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

import shardlang as sl
from examples.llama import model as llama
from shardlang.check.memory import predict
from shardlang.lower.placements import mesh_of
from shardlang.runtime.memory import Meter
from shardlang.runtime.observe import Observer
from shardlang.runtime.record import Recorder
from shardlang.runtime.step_plan import StepPlan

FILE = Path(__file__).parents[1] / "llama" / "llama.shard"
RATE, WARM_UP, SEED = 1e-3, 10, 0


def schedule(step: int, steps: int) -> float:
    """The share of the learning rate in a step: up in a line, down in a cosine."""
    rising = min(1.0, (step + 1) / WARM_UP)
    return rising * 0.5 * (1 + math.cos(math.pi * step / steps))


class Ending:
    """Whether some rank was told to end. Signals reach ranks at different steps, so that they ask each other."""

    def __init__(self) -> None:
        self._told = torch.zeros(1, dtype=torch.int32)

    def __enter__(self) -> Ending:
        numbers = (signal.SIGTERM, signal.SIGINT)
        self._before = {n: signal.signal(n, lambda *_: self._told.fill_(1)) for n in numbers}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def agreed(self) -> bool:
        dist.all_reduce(self._told, dist.ReduceOp.MAX)
        return bool(self._told.item())


def train(
    steps: int,
    every: int,
    checkpoint: Path,
    *,
    planned: StepPlan | None = None,
    say: Callable[[str], None] = print,
) -> list[float]:
    """Trains up to ``steps`` in all, from the checkpoint if there is one; the losses of the steps taken now."""
    program = sl.load(FILE)
    mesh = program.mesh("pod").device_mesh("cpu")
    torch.manual_seed(SEED)
    model = program.apply(llama.build(), mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.1)
    first = 0
    if (checkpoint / ".metadata").exists():
        first = sl.load_state(program.state_dict(model, optimizer), checkpoint)["step"]
    here = say if dist.get_rank() == 0 else lambda _: None
    memory = predict(program.compilation.layouts["llama"])
    here(f"steps {first} to {steps}; {memory.total / 2**20:.1f} MiB a rank before activations")
    losses: list[float] = []
    with Ending() as ending:
        for step in range(first, steps):
            watch = Watch(model, optimizer, mesh) if step == first + 1 else nullcontext()
            begun = time.perf_counter()
            for group in optimizer.param_groups:
                group["lr"] = RATE * schedule(step, steps)
            batch = {name: sl.distribute(whole, "[b/dp s]", mesh) for name, whole in llama.batch(step).items()}
            with watch:
                loss, norm = train_step(model, batch)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss)
            tokens = llama.BATCH * llama.SEQ / (time.perf_counter() - begun)
            here(f"step {step:5}  loss {loss:.4f}  gradient {norm:.3f}  rate {group['lr']:.2e}  {tokens:6.0f} tokens/s")
            if isinstance(watch, Watch):
                here(watch.account(planned))
            end = ending.agreed()
            if end or (step + 1) % every == 0 or step + 1 == steps:
                sl.save(program.state_dict(model, optimizer, extra={"step": step + 1}), checkpoint)
            if end:
                here(f"told to end: saved after step {step}")
                break
    return losses


class Watch:
    """What a step takes of memory and sends, as measured on this rank: by torch's trackers, where it is issued."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, mesh: DeviceMesh) -> None:
        self.meter, self.recorder = Meter(model, optimizer), Recorder()
        self.parts = (self.meter, self.recorder, Observer(mesh_of(mesh), dist.get_rank()))
        self.open = ExitStack()

    def __enter__(self) -> Watch:
        for part in self.parts:
            self.open.enter_context(part)
        return self

    def __exit__(self, *error: object) -> None:
        self.open.close()

    def account(self, planned: StepPlan | None) -> str:
        """Two lines: memory and traffic of the step, beside the plan if there is one."""
        sent = self.recorder.issued
        received, count = sum(i.bytes_received for i in sent), sum(i.count for i in sent)
        memory = f"memory at the peak of the step {self.meter.peak()['peak'] / 2**20:.1f} MiB"
        traffic = f"received {received / 2**20:.1f} MiB in {count} collectives"
        if planned is not None:
            memory += f", planned {planned.memory / 2**20:.1f} MiB"
            bytes_planned = sum(t.bytes for t in planned.collectives)
            traffic += f", planned {bytes_planned / 2**20:.1f} MiB in {sum(t.count for t in planned.collectives)}"
        return f"            {memory}\n            {traffic}"


def train_step(model: nn.Module, batch: dict[str, torch.Tensor]) -> tuple[float, float]:
    """Forward, backward, clipping: the loss over the whole batch, and the norm of its gradient."""
    with sl.global_view():
        total, count = llama.loss(model, batch)
        loss = sl.global_mean(total, count)
        loss.backward()
    norm = sl.clip_grad_norm_(model.parameters(), 1.0)
    return float(loss.detach().full_tensor()), float(norm)


def plan(folder: Path) -> StepPlan:
    """The plan of a step, made in a process of its own, which stands for all ranks; kept as ``plan.json``."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / "plan.json"
    subprocess.run([sys.executable, "-m", "shardlang", "compile", str(FILE), "-o", str(target)], check=True)
    return sl.load(target).compilation.step_plan("llama")


@click.command()
@click.option("--steps", default=100, show_default=True)
@click.option("--every", default=20, show_default=True, help="Steps between saves.")
@click.option("--checkpoint", type=click.Path(path_type=Path), default=Path("out/llama"), show_default=True)
def main(steps: int, every: int, checkpoint: Path) -> None:
    """Train examples/llama, from the checkpoint if there is one."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    planned = plan(checkpoint.parent) if os.environ.get("RANK") == "0" else None
    dist.init_process_group("gloo")
    try:
        train(steps, every, checkpoint, planned=planned)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
