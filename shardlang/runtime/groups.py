"""Process groups: one for each set of ranks that talk, made when first needed, kept, and released on demand.

A user's ``DeviceMesh`` is only read: no group of it is used, and nothing is flattened (torch changes its own
behaviour where a flattened mesh exists). Only members take part in making a group, and all of them come to it at the
same step of the same plan, so that the order is the same on every rank.
"""

from __future__ import annotations

import os
from collections import Counter
from datetime import timedelta

import torch.distributed as dist
from attrs import frozen

from shardlang.lower import torch_private

DEFAULT_TIMEOUT = 300.0
"""Seconds a collective may wait for a rank; ``SHARDLANG_TIMEOUT`` says otherwise."""


@frozen
class Team:
    """Which process is which rank of a mesh, and on devices of what type their tensors are.

    Without ``ranks`` a mesh's ranks are torch's own numbers. With them, ``ranks[i]`` is torch's number of the mesh's
    rank ``first + i``, as in a device mesh whose ranks do not follow each other.
    """

    device: str = "cpu"
    first: int = 0
    ranks: tuple[int, ...] | None = None

    def logical(self, rank: int) -> int:
        """The mesh's number of one of torch's ranks; -1 for one that is not in the team."""
        if self.ranks is None:
            return rank
        return self.first + self.ranks.index(rank) if rank in self.ranks else -1

    def physical(self, rank: int) -> int:
        """Torch's number of one of the mesh's ranks."""
        return rank if self.ranks is None else self.ranks[rank - self.first]


@frozen(eq=False)
class Group:
    """A process group. ``ranks`` are torch's, in the group's order (ascending); ``index`` is this rank's place."""

    handle: dist.ProcessGroup
    ranks: tuple[int, ...]
    index: int
    backend: str

    @property
    def size(self) -> int:
        return len(self.ranks)


_groups: dict[tuple[tuple[int, ...], str], Group] = {}
_made: Counter[tuple[tuple[int, ...], str]] = Counter()
"""How many groups of some ranks there have been: a name is never used again, as the store remembers its addresses."""
_owner: list[object] = []
"""The default process group that the cached ones hang on, and a token: a new one makes them all stale."""


def timeout() -> float:
    """How long a collective may wait, in seconds."""
    return float(os.environ.get("SHARDLANG_TIMEOUT", DEFAULT_TIMEOUT))


def token() -> object:
    """What is made for the groups that there are now is good as long as this is the same object."""
    world = dist.group.WORLD
    if not _owner or _owner[0] is not world:
        _groups.clear()
        _made.clear()
        _owner[:] = [world, object()]
    return _owner[1]


def group_of(ranks: tuple[int, ...], device: str = "cpu") -> Group:
    """The group of these ranks (torch's, of which this must be one). All of them must ask for it."""
    token()
    members = tuple(sorted(ranks))
    found = _groups.get((members, device))
    if found is None:
        _made[members, device] += 1
        name = f"shardlang/{'.'.join(map(str, members))}/{device}/{_made[members, device]}"
        handle = torch_private.named_group(name, list(members), timedelta(seconds=timeout()), _backend(device))
        found = Group(handle, members, members.index(dist.get_rank()), dist.get_backend(handle))
        _groups[members, device] = found
    return found


def _backend(device: str) -> str | None:
    """The backend for a device's tensors; where the launch uses others than these two, its own."""
    default = dist.get_backend_config()
    if "gloo" not in default and "nccl" not in default:
        return None
    return "nccl" if device == "cuda" else "gloo"


def open_groups() -> int:
    """How many process groups the executor holds."""
    return len(_groups)


def abandon(group: Group) -> None:
    """Destroys a group after a failure, so that members that still wait for this rank fail as well, and at once."""
    for key in [k for k, g in _groups.items() if g is group]:
        del _groups[key]
    _owner[1:] = [object()]
    dist.destroy_process_group(group.handle)


def abandon_within(ranks: tuple[int, ...]) -> None:
    """Abandons every group of some of these ranks."""
    for group in [g for g in _groups.values() if set(g.ranks) <= set(ranks)]:
        abandon(group)


def release() -> None:
    """Destroys every group that the executor made. All ranks must have finished what they issued on them."""
    for group in _groups.values():
        dist.destroy_process_group(group.handle)
    _groups.clear()
    _owner[1:] = [object()]


__all__ = ["Group", "Team", "abandon", "abandon_within", "group_of", "open_groups", "release", "timeout", "token"]
