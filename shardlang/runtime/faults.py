"""When a transfer fails: which step of which plan, over which ranks, and who is missing.

A backend only knows that a connection closed or a wait ran out. So each rank that fails leaves a word in the store
of the launch and looks, for a moment, who else did: a member without a word is the one that is missing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch.distributed as dist

from shardlang.diagnostics import ShardlangError, sl07_runtime
from shardlang.lower import torch_private
from shardlang.runtime.groups import abandon_within

if TYPE_CHECKING:
    from shardlang.runtime.distributed import ReadyPlan

GRACE = 3.0
"""Seconds in which the others' words are awaited. Members on one link fail within milliseconds of each other."""


_OF_THE_WIRE = ("peer", "timed out", "timeout", "connect", "socket", "nccl", "broken", "store", "closed")
"""Words of backends for a transfer that failed on the way, and not for one that was asked for wrongly."""


def lost(plan: ReadyPlan, index: int, error: Exception) -> Exception:
    """The diagnostic of a failed step (``index`` -1: of the agreement before the first); ``error`` if it is no such."""
    if not any(word in str(error).lower() for word in _OF_THE_WIRE):
        return error
    steps = plan.plan.steps
    where = "agreement" if index < 0 else steps[index].kind
    axes = () if index < 0 else steps[index].axes
    missing, hosts = silent_ranks(plan.ranks, where)
    abandon_within(plan.ranks)
    cause = str(error).strip().splitlines()
    return ShardlangError(
        sl07_runtime.rank_missing(
            what=f"{plan.plan.source} => {plan.plan.target}",
            step=index + 1,
            steps=len(steps),
            kind=where,
            axes=axes,
            ranks=plan.ranks,
            missing=missing,
            store_gone=hosts,
            cause=cause[0] if cause else type(error).__name__,
        )
    )


@contextmanager
def guarded(plan: ReadyPlan, index: int) -> Iterator[None]:
    """Inside, what a backend raises becomes the diagnostic of a step of a plan."""
    try:
        yield
    except RuntimeError as error:
        raise lost(plan, index, error) from error


def silent_ranks(ranks: tuple[int, ...], where: str) -> tuple[tuple[int, ...], bool]:
    """The members that left no word, and whether the store itself is gone."""
    me = dist.get_rank()
    try:
        store = torch_private.default_store()
        store.set(_key(me), json.dumps({"where": where}))
        silent = {r for r in ranks if r != me}
        end = time.monotonic() + GRACE
        while silent and time.monotonic() < end:
            silent = {r for r in silent if not store.check([_key(r)])}
            time.sleep(0.05)
    except (RuntimeError, OSError):
        return (), True
    return tuple(sorted(silent)), False


def _key(rank: int) -> str:
    return f"shardlang/fault/{rank}"
