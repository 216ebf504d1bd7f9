"""What ranks do together, one turn after another: how many there were, and in which one a thread is now.

Ranks of one set must take their turns in the same order. Each counts its own and remembers the last few, so that one
that waits for long can tell the others which turn it is in (see ``watch``). This is on the way of every transfer:
counting costs a fraction of a microsecond, and nothing is said to anybody.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Protocol

import torch.distributed as dist
from attrs import define, field

KEPT = 8
"""How many turns of some ranks are remembered."""


class Subject(Protocol):
    """What a turn is about: ``str`` of it is for messages, and two of one ``key`` are the same."""

    @property
    def key(self) -> str: ...


@define(eq=False)
class Line:
    """The turns of some ranks (torch's), as this one of them has taken them."""

    ranks: tuple[int, ...]
    number: int = 0
    """How many there were."""
    recent: deque[tuple[int, Subject | str]] = field(factory=lambda: deque(maxlen=KEPT))
    incidents: int = 0
    """How many of them failed. Words about a failure are under its number, so that old ones are not taken for new."""


Turn = tuple[Line, int, Subject | str]
"""One turn: of which ranks, the how manieth, and what is done."""

_lines: dict[tuple[int, ...], Line] = {}
_world: list[object] = []

inside: dict[int, Turn | None] = {}
"""The turn in which each thread of this process is, by the thread's number."""


def line_of(ranks: tuple[int, ...]) -> Line:
    """The turns of these ranks. They start anew with a new default process group."""
    world = dist.group.WORLD
    if not _world or _world[0] is not world:
        _lines.clear()
        _world[:] = [world]
    found = _lines.get(ranks)
    if found is None:
        found = _lines[ranks] = Line(ranks)
    return found


def begin(line: Line, subject: Subject | str) -> Turn:
    """Counts a turn; this thread is in it until ``leave``."""
    line.number = number = line.number + 1
    line.recent.append((number, subject))
    turn = inside[get_ident()] = (line, number, subject)
    return turn


def enter(turn: Turn | None) -> None:
    """This thread is in a turn that was begun before (or in none)."""
    inside[get_ident()] = turn


def leave() -> None:
    """This thread is in no turn any more."""
    inside[get_ident()] = None


@contextmanager
def taken(ranks: tuple[int, ...], subject: Subject | str) -> Iterator[Line]:
    """A turn from its beginning to its end, within whatever turn this thread is in already."""
    before = inside.get(get_ident())
    line = line_of(ranks)
    begin(line, subject)
    try:
        yield line
    finally:
        enter(before)


def key_of(subject: Subject | str) -> str:
    return subject if isinstance(subject, str) else subject.key


__all__ = ["Line", "Subject", "Turn", "begin", "enter", "inside", "key_of", "leave", "line_of", "taken"]
