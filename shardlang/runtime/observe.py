"""What collectives torch's own code issues: watched at the operators through which all of them must pass.

``Observer`` is a dispatch mode. It sees FSDP's collectives, DTensor's and the user's alike, and knows nothing of any
plan: which axes a collective went over is worked out from the ranks of its process group. It tells ``record`` of each,
but of those that their issuer notes itself. A collective over a single rank moves nothing and is left out.

Bytes are those of this rank, a whole reduction counted as a reduce-scatter and an all-gather, as the cost model does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import combinations
from typing import Any

import torch
import torch.distributed as dist
from attrs import frozen
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from shardlang.lower import torch_private
from shardlang.mesh import Mesh
from shardlang.runtime import record


@frozen
class Tally:
    """Collectives of one kind over the same axes: how many, and the bytes that a rank receives by all of them.

    ``axes`` are leaf axes of more than one rank, in mesh order. ``at_most``: values decide how many bytes they are, and
    these are the most.
    """

    kind: str
    axes: tuple[str, ...]
    count: int
    bytes: int
    at_most: bool = False

    def to_json(self) -> dict[str, Any]:
        said = {"kind": self.kind, "axes": list(self.axes), "count": self.count, "bytes": self.bytes}
        return {**said, "at_most": True} if self.at_most else said

    @staticmethod
    def from_json(entry: Mapping[str, Any]) -> Tally:
        return Tally(
            entry["kind"], tuple(entry["axes"]), entry["count"], entry["bytes"], bool(entry.get("at_most", False))
        )


def tally(issued: Iterable[record.Issued], mesh: Mesh) -> tuple[Tally, ...]:
    """Counts collectives by kind and axes, in alphabetical order."""
    sums: dict[tuple[str, tuple[str, ...]], tuple[int, int, bool]] = {}
    for one in issued:
        key = one.kind, leaf_axes(mesh, one.axes)
        if key[1]:
            count, received, at_most = sums.get(key, (0, 0, False))
            sums[key] = count + one.count, received + one.bytes_received, at_most or one.at_most
    return tuple(Tally(kind, axes, *sums[kind, axes]) for kind, axes in sorted(sums))


def worst_rank(lists: Iterable[tuple[Tally, ...]]) -> tuple[Tally, ...]:
    """The tallies of several ranks as one: of each kind and axes the most of any rank."""
    most: dict[tuple[str, tuple[str, ...]], tuple[int, int]] = {}
    for tallies in lists:
        for t in tallies:
            count, received = most.get((t.kind, t.axes), (0, 0))
            most[t.kind, t.axes] = max(count, t.count), max(received, t.bytes)
    return tuple(Tally(kind, axes, *most[kind, axes]) for kind, axes in sorted(most))


def leaf_axes(mesh: Mesh, axes: Iterable[str]) -> tuple[str, ...]:
    """Axes as a tally names them; a name that is no axis of the mesh stays."""
    known = {a.name for a in mesh.all_axes()}
    wanted = {leaf for name in axes if name in known for leaf in mesh.expand(name)}
    strange = tuple(name for name in axes if name not in known)
    return tuple(a.name for a in mesh.leaves() if a.name in wanted and a.size > 1) + strange


def groups_by_ranks(mesh: Mesh, rank: int) -> dict[frozenset[int], tuple[str, ...]]:
    """For each set of leaf axes, the ranks that differ from ``rank`` on these axes only."""
    leaves = [a for a in mesh.leaves() if a.size > 1]
    found: dict[frozenset[int], tuple[str, ...]] = {}
    for count in range(len(leaves) + 1):
        for axes in combinations(leaves, count):
            members = [rank]
            for axis in axes:
                stride, at = mesh.stride(axis.name), mesh.coordinate(rank, axis.name)
                members = [m + (i - at) * stride for m in members for i in range(axis.size)]
            found.setdefault(frozenset(members), tuple(a.name for a in axes))
    return found


Traffic = Callable[[int, int, int], tuple[int, int]]
"""From the bytes of a rank's input and output and the size of the group: bytes received and sent."""


def _all_gather(given: int, made: int, size: int) -> tuple[int, int]:
    return made - made // size, made - made // size


def _reduce_scatter(given: int, made: int, size: int) -> tuple[int, int]:
    return given - given // size, given - given // size


