"""What a reshard's backward sends, what stays alive from step to step, and the options: dtypes, no_grad, out."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import shardlang as sl
from shardlang.layout import Layout
from shardlang.plan.plan import Plan
from shardlang.plan.search import plan_transition
from shardlang.plan.steps import FREE
from shardlang.runtime.record import Recorder
from tests.runtime.alive import Alive, quick_collections
from tests.runtime.test_laws import OPS, commutes, layout_at, placements, torch_placements
from tests.runtime.transitions import SQUARE, same, value_of
from tests.world import World, torch_mesh

Ends = list[tuple[tuple[str, ...], tuple[str, ...]]]


def ways() -> Ends:
    """Pairs on (2, 2) whose ends are of sums, or of nothing pending, a third of them."""
    some = [w for w in placements((2, 2), (8, 8)) if commutes(w) and not {*w} & {*OPS[1:]}]
    return [(a, b) for a in some for b in some if a != b][::3]


def there(mesh: Any, pair: tuple[tuple[str, ...], tuple[str, ...]]) -> Plan:
    return plan_transition(*(layout_at(mesh, (8, 8), names) for names in pair))


def sent_back(pairs: Ends) -> list[tuple[list[tuple[str, tuple[str, ...]]], int]]:
    """On a rank: the collectives that the backward of each reshard issues, and the bytes that come."""
    mesh = torch_mesh((2, 2), ("a", "b"))
    found = []
    for pair in pairs:
        x = _ones(mesh, pair[0]).requires_grad_()
        y = sl.reshard(x, there(sl.layout_of(x).mesh, pair).target)
        whole = tuple("R" if n in OPS else n for n in pair[1])
        comes = distribute_tensor(torch.ones(8, 8), mesh, torch_placements(whole))
        torch.autograd.grad(y, x, comes, retain_graph=True)
        with Recorder() as recorder:
            torch.autograd.grad(y, x, comes)
        found.append(([(i.kind, i.axes) for i in recorder.issued if i.count], recorder.bytes_received))
    return found


def _ones(mesh: Any, names: tuple[str, ...]) -> Any:
    local = torch.ones([8 // (1 + names.count(f"S{d}")) for d in range(2)])
    for n in names:
        if n in ("S0", "S1") and names.count(n) == 2:
            local = torch.ones([2 if f"S{d}" == n else 8 for d in range(2)])
    return DTensor.from_local(local, mesh, torch_placements(names), shape=torch.Size((8, 8)), stride=(8, 1))


def test_backward_sends_what_the_transposed_plan_says(world: World) -> None:
    pairs = ways()
    assert len(pairs) > 60
    answers = world.run(sent_back, pairs)
    for i, pair in enumerate(pairs):
        plan = there(SQUARE, pair).transpose()
        due = [(s.kind, s.axes) for s in plan.steps if s.kind not in FREE]
        assert [a[i][0] for a in answers] == [due] * 4, pair
        assert max(a[i][1] for a in answers) == plan.bytes_received, pair


def peaks(steps: int) -> list[tuple[int, int]]:
    """On a rank: bytes alive at the peak of each training step of two layers and their optimizer, and after it."""
    mesh = torch_mesh((2, 2), ("a", "b"))
    torch.manual_seed(0)
    weights = [sl.randn(spec, mesh, seed=i, requires_grad=True) for i, spec in enumerate(["[64 96/b]", "[96/b 64]"])]
    optimizer = torch.optim.AdamW(weights, lr=0.1)
    x = sl.randn("[32/a 64]", mesh, seed=9)
    found = []
    given = weights[0].to_local().detach()
    with quick_collections():
        for _ in range(steps):
            gc.collect()
            with Alive(given) as alive:
                hidden = sl.reshard(sl.reshard(x, "[n/a d]") @ weights[0], "[n/a/b f]")
                out = sl.reshard(hidden, "[n/a f/b]") @ weights[1]
                loss = (sl.reshard(out, "[n/a d/b]") ** 2).sum()
                loss.backward()
                grads = sl.reshard_many([w.grad for w in weights], [sl.layout_of(w) for w in weights])
                for weight, grad in zip(weights, grads, strict=True):
                    weight.grad = grad
                optimizer.step()
                optimizer.zero_grad()
                del hidden, out, loss, grads
                gc.collect()
                found.append((alive.peak, alive.now))
    return found


def test_memory_is_the_same_in_every_step(world: World) -> None:
    """From the second step on: the first one makes the optimizer's state, which stays."""
    for found in world.run(peaks, 6):
        assert found[0][0] > 0
        assert found[2:] == [found[1]] * 4
        assert found[1][1] == found[2][1]


DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
    torch.complex64, torch.complex128, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
]  # fmt: skip


def dtypes() -> list[str]:
    """DTensors of every dtype through ``reshard`` and ``reshard_many``, small and empty ones too."""
    mesh = torch_mesh((2, 2), ("a", "b"))
    wrong = []
    for shape in ((8, 6), (5, 3), (0, 4)):
        values = [value_of(shape, d) for d in DTYPES]
        xs = [sl.distribute(v, "[n/~a/~b d]", mesh) for v in values]
        alone = [sl.reshard(x, "[n/~b d/~a]") for x in xs]
        together = sl.reshard_many(xs, "[n/~b d/~a]")
        for value, one, other in zip(values, alone, together, strict=True):
            back = sl.reshard(one, "[n d]").to_local()
            if not (same(back, value) and same(other.to_local(), one.to_local()) and one.dtype == value.dtype):
                wrong.append(f"{value.dtype} {shape}")
    return wrong


def test_every_dtype_is_resharded_alone_and_packed(world: World) -> None:
    assert world.run(dtypes) == [[]] * 4


def options() -> tuple[bool, ...]:
    mesh = torch_mesh((2, 2), ("a", "b"))
    value = torch.arange(64.0).view(8, 8)
    x = distribute_tensor(value, mesh, [Shard(0), Shard(1)]).requires_grad_()
    with torch.no_grad():
        apart = sl.reshard(x, "[n d]")
    with torch.inference_mode():
        inferred = sl.reshard(x, "[n d]")
    room = distribute_tensor(torch.zeros(8, 8), mesh, [Replicate(), Shard(0)])
    with torch.no_grad():
        given = sl.reshard(x, "[n/b d]", out=room)
        flying = [sl.reshard(x, spec, async_op=True) for spec in ("[n d]", "[n/b d/a]", "[n d/a/b]")]
        landed = [f.wait() for f in reversed(flying)]
    try:
        sl.reshard(x, "[n/b d]", out=room)
        refused = False
    except RuntimeError as error:
        refused = "no_grad" in str(error)
    return (
        not apart.requires_grad and apart.grad_fn is None and torch.equal(apart.to_local(), value),
        torch.equal(inferred.to_local(), value),
        given is room and torch.equal(room.to_local(), value.chunk(2)[dist.get_rank() % 2]),
        all(torch.equal(sl.reshard(y.detach(), "[n d]").to_local(), value) for y in landed),
        flying[0].wait() is not None and torch.equal(flying[0].wait().to_local(), value),
        refused,
    )


def test_no_grad_out_and_several_under_way(world: World) -> None:
    assert world.run(options) == [(True,) * 6] * 4


@pytest.mark.parametrize("op", OPS)
def test_no_reduction_hands_its_source_on(world: World, op: str) -> None:
    """Where the axes have one rank, or nothing moves: the result is in storage of its own."""
    assert world.run(own_storage, op) == [True] * 4


def own_storage(op: str) -> bool:
    mesh = torch_mesh((2, 2), ("a", "b"))
    block = torch.ones(4, 4)
    x = sl.from_local(block, f"[n d]{{{op} a}}" if op != "sum" else "[n d]{+a}", mesh)
    kept = sl.reshard(x, sl.layout_of(x))
    whole = sl.reshard(x, Layout.whole(sl.layout_of(x).mesh, (4, 4)))
    places = {t.to_local().untyped_storage().data_ptr() for t in (kept, whole)}
    return block.untyped_storage().data_ptr() not in places and torch.equal(block, torch.ones(4, 4))
