"""Rows that go where values say: to the rank of an axis that has their kind, and home again."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

import shardlang as sl
from shardlang.diagnostics import ShardlangError
from shardlang.runtime.record import Recorder
from shardlang.runtime.rows import on_mesh
from tests.world import World, torch_mesh

HERE, WIDTH = 2, 3
ROUTINGS = {
    "spread": lambda rank: [(rank + i) % 8 for i in range(8)],
    "all to one kind": lambda rank: [5] * (rank + 1),
    "nothing from some": lambda rank: [7, 0, 7] if rank == 1 else [],
    "of many sizes": lambda rank: [(i * i + rank) % 8 for i in range(3 * rank)],
}


def rows_of(rank: int, count: int) -> Tensor:
    """Integers that tell who had a row and where it stood."""
    return torch.arange(count * WIDTH, dtype=torch.float64).view(count, WIDTH) + 1000 * rank


def expected(routing: str, rank: int) -> tuple[Tensor, tuple[int, ...]]:
    """What a rank has when all rows are where they belong: by kind, then by sender, then in their order."""
    kinds = range(rank * HERE, (rank + 1) * HERE)
    every = [
        (kind, row)
        for sender in range(4)
        for kind, row in zip(ROUTINGS[routing](sender), _rows(routing, sender), strict=True)
    ]
    found = [[row for kind, row in every if kind == k] for k in kinds]
    flat = [r for rows in found for r in rows]
    return torch.stack(flat) if flat else torch.empty(0, WIDTH, dtype=torch.float64), tuple(map(len, found))


def _rows(routing: str, sender: int) -> list[Tensor]:
    return list(rows_of(sender, len(ROUTINGS[routing](sender))))


def sent_and_back(routing: str) -> tuple[bool, bool, bool, bool, int, int]:
    rank = dist.get_rank()
    kinds = torch.tensor(ROUTINGS[routing](rank), dtype=torch.int32)
    rows = rows_of(rank, len(kinds)).requires_grad_()
    with on_mesh(torch_mesh((4,), ("ep",))), Recorder() as recorder:
        sent = sl.send_rows(rows, kinds, here=HERE, over="ep")
        back = sent.back(torch.cat([part * (HERE * rank + i) for i, part in enumerate(sent.rows.split(sent.sizes))]))
        back.square().sum().backward()
    right, sizes = expected(routing, rank)
    scale = kinds.to(torch.float64).unsqueeze(-1)
    assert rows.grad is not None
    return (
        torch.equal(sent.rows, right),
        sent.sizes == sizes,
        torch.equal(back, rows * scale),
        torch.equal(rows.grad, 2 * rows * scale**2),
        sum(i.count for i in recorder.issued),
        recorder.bytes_received,
    )


@pytest.mark.parametrize("routing", ROUTINGS)
def test_every_row_is_at_its_kind_and_comes_home_with_its_gradient(world: World, routing: str) -> None:
    for rank, (there, sizes, back, gradient, count, received) in enumerate(world.run(sent_and_back, routing)):
        assert (there, sizes, back, gradient) == (True, True, True, True)
        assert count == 5  # counts, rows there and back, gradients there and back
        own = [k for k in ROUTINGS[routing](rank) if k // HERE == rank]
        came = sum(expected(routing, rank)[1]) - len(own)
        went = len(ROUTINGS[routing](rank)) - len(own)
        assert received == 3 * HERE * 8 + 2 * (came + went) * WIDTH * 8


def turned() -> bool:
    """On a mesh whose ranks go backwards, kind 0 is on torch's rank 3."""
    mesh = DeviceMesh("cpu", torch.tensor([3, 2, 1, 0]), mesh_dim_names=("ep",))
    rank = dist.get_rank()
    with on_mesh(mesh):
        sent = sl.send_rows(rows_of(rank, 4), torch.arange(4), here=1, over="ep")
    right = torch.stack([rows_of(sender, 4)[3 - rank] for sender in (3, 2, 1, 0)])
    return torch.equal(sent.rows, right) and torch.equal(sent.back(sent.rows), rows_of(rank, 4))


def test_coordinates_and_not_torchs_ranks_have_the_kinds(world: World) -> None:
    assert world.run(turned) == [True] * 4


def test_on_one_device_rows_are_put_by_kind_and_back() -> None:
    @sl.local_map("(x: [n/ep d], kinds: [n/ep]) -> [n/ep d]")
    def doubled(x: Tensor, kinds: Tensor) -> Tensor:
        sent = sl.send_rows(x, kinds, here=3, over="ep")
        assert sent.sizes == (1, 0, 3)
        assert sent.rows[:, 0].tolist() == [3, 0, 6, 9]
        return sent.back(2 * sent.rows)

    x = torch.arange(12.0).view(4, 3)
    assert torch.equal(doubled(x, torch.tensor([2, 0, 2, 2])), 2 * x)


def faults(case: str) -> tuple[str, ...]:
    rank = dist.get_rank()
    rows = torch.ones(4, WIDTH)
    kinds = torch.tensor([0, 1, 2, 8 if rank == 2 and case == "kind" else 3])
    try:
        with on_mesh(torch_mesh((4,), ("ep",))):
            sl.send_rows(rows[: 3 if case == "count" else 4], kinds, here=HERE, over="pe" if case == "axis" else "ep")
    except ShardlangError as error:
        return (*error.codes, error.diagnostics[0].message)
    return ()


@pytest.mark.parametrize(
    ("case", "code", "word"),
    [("kind", "SL0721", "rows at 2 of `ep`"), ("count", "SL0722", "3 rows"), ("axis", "SL0723", "no axis `pe`")],
)
def test_a_fault_of_one_rank_is_told_by_all(world: World, case: str, code: str, word: str) -> None:
    for found in world.run(faults, case):
        assert found[0] == code
        assert word in found[1]
    assert all(sent_again[:2] == (True, True) for sent_again in world.run(sent_and_back, "spread"))


def ragged() -> Any:
    """Seven rows over four ranks: the blocks of the result are as uneven as those of the argument."""
    mesh = torch_mesh((4,), ("ep",))

    @sl.local_map("(x: [n/~ep d], kinds: [n/~ep]) -> [n/~ep d]")
    def there_and_back(x: Tensor, kinds: Tensor) -> Tensor:
        sent = sl.send_rows(x, kinds, here=1, over="ep")
        return sent.back(sent.rows + dist.get_rank())

    x = torch.arange(21.0).view(7, 3)
    kinds = torch.tensor([3, 3, 0, 1, 3, 0, 2])
    made = there_and_back(sl.distribute(x, "[n/~ep d]", mesh), sl.distribute(kinds, "[n/~ep]", mesh))
    return torch.equal(made.full_tensor(), x + kinds.unsqueeze(-1))


def test_local_map_takes_uneven_blocks(world: World) -> None:
    assert world.run(ragged) == [True] * 4
