"""When a turn fails: which step of which plan, over which ranks, and who is missing or came with something else.

A backend only knows that a connection closed or a wait ran out. So each rank that fails leaves a word in the store of
the launch and looks, for a moment, who else did: a member without a word is the one that is missing. Members that
still wait are woken by their watchers (see ``watch``), fail, and leave theirs.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from attrs import frozen

from shardlang.diagnostics import ShardlangError, sl07_runtime
from shardlang.lower import torch_private
from shardlang.runtime import turns, watch, words
from shardlang.runtime.groups import abandon_within

if TYPE_CHECKING:
    from shardlang.runtime.distributed import ReadyPlan

GRACE = 4.0
"""Seconds in which the next word of another rank is awaited: a waiting rank's watcher needs two ticks to wake it."""

_OF_THE_WIRE = ("peer", "timed out", "timeout", "connect", "socket", "nccl", "broken", "store", "closed")
"""Words of backends for a transfer that failed on the way, and not for one that was asked for wrongly."""


@frozen
class Failure:
    """What the ranks found out together about a turn that failed."""

    missing: tuple[int, ...]
    """The members that left no word."""
    store_gone: bool
    """Nobody can leave a word: the process that kept the store is dead."""
    difference: watch.Difference | None
    """Ranks that were in another turn."""
    cause: str
    """What the backend says, its first line."""

    def raise_difference(self) -> None:
        """Raises SL0701 where ranks came with different turns."""
        if self.difference is not None:
            ranks, words = self.difference.ranks, self.difference.words
            raise ShardlangError(sl07_runtime.ranks_disagree(*ranks, *words, waited=True))


def of_the_wire(error: Exception) -> bool:
    """Is it the error of a transfer that failed on its way?"""
    return any(word in str(error).lower() for word in _OF_THE_WIRE)


def failure(ranks: tuple[int, ...], error: Exception) -> Failure:
    """Leaves a word, waits for those of the others, and gives up all groups of these ranks."""
    line = turns.line_of(ranks)
    cause = next(iter(str(error).strip().splitlines()), type(error).__name__)
    try:
        store: Any = torch_private.default_store()
        silent = _silent(store, line)
        found = Failure(silent, False, watch.difference(store, line), cause)
    except (RuntimeError, OSError):
        found = Failure((), True, None, cause)
    dissolve(ranks)
    return found


def dissolve(ranks: tuple[int, ...]) -> None:
    """After a failure that all of these ranks were told of: gives up their groups, and what watchers said of it."""
    watch.close(turns.line_of(ranks))
    abandon_within(ranks)


def apart(ranks: tuple[int, ...], error: words.Differ) -> ShardlangError:
    """The diagnostic (SL0701) of ranks that met about different things."""
    dissolve(ranks)
    return ShardlangError(sl07_runtime.ranks_disagree(*error.ranks, *error.words))


def _silent(store: Any, line: turns.Line) -> tuple[int, ...]:
    """The members that leave no word, when none has come for a while."""
    me, at = dist.get_rank(), watch.place(line)
    store.set(f"{at}/word/{me}", "failed")
    watch.report(store, line)
    silent = set(line.ranks) - {me}
    end = time.monotonic() + GRACE
    while silent and time.monotonic() < end:
        left = {r for r in silent if not store.check([f"{at}/word/{r}"])}
        if left != silent:
            silent, end = left, time.monotonic() + GRACE
        time.sleep(0.05)
    return tuple(sorted(silent))


def lost(plan: ReadyPlan, index: int, error: Exception) -> Exception:
    """The diagnostic of a failed step (``index`` -1: of the agreement before the first); ``error`` if it is no such.

    Raises ShardlangError (SL0701) where it failed because a rank came with another turn.
    """
    if not of_the_wire(error):
        return error
    steps = plan.plan.steps
    found = failure(plan.ranks, error)
    found.raise_difference()
    step = (
        (0, len(steps), "agreement", ()) if index < 0 else (index + 1, len(steps), steps[index].kind, steps[index].axes)
    )
    what = f"{plan.plan.source} => {plan.plan.target}"
    return ShardlangError(
        sl07_runtime.rank_missing(what, step, plan.ranks, found.missing, found.store_gone, found.cause)
    )


@contextmanager
def guarded(plan: ReadyPlan, index: int) -> Iterator[None]:
    """Inside, what a backend raises becomes the diagnostic of a step of a plan."""
    try:
        yield
    except RuntimeError as error:
        turns.leave()
        raise lost(plan, index, error) from error


@contextmanager
def told_apart(ranks: tuple[int, ...], what: str) -> Iterator[None]:
    """A turn of some ranks that is no step of a plan: what a backend raises in it becomes a diagnostic too.

    ``what`` names it for messages. Raises ShardlangError: SL0701, SL0702.
    """
    watch.ensure()
    try:
        with turns.taken(ranks, what):
            yield
    except words.Differ as error:
        raise apart(ranks, error) from error
    except RuntimeError as error:
        if not of_the_wire(error):
            raise
        found = failure(ranks, error)
        found.raise_difference()
        raise ShardlangError(
            sl07_runtime.rank_missing(what, None, ranks, found.missing, found.store_gone, found.cause)
        ) from error


__all__ = ["Failure", "apart", "dissolve", "failure", "guarded", "lost", "of_the_wire", "told_apart"]