def _all_reduce(given: int, made: int, size: int) -> tuple[int, int]:
    return 2 * (given - given // size), 2 * (given - given // size)


def _all_to_all(given: int, made: int, size: int) -> tuple[int, int]:
    return made - made // size, given - given // size


def _broadcast(given: int, made: int, size: int) -> tuple[int, int]:
    return made, given


FUNCTIONAL: Mapping[str, tuple[str, Traffic]] = {
    "all_gather_into_tensor": ("all_gather", _all_gather),
    "all_gather_into_tensor_out": ("all_gather", _all_gather),
    "reduce_scatter_tensor": ("reduce_scatter", _reduce_scatter),
    "all_reduce": ("all_reduce", _all_reduce),
    "all_reduce_": ("all_reduce", _all_reduce),
    "all_to_all_single": ("all_to_all", _all_to_all),
    "broadcast": ("broadcast", _broadcast),
    "broadcast_": ("broadcast", _broadcast),
}
"""Operators of ``torch.ops._c10d_functional``; each takes its input first and names its group."""

DIRECT: Mapping[str, tuple[str, Traffic, int, int]] = {
    "allreduce_": ("all_reduce", _all_reduce, 0, 0),
    "_allgather_base_": ("all_gather", _all_gather, 1, 0),
    "allgather_": ("all_gather", _all_gather, 1, 0),
    "_reduce_scatter_base_": ("reduce_scatter", _reduce_scatter, 1, 0),
    "reduce_scatter_": ("reduce_scatter", _reduce_scatter, 1, 0),
    "alltoall_base_": ("all_to_all", _all_to_all, 1, 0),
    "alltoall_": ("all_to_all", _all_to_all, 1, 0),
    "broadcast_": ("broadcast", _broadcast, 0, 0),
}
"""Operators of ``torch.ops.c10d``, with the positions of their input and output."""


class Observer(TorchDispatchMode):
    """While it is active, notes each collective that torch issues in this process."""

    def __init__(self, mesh: Mesh, rank: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch does not annotate it
        self.mesh = mesh
        self._axes = groups_by_ranks(mesh, rank)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(t, DTensor) for t in types):
            return NotImplemented  # DTensor goes first, and this mode sees what it does to local tensors
        kwargs = kwargs or {}
        if func.namespace in ("_c10d_functional", "c10d") and not record.is_noted():
            values = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | kwargs
            if func.namespace == "c10d":
                self._direct(func._opname, args, values)
            else:
                self._functional(func._opname, args, values)
        return func(*args, **kwargs)

    def _functional(self, name: str, args: Any, values: dict[str, Any]) -> None:
        if name not in FUNCTIONAL:
            return
        kind, traffic = FUNCTIONAL[name]
        group = torch_private.group_named(values["group_name"])
        given, size = nbytes(args[0]), group.size()
        made = given * size if kind == "all_gather" else given
        if kind == "all_to_all":
            made = given // args[0].shape[0] * sum(args[1]) if args[0].shape[0] else 0
        self._note(kind, group, traffic(given, made, size))

    def _direct(self, name: str, args: Any, values: dict[str, Any]) -> None:
        if name not in DIRECT:
            return
        kind, traffic, source, target = DIRECT[name]
        group = dist.ProcessGroup.unbox(values["process_group"])
        self._note(kind, group, traffic(nbytes(args[source]), nbytes(args[target]), group.size()))

    def _note(self, kind: str, group: Any, traffic: tuple[int, int]) -> None:
        if group.size() > 1:
            ranks = frozenset(dist.get_process_group_ranks(group))
            record.note(kind, self._axes_of(ranks), *traffic)

    def _axes_of(self, ranks: frozenset[int]) -> tuple[str, ...]:
        """The axes that a group is over. ``a:2``: two neighbours of axis ``a``."""
        if ranks in self._axes:
            return self._axes[ranks]
        around = (axes for group, axes in self._axes.items() if ranks < group)
        smallest: tuple[str, ...] = min(around, key=len, default=("?",))
        return (f"{'/'.join(smallest)}:{len(ranks)}",)


def nbytes(value: Any) -> int:
    """Bytes of a tensor, or of all tensors of a nested list."""
    return sum(t.numel() * t.element_size() for t in _tensors(value))


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for v in value:
            yield from _tensors(v)
