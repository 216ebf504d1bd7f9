"""Process groups: one for each set of ranks that talk, made when first needed, kept, and released with the program.

A user's ``DeviceMesh`` is only read: no group of it is used, and nothing is flattened (torch changes its own
behaviour where a flattened mesh exists). Only members take part in making a group, and all of them come to it at the
same step of the same plan, so that the order is the same on every rank.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from attrs import define, frozen

from shardlang.lower import torch_private

CONTROL = "control"
"""In the place of a device: the group of some ranks for words between them (see ``words``)."""

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


@define(eq=False)
class Group:
    """A process group. ``ranks`` are torch's, in the group's order (ascending); ``index`` is this rank's place.

    What is prepared for it holds this and not the ``handle``, which goes when the group is destroyed: torch closes the
    connections of a group with the last reference to it.
    """

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
_cuts: list[frozenset[int]] = []
"""The ranks within which groups were cut, in order."""
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
        if _backend(device) is not None:
            _meet(name, members)
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


def _meet(name: str, members: tuple[int, ...]) -> None:
    """Waits until all members have come to make a group: torch's own wait would not say who is missing.

    Raises ``RuntimeError`` where one does not come in time, or where a group of these ranks is cut meanwhile.
    """
    store: Any = torch_private.default_store()
    store.set(f"{name}/{dist.get_rank()}", "here")
    end, pause, cuts = time.monotonic() + timeout(), 0.001, len(_cuts)
    while not store.check([f"{name}/{m}" for m in members]):
        if any(set(members) <= ranks for ranks in _cuts[cuts:]):
            raise RuntimeError("the connection to the others was closed before a group was made")
        if time.monotonic() > end:
            absent = ", ".join(str(m) for m in members if not store.check([f"{name}/{m}"]))
            raise RuntimeError(f"timed out after {timeout():g} s: rank {absent} did not come to make a group")
        time.sleep(pause)
        pause = min(2 * pause, 0.1)


def open_groups() -> int:
    """How many process groups the executor holds."""
    return len(_groups)


def cut(group: Group) -> None:
    """Ends every wait of this process on a group, with an error, at once.

    Gloo gives up all connections of a group when one wait on an open one runs out of time, so one is made that does.
    Whoever waits at the other end is woken by its own watcher: destroying a group closes nothing as long as anything
    holds it.
    """
    if group.backend != "gloo":
        with suppress(RuntimeError, NotImplementedError):
            group.handle.abort()
        return
    for peer in set(range(group.size)) - {group.index}:
        with suppress(RuntimeError):
            work = dist.irecv(torch.empty(1), group=group.handle, group_src=peer, tag=_NOBODYS)
            assert work is not None
            work.wait(timedelta(milliseconds=1))


_NOBODYS = (1 << 30) + 1
"""A tag of messages that nobody sends."""


def cut_within(ranks: tuple[int, ...]) -> None:
    """Cuts every group of some of these ranks."""
    _cuts.append(frozenset(ranks))
    for group in [g for g in list(_groups.values()) if set(g.ranks) <= set(ranks)]:
        cut(group)


def abandon(group: Group) -> None:
    """Cuts and destroys a group after a failure."""
    for key in [k for k, g in _groups.items() if g is group]:
        del _groups[key]
    _owner[1:] = [object()]
    cut(group)
    _destroy(group)


def abandon_within(ranks: tuple[int, ...]) -> None:
    """Abandons every group of some of these ranks."""
    for group in [g for g in _groups.values() if set(g.ranks) <= set(ranks)]:
        abandon(group)


def release(ranks: Iterable[int] | None = None) -> None:
    """Destroys every group that the executor made, or those among some ranks.

    All ranks must have finished what they issued on them, and must do the same: groups that are needed again are made
    anew, by all of their members.
    """
    wanted = None if ranks is None else set(ranks)
    for key, group in list(_groups.items()):
        if wanted is None or set(group.ranks) <= wanted:
            del _groups[key]
            _destroy(group)
    _owner[1:] = [object()]


def _destroy(group: Group) -> None:
    dist.destroy_process_group(group.handle)
    del group.handle


__all__ = [
    "CONTROL", "Group", "Team", "abandon", "abandon_within", "cut_within", "group_of", "open_groups", "release",
    "timeout", "token",
]  # fmt: skip
