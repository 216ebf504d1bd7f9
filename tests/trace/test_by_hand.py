"""A compiled Llama layer sends what hand-written tensor and sequence parallel code sends, by kind, axes and bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor

import shardlang as sl
from shardlang.lower import torch_private
from shardlang.lower.placements import mesh_of, placements_of
from shardlang.runtime.observe import Observer, Tally, tally
from shardlang.runtime.record import Recorder
from shardlang.runtime.sharded import ShardedFunction
from tests.bench import llama_by_hand
from tests.bench.llama_by_hand import NAMES, SPECS
from tests.trace import networks
from tests.trace.oracle import layout

WIDTH, KEYS, HIDDEN, HEADS, KV = 16, 8, 24, 4, 2
SHAPES = [(WIDTH,), (WIDTH, WIDTH), (KEYS, WIDTH), (KEYS, WIDTH), (WIDTH, WIDTH), (WIDTH,), (HIDDEN, WIDTH), (WIDTH, HIDDEN), (HIDDEN, WIDTH)]  # fmt: skip  # noqa: E501  # a table


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    """dp:2 * tp:2, seen by its first rank; the others do not exist."""
    dist.init_process_group("fake", store=torch_private.fake_store(), rank=0, world_size=4)
    yield init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    dist.destroy_process_group()


def compiled(mesh: DeviceMesh, ends: str, stay: str) -> ShardedFunction:
    signature = ", ".join([f"x: {ends}", *(f"{n}: {s}" for n, s in zip(NAMES, SPECS, strict=True))])

    @sl.sharded(f"({signature}) -> {ends}", mesh)
    def layer(x: Any, n1: Any, wq: Any, wk: Any, wv: Any, wo: Any, n2: Any, w1: Any, w2: Any, w3: Any) -> Any:
        x = sl.reshard(x, stay)
        h = sl.reshard(F.rms_norm(x, (WIDTH,), n1, llama_by_hand.EPSILON), "[b/dp s d]")
        x = x + sl.reshard(networks.attention(h, wq, wk, wv, wo, HEADS, KV), stay)
        h = sl.reshard(F.rms_norm(x, (WIDTH,), n2, llama_by_hand.EPSILON), "[b/dp s d]")
        return x + sl.reshard(networks.feed_forward(h, w1, w2, w3), stay)

    made: ShardedFunction = layer
    return made


def sent(mesh: DeviceMesh, run: Any) -> tuple[Tally, ...]:
    run()  # the first time groups are made
    with Recorder() as recorder, Observer(mesh_of(mesh), 0):
        run()
    return tally(recorder.issued, mesh_of(mesh))


@pytest.mark.parametrize("case", ["tensor parallel", "sequence parallel", "both ends whole"])
def test_compiled_and_hand_written_send_the_same(mesh: DeviceMesh, case: str) -> None:
    split = "whole" if case == "tensor parallel" else "sequence"
    stay = "[b/dp s d]" if case == "tensor parallel" else "[b/dp s/tp d]"
    ends = stay if case == "sequence parallel" else "[b/dp s d]"
    function = compiled(mesh, ends, stay)
    x_layout = layout(mesh_of(mesh), ends, (4, 6, WIDTH))
    layouts = [layout(mesh_of(mesh), s, n) for s, n in zip(SPECS, SHAPES, strict=True)]
    x_block = torch.randn(x_layout.local_shape(0))
    blocks = [torch.randn(w.local_shape(0)) for w in layouts]

    def ours() -> None:
        x = DTensor.from_local(x_block, mesh, placements_of(x_layout), run_check=False).detach().requires_grad_()
        weights = [
            DTensor.from_local(b, mesh, placements_of(w), run_check=False).detach().requires_grad_()
            for b, w in zip(blocks, layouts, strict=True)
        ]
        function(x, *weights).to_local().sum().backward()

    def by_hand() -> None:
        x = x_block.clone().requires_grad_()
        weights = [b.clone().requires_grad_() for b in blocks]
        body = llama_by_hand.both_ends_whole if case == "both ends whole" else llama_by_hand.layer
        tp, dp = mesh.get_group("tp"), mesh.get_group("dp")
        body(x, weights, HEADS // 2, KV // 2, tp, dp, split).sum().backward()

    assert sent(mesh, ours) == sent(mesh, by_hand)
