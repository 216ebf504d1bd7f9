"""What ranks do in the tests of checkpoints: a small model on some mesh, its state set to numbers that all differ."""

from __future__ import annotations

import os
import signal
import time
import zlib
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.utils._python_dispatch import TorchDispatchMode

import shardlang as sl
from shardlang.diagnostics import ShardlangError
from shardlang.layout import Layout
from shardlang.mesh import Axis, Mesh
from shardlang.runtime.record import Recorder
from shardlang.runtime.simulate import shard
from shardlang.runtime.state import State, state_dict, state_of
from tests.state.layouts import fused
from tests.state.simulated import numbered

HEADS, WIDTH, COLUMNS = 4, 3, 5
MODEL = """
mesh pod = {axes}
model net on pod {{
  param up.weight   : [f/~tp d]
  param down.weight : [d f/~tp]
  param otherwise   : whole
  {fsdp}
}}
"""
AXES = {"2x2": "dp:2 * tp:2", "tp4": "dp:1 * tp:4", "dp4": "dp:4 * tp:1"}


class Net(nn.Module):
    """Dims that nothing divides, a buffer, a fused weight, a tied one, a scalar."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(7, 13, bias=False)
        self.down = nn.Linear(13, 7, bias=False)
        self.norm = nn.LayerNorm(7)
        self.again = nn.Module()
        self.again.weight = self.norm.weight
        self.gain = nn.Parameter(torch.ones(()))
        self.big = nn.Linear(160, 200, bias=False)
        self.register_buffer("seen", torch.zeros(5, dtype=torch.int64))
        self.qkv = nn.Parameter(torch.zeros(3 * HEADS * WIDTH, COLUMNS))


class Bare(Net):
    """The same without the fused weight, which torch's placements cannot say."""

    def __init__(self) -> None:
        super().__init__()
        del self.qkv


def placed(axes: str) -> tuple[Net, dict[str, Layout]]:
    """The model placed by ``apply`` on a mesh of this launch, and the layouts that torch's placements cannot say.

    The fused weight is put in its place by hand: each rank holds its own heads of q, k and v, stored in parts over dp.
    """
    program = sl.loads(MODEL.format(axes=AXES[axes], fsdp="fsdp root over dp"))
    mesh = program.mesh("pod").device_mesh("cpu")
    net = Net()
    qkv, net.qkv = net.qkv, None
    program.apply(net, mesh)
    sizes = dict(zip(("dp", "tp"), mesh.shape, strict=True))
    layout = fused(Mesh("pod", tuple(Axis(n, s) for n, s in sizes.items())), HEADS, WIDTH, COLUMNS, "tp", "dp")
    local = torch.zeros(layout.local_shape(dist.get_rank()))
    made = DTensor.from_local(local, mesh, [Shard(0)] * 2, run_check=False, shape=qkv.shape, stride=qkv.stride())
    net.qkv = nn.Parameter(made)
    return net, {"qkv": layout}


