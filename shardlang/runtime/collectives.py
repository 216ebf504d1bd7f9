"""Collectives as the executor issues them: flat contiguous buffers in, work to wait for out, every one noted.

Each function takes ``wire`` tensors (see ``wire``), starts the transfer and returns at once; ``Work.wait`` ends it. The
bytes noted are those of the tensors handed over, without what a rank keeps to itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from attrs import frozen

from shardlang.layout import ReduceOp
from shardlang.lower import torch_private
from shardlang.runtime import record
from shardlang.runtime.groups import Group

_PLAIN = {
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int8, torch.uint8,
}  # fmt: skip
"""What every backend moves as it is; other dtypes go as bytes."""

_ADDED = {
    "gloo": {torch.float32, torch.float64, torch.int64, torch.int32, torch.int8, torch.uint8},
    "nccl": {*_PLAIN},
}
"""What a backend reduces itself, with one rounding of the sum at most where that matters little."""

_REDUCE = {"sum": dist.ReduceOp.SUM, "avg": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}

_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


@frozen
class Label:
    """What a collective is for: the kind of step and the axes that it goes over, as a record shows them."""

    kind: str
    axes: tuple[str, ...]
    count: int = 1
    """0 where it ends what another one began."""


def wire(flat: torch.Tensor) -> torch.Tensor:
    """A flat contiguous tensor as backends take it: itself, or a view of its bytes."""
    return flat if flat.dtype in _PLAIN else flat.view(torch.uint8)


def plain(block: torch.Tensor) -> bool:
    """Can a backend be given this block as it is?"""
    return block.dtype in _PLAIN and block.is_contiguous()


def reduces(group: Group, dtype: torch.dtype) -> bool:
    """Does the group's backend reduce this dtype itself?"""
    return dtype in _ADDED.get(group.backend, _ADDED["nccl"])


def all_gather(group: Group, label: Label, out: torch.Tensor, block: torch.Tensor) -> dist.Work:
    """Fills ``out`` with the equal blocks of all members, in the group's order."""
    if record.recording():
        size = block.nbytes * (group.size - 1)
        record.note(label.kind, label.axes, size, size, label.count)
        with record.noted():
            return _work(_all_gather(wire(out), wire(block), group.handle, async_op=True))
    return _work(_all_gather(wire(out), wire(block), group.handle, async_op=True))


def all_to_all(
    group: Group,
    label: Label,
    out: torch.Tensor,
    given: torch.Tensor,
    out_sizes: Sequence[int] | None,
    given_sizes: Sequence[int] | None,
) -> dist.Work:
    """Sends the pieces of ``given``, in the group's order, to the members, and fills ``out`` with theirs.

    Sizes are in elements; ``None`` for both where all pieces are equal.
    """
    sent, got = wire(given), wire(out)
    scale = given.itemsize // sent.itemsize
    if scale != 1 and given_sizes is not None and out_sizes is not None:
        given_sizes, out_sizes = [n * scale for n in given_sizes], [n * scale for n in out_sizes]
    if not record.recording():
        return _work(dist.all_to_all_single(got, sent, out_sizes, given_sizes, group.handle, async_op=True))
    kept_out = got.numel() // group.size if out_sizes is None else out_sizes[group.index]
    kept = sent.numel() // group.size if given_sizes is None else given_sizes[group.index]
    record.note(
        label.kind, label.axes, got.nbytes - kept_out * got.itemsize, sent.nbytes - kept * sent.itemsize, label.count
    )
    with record.noted():
        return _work(dist.all_to_all_single(got, sent, out_sizes, given_sizes, group.handle, async_op=True))


def all_reduce(group: Group, label: Label, block: torch.Tensor, op: ReduceOp) -> dist.Work:
    """Reduces ``block`` over the group, in place; avg is summed only. Every member gets the same bits."""
    if not record.recording():
        return _work(dist.all_reduce(block, _REDUCE[op], group.handle, async_op=True))
    size = 2 * (group.size - 1) * block.nbytes // group.size
    record.note(label.kind, label.axes, size, size, label.count)
    with record.noted():
        return _work(dist.all_reduce(block, _REDUCE[op], group.handle, async_op=True))


def reduce_scatter(group: Group, label: Label, out: torch.Tensor, given: torch.Tensor, op: ReduceOp) -> dist.Work:
    """Reduces the equal pieces of ``given`` over the group, each at its owner; avg is summed only."""
    if not record.recording():
        return _work(_reduce_scatter(out, given, _REDUCE[op], group.handle, async_op=True))
    size = out.nbytes * (group.size - 1)
    record.note(label.kind, label.axes, size, size, label.count)
    with record.noted():
        return _work(_reduce_scatter(out, given, _REDUCE[op], group.handle, async_op=True))


def reduce_scatter_at_once(group: Group, out: torch.Tensor, given: torch.Tensor, op: ReduceOp) -> None:
    """``reduce_scatter`` to its end, where nobody takes note."""
    _reduce_scatter(out, given, _REDUCE[op], group.handle)


def send(group: Group, label: Label, tensors: Sequence[tuple[int, torch.Tensor]], tag: int) -> list[dist.Work]:
    """Sends flat contiguous tensors to members, by their places in the group; at most one to each.

    Under another ``tag`` (at most 2**30) nothing is received: ranks that exchange different things wait for each other
    instead. ``receive`` ends what ``label`` counts here.
    """
    handle = group.handle
    if not record.recording():
        return [torch_private.send(handle, wire(t), i, tag) for i, t in tensors]
    record.note(label.kind, label.axes, 0, sum(t.nbytes for _, t in tensors), label.count)
    with record.noted():
        return [torch_private.send(handle, wire(t), i, tag) for i, t in tensors]


def receive(group: Group, label: Label, tensors: Sequence[tuple[int, torch.Tensor]], tag: int) -> list[dist.Work]:
    """Fills flat contiguous tensors with what members ``send``, by their places in the group."""
    handle = group.handle
    if not record.recording():
        return [torch_private.receive(handle, wire(t), i, tag) for i, t in tensors]
    record.note(label.kind, label.axes, sum(t.nbytes for _, t in tensors), 0, 0)
    with record.noted():
        return [torch_private.receive(handle, wire(t), i, tag) for i, t in tensors]


def _work(work: dist.Work | None) -> dist.Work:
    assert work is not None  # only for a rank outside the group, which never gets here
    return work
