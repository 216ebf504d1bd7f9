"""A thread that looks after waits: it wakes a rank that waits for ranks which failed, or which do something else.

A wait in a backend ends by itself only with the connection that it is on, or when its time runs out. So where a thread
is in one turn for longer than a tick, the watcher asks the store of the launch whether another rank of that turn has
failed; where it is for longer than ``late()``, it also says there which turns it is and was in, and finds out whether
another rank was in other ones. In both cases it cuts the groups on which the thread waits. It costs ranks that do not
wait nothing but a glance, twice a second.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from attrs import frozen

from shardlang.lower import torch_private
from shardlang.runtime import groups, turns
from shardlang.runtime.turns import Line, Turn

TICK = 0.5
"""Seconds between two glances."""
LATE = 5.0
"""Seconds of one wait from which on ranks compare what they are at; a third of the timeout where that is less."""

PATIENCE = 3
"""How often in a row the store may fail to answer before it is taken for gone, and with it the launch."""


@frozen
class Difference:
    """Two ranks whose turns of one number are not the same, each with its turn in words."""

    ranks: tuple[int, int]
    words: tuple[str, str]


def late() -> float:
    return min(LATE, groups.timeout() / 3)


def ensure() -> None:
    """Starts the watcher, where there is none of the present launch and somebody to wait for."""
    world: Any = dist.group.WORLD
    if (_watcher and _watcher[0] is world) or dist.get_world_size() == 1 or dist.get_backend() == "fake":
        return
    with _lock:
        if _watcher and _watcher[0] is world:
            return
        # A connection of its own: one on which another thread waits would make this one wait as well.
        store = torch_private.default_store().clone()
        _watcher[:] = [world]
        threading.Thread(target=_watch, args=(world, store), name="shardlang-watch", daemon=True).start()


def place(line: Line) -> str:
    """Where in the store the words of these ranks about their next failure are."""
    ranks = ".".join(map(str, line.ranks))
    name = ranks if len(ranks) <= 64 else hashlib.sha256(ranks.encode()).hexdigest()[:32]
    return f"shardlang/turns/{name}/{line.incidents}"


def report(store: Any, line: Line) -> None:
    """Tells the other ranks' watchers that the present turn of these ranks has failed."""
    store.set(f"{place(line)}/failed", "1")


def difference(store: Any, line: Line) -> Difference | None:
    """What the watchers found out about the turn that failed."""
    key = f"{place(line)}/difference"
    if not store.check([key]):
        return None
    told = json.loads(store.get(key))
    return Difference(tuple(told["ranks"]), tuple(told["words"]))


def close(line: Line) -> None:
    """The failure is told: words from now on are about another one, and turns are counted from here on.

    A rank that failed otherwise than the others may have counted others.
    """
    with _lock:
        line.incidents += 1
        line.number = 0
        line.recent.clear()


def _watch(world: Any, store: Any) -> None:
    waits: dict[int, tuple[Turn, float, bool]] = {}
    failures = 0
    while failures < PATIENCE and dist.is_initialized() and dist.group.WORLD is world:
        time.sleep(TICK)
        now = time.monotonic()
        for thread, turn in list(turns.inside.items()):
            if turn is None:
                waits.pop(thread, None)
                continue
            seen, since, compared = waits.get(thread, (None, now, False))
            if seen is not turn:
                waits[thread] = (turn, now, False)
                continue
            try:
                if not compared and now - since >= late():
                    waits[thread] = (turn, since, True)
                    _compare(store, turn)
                if store.check([f"{place(turn[0])}/failed"]):
                    _wake(thread, turn)
                failures = 0
            except (RuntimeError, OSError):
                failures += 1


def _compare(store: Any, turn: Turn) -> None:
    """Says which turns this rank has been in; the first rank to say it of a number is what the others compare with."""
    line = turn[0]
    me, at = dist.get_rank(), place(line)
    for number, subject in list(line.recent):
        mine = {"rank": me, "key": turns.key_of(subject), "words": f"{subject} (turn {number} of these ranks)"}
        first = json.loads(store.compare_set(f"{at}/{number}", "", json.dumps(mine)))
        if first["key"] != mine["key"]:
            one, other = sorted((first, mine), key=_rank)
            told = {"ranks": [one["rank"], other["rank"]], "words": [one["words"], other["words"]]}
            store.compare_set(f"{at}/difference", "", json.dumps(told))
            store.set(f"{at}/failed", "1")
            return


def _rank(word: dict[str, Any]) -> int:
    return int(word["rank"])


def _wake(thread: int, turn: Turn) -> None:
    with _lock:
        if turns.inside.get(thread) is turn:
            groups.cut_within(turn[0].ranks)


_lock = threading.Lock()
_watcher: list[object] = []
"""The default process group that is watched."""


__all__: Sequence[str] = ["Difference", "close", "difference", "ensure", "late", "place", "report"]