def value_of(key: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """The global tensor that a key stands for: integers that differ from element to element and from key to key."""
    return numbered(shape, dtype, zlib.crc32(key.encode()) % 1000 * 100)


def fill(state: State) -> None:
    for key, block in state.blocks.items():
        if not key.startswith("optimizer.param_groups"):
            value = value_of(key, block.layout.shape, block.local.dtype)
            block.local.copy_(shard(value, block.layout)[block.rank])


def differing(state: State) -> list[str]:
    """The keys whose blocks are not what they should be."""
    wrong = []
    for key, block in state.blocks.items():
        value = value_of(key, block.layout.shape, block.local.dtype)
        if not key.startswith("optimizer.param_groups") and not torch.equal(
            block.local, shard(value, block.layout)[block.rank]
        ):
            wrong.append(key)
    return wrong


def optimizer_of(net: Net, *, lr: float = 0.1) -> torch.optim.Optimizer:
    tall = [net.up.weight, net.qkv, net.big.weight]
    return torch.optim.AdamW(
        [{"params": tall, "lr": lr}, {"params": [net.down.weight, *net.norm.parameters(), net.gain], "lr": 2 * lr}]
    )


def stepped(net: Net, optimizer: torch.optim.Optimizer) -> None:
    """Gives the optimizer its state, as a step does."""
    for parameter in {p for group in optimizer.param_groups for p in group["params"]}:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()


class Traffic(TorchDispatchMode):
    """Every collective that passes through the dispatcher, whoever issues it: names, dtypes, bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace in ("c10d", "_c10d_functional"):
            flat = torch.utils._pytree.tree_leaves(args)
            tensors = [t for t in flat if isinstance(t, torch.Tensor)]
            assert all(t.dtype in (torch.uint8, torch.int64) for t in tensors), func
            self.seen.append((str(func), sum(t.nbytes for t in tensors)))
        return func(*args, **(kwargs or {}))


def save_run(folder: str, axes: str) -> tuple[int, int]:
    """Saves the state; returns the bytes of control traffic and those of this rank's blocks."""
    net, layouts = placed(axes)
    optimizer = optimizer_of(net)
    stepped(net, optimizer)
    state = state_dict(net, optimizer, extra={"step": 12, "seed": [1, 2]}, layouts=layouts)
    fill(state)
    with Traffic() as traffic:
        sl.save(state, folder)
    return sum(n for _, n in traffic.seen), sum(b.local.nbytes for b in state.blocks.values())


def load_run(folder: str, axes: str) -> tuple[list[str], dict[str, Any], list[float], bool]:
    """Loads into a new model and a new optimizer: wrong keys, extra, learning rates, whether a step can be taken."""
    net, layouts = placed(axes)
    optimizer = optimizer_of(net, lr=0.5)
    state = state_dict(net, optimizer, layouts=layouts)
    with Traffic() as traffic:
        extra = sl.load_state(state, folder)
    assert sum(n for _, n in traffic.seen) < 10_000
    after = state_dict(net, optimizer, layouts=layouts)
    assert len(after.blocks) > len(state.blocks)
    wrong = differing(after)
    stepped(net, optimizer)
    return wrong, extra, [g["lr"] for g in optimizer.param_groups], True


def _codes(action: Any) -> tuple[str, ...]:
    try:
        action()
    except ShardlangError as error:
        return error.codes if "Traceback" not in str(error) else (str(error),)
    return ()


def broken_save_run(folder: str, axes: str) -> tuple[tuple[str, ...], list[str]]:
    """A save on which the disk of rank 2 is full: its codes, and what differs after the old checkpoint is loaded."""
    net, layouts = placed(axes)
    state = state_dict(net, layouts=layouts)
    fill(state)
    sl.save(state, folder)
    before = sorted(p.name for p in Path(folder).iterdir())
    dist.barrier()
    for block in state.blocks.values():
        block.local.zero_()
    original = torch.save
    if dist.get_rank() == 2:
        torch.save = _full_disk
    try:
        codes = _codes(lambda: sl.save(state, folder))
    finally:
        torch.save = original
    dist.barrier()
    assert sorted(p.name for p in Path(folder).iterdir()) == before
    dist.barrier()
    sl.load_state(state, folder)
    return codes, differing(state)


def _full_disk(*_: object, **__: object) -> None:
    raise OSError(28, "No space left on device")


def dying_save_run(folder: str, dies: int) -> tuple[tuple[str, ...], str, float]:
    """A save in whose middle one rank is gone: code and message, and the seconds in which it was told.

    The error is kept: what the others wait for must not hang on what this rank's memory happens to hold.
    """
    held = {"w": torch.arange(100.0), "step": 1}
    sl.save(held, folder)
    dist.barrier()
    if dist.get_rank() == dies:
        os.kill(os.getpid(), signal.SIGKILL)
    start = time.monotonic()
    try:
        sl.save({**held, "step": 2}, folder)
    except ShardlangError as error:
        _kept.append(error)
        return error.codes, error.diagnostics[0].message.partition(" to the end")[0], time.monotonic() - start
    return (), "", 0.0


_kept: list[Exception] = []


def mismatch_run(folder: str, axes: str) -> list[tuple[str, ...]]:
    """What loads into states that do not fit say; none of them changes anything."""
    net, layouts = placed(axes)
    state = state_dict(net, layouts=layouts)
    before = {k: b.local.clone() for k, b in state.blocks.items()}
    found = []
    more = state_dict(net, layouts=layouts)
    more.blocks["model.up.bias"] = more.blocks["model.norm.bias"]
    found.append(_codes(lambda: sl.load_state(more, folder)))
    fewer = state_dict(net, layouts=layouts)
    del fewer.blocks["model.norm.bias"]
    found.append(_codes(lambda: sl.load_state(fewer, folder)))
    other = state_dict(net, layouts=layouts)
    if dist.get_rank() == 1:
        other.blocks["model.norm.bias"] = other.blocks["model.seen"]
    found.append(_codes(lambda: sl.load_state(other, folder)))
    found.append(_codes(lambda: sl.load_state(state, folder + "-absent")))
    assert all(torch.equal(before[k], b.local) for k, b in state.blocks.items())
    found.append(_codes(lambda: sl.load_state(fewer, folder, strict=False)))
    assert differing(fewer) == []
    return found


def disagreeing_run(folder: str, axes: str) -> tuple[str, ...]:
    """Rank 3 saves a state that lacks a tensor."""
    net, layouts = placed(axes)
    state = state_dict(net, layouts=layouts)
    if dist.get_rank() == 3:
        del state.blocks["model.big.weight"]
    return _codes(lambda: sl.save(state, folder))


def export_run(folder: str, axes: str, limit: int) -> tuple[int, int]:
    """Writes the weights to safetensors; returns the bytes of control traffic and those of this rank's blocks."""
    net, layouts = placed(axes)
    state = state_dict(net, layouts=layouts)
    fill(state)
    with Traffic() as traffic:
        sl.save_safetensors(state, folder, file_limit=limit)
    return sum(n for _, n in traffic.seen), sum(b.local.nbytes for b in state.blocks.values())


def import_run(folder: str, axes: str) -> list[str]:
    """Reads them into a new model; the keys that are wrong."""
    net, layouts = placed(axes)
    state = state_dict(net, layouts=layouts)
    sl.load_safetensors(state, folder)
    return differing(state)


TRANSFER = """
mesh train = dp:2 * tp:2
mesh four  = tp:4
mesh two   = tp:2 ranks 4..5
model trainer from tests.state.runs:Bare on train {
  param up.weight   : [f/~tp d]
  param down.weight : [d f/~tp]
  param big.weight  : [n/tp m]
  param otherwise   : whole
  fsdp root over dp
}
model four from tests.state.runs:Bare on four {
  param up.weight   : [f/~tp d]
  param big.weight  : [n m/tp]
  param otherwise   : whole
}
model two from tests.state.runs:Bare on two {
  param down.weight : [d f/~tp]
  param big.weight  : [n/tp m]
  param otherwise   : whole
}
transfer trainer => four
transfer trainer => two
"""
WAYS = {"2x2 to 4": ("trainer", "four"), "2x2 to 2 others": ("trainer", "two"), "4 to 2x2": ("four", "trainer")}


def transfer_run(way: str, staging: int) -> tuple[list[str], list[str], int, int, int, dict[str, Any]]:
    """In a world of 6: wrong keys, the plan as shown, bytes received and sent, the largest round, the plan."""
    program = sl.loads(TRANSFER)
    placed_models: list[nn.Module | None] = []
    for name in WAYS[way]:
        mesh = program.declared_model(name).mesh
        made = program.mesh(mesh.name).device_mesh("cpu")  # all ranks of the launch must ask
        net = None
        if dist.get_rank() in mesh.ranks:
            net = Bare()
            program.apply(net, made, name=name)
        placed_models.append(net)
    source, target = placed_models
    if source is not None:
        fill(state_dict(source))
    shown: list[str] = []
    with Recorder() as recorder:
        name = " => ".join(WAYS[way])
        known = name in {f"{t.source} => {t.target}" for t in program.compilation.program.transfers}
        move = partial(program.transfer, name=name) if known else sl.transfer
        plan = move(source, target, staging=staging, show=shown.append)
    largest = max((i.bytes_received + i.bytes_sent for i in recorder.issued), default=0)
    wrong = [] if target is None else differing(state_dict(target))
    return wrong, shown, recorder.bytes_received, recorder.bytes_sent, largest, plan.to_json()


def misplaced_run() -> tuple[str, ...]:
    """The server's tensors told of by all, and its model given as the trainer's."""
    program = sl.loads(TRANSFER)
    for name in ("train", "four", "two"):
        made = program.mesh(name).device_mesh("cpu")
    net = None
    if dist.get_rank() in program.declared_model("two").mesh.ranks:
        net = Bare()
        program.apply(net, made, name="two")
    elsewhere = DTensor.from_local(torch.zeros(1), made, [Replicate()], run_check=False)
    outside = _codes(lambda: state_of({"w": elsewhere}))
    return (*outside, *_codes(lambda: program.transfer(net, net, name="trainer => two")))


def recipe_run(folder: str, steps: int, ends: tuple[int, int] | None) -> list[float]:
    """``examples/train``, saved every other step. ``ends``: a step in whose middle rank 2 gets a signal, and which."""
    from examples.llama import model as llama
    from examples.train.train import train

    kept = {name: getattr(llama, name) for name in ("loss", "build", "SEQ", "BATCH")}
    loss, taken = llama.loss, []

    def small() -> nn.Module:
        model = llama.Llama(layers=1)
        for parameter in model.parameters():
            nn.init.normal_(parameter, mean=float(parameter.dim() == 1), std=0.05)
        return model

    def interrupted(model: nn.Module, batch: Any) -> Any:
        taken.append(batch)
        if ends is not None and dist.get_rank() == 2 and len(taken) == ends[0]:
            os.kill(os.getpid(), ends[1])
        return loss(model, batch)

    llama.loss, llama.build, llama.SEQ, llama.BATCH = interrupted, small, 16, 4
    try:
        return train(steps, 2, Path(folder), say=lambda _: None)
    finally:
        for name, value in kept.items():
            setattr(llama, name, value)


def serve_run() -> tuple[float | None, int]:
    """``examples/serve`` with new weights: the loss of the rank's own model, and how many lines were printed."""
    from examples.serve.serve import serve

    shown: list[str] = []
    return serve(None, 1 << 20, say=shown.append), len(shown)
