"""Trained weights moved to the ranks that serve, and a few bytes written with them.

    torchrun --nproc-per-node 6 -m examples.serve.serve --checkpoint out/llama --staging 1

Ranks 0 to 3 load what ``examples/train`` saved (or draw new weights), ranks 4 and 5 have another layout of the same
model. The weights go over in bounded rounds; no rank ever has a whole one.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

import shardlang as sl
from examples.llama import model as llama

FILE = Path(__file__).parent / "serve.shard"


def serve(checkpoint: Path | None, staging: int, *, say: Callable[[str], None] = print) -> float | None:
    """Moves the weights; the loss of the first batch by this rank's model (``None`` where it has none)."""
    program = sl.load(FILE)
    meshes = {name: program.mesh(name).device_mesh("cpu") for name in ("train", "serve")}  # all ranks make both
    trainer = placed(program, "trainer", meshes["train"])
    server = placed(program, "server", meshes["serve"])
    if trainer is not None and checkpoint is not None:
        sl.load_state(program.state_dict(trainer), checkpoint)
    program.transfer(trainer, server, staging=staging, show=say)
    if trainer is not None:
        return loss_of(trainer, meshes["train"], "[b/dp s]")
    return None if server is None else loss_of(server, meshes["serve"], "[b s]")


def placed(program: Any, name: str, mesh: DeviceMesh) -> nn.Module | None:
    """The model on the ranks of its mesh, its weights drawn from a seed of its own."""
    if dist.get_rank() not in program.declared_model(name).mesh.ranks:
        return None
    torch.manual_seed(len(name))
    return program.apply(llama.build(), mesh, name=name)


def loss_of(model: nn.Module, mesh: DeviceMesh, spec: str) -> float:
    with torch.no_grad(), sl.global_view():
        batch = {name: sl.distribute(whole, spec, mesh) for name, whole in llama.batch(0).items()}
        total, count = llama.loss(model, batch)
        return float(sl.global_mean(total, count).full_tensor())


@click.command()
@click.option("--checkpoint", type=click.Path(path_type=Path), help="What examples/train saved.")
@click.option("--staging", default=64, show_default=True, help="MiB packed at once on a rank.")
def main(checkpoint: Path | None, staging: int) -> None:
    """Move the weights of examples/llama from four ranks to two others."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    dist.init_process_group("gloo")
    try:
        loss = serve(checkpoint, staging << 20)
        if dist.get_rank() in (0, 4):
            print(f"rank {dist.get_rank()}: loss {loss:.6f}")
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
