"""What was sent, noted where it is sent.

The code that issues a collective notes it here, with the bytes of the tensors that it hands over; nothing in this
module knows of plans, so that a plan and a record can be held against each other.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from attrs import frozen


@frozen
class Issued:
    """One collective as this rank issued it. ``axes`` are mesh axes as the issuer knows them (or a group's name)."""

    kind: str
    axes: tuple[str, ...]
    bytes_received: int
    bytes_sent: int
    count: int = 1
    """0 for the second half of one that is done in two, such as a reduction in pieces that are gathered again."""
    at_most: bool = False
    """Are the bytes a bound? Only where a plan says what values decide; what ran was counted."""


class Recorder:
    """Collects what this process issues while it is entered; recorders nest, each sees everything.

    with Recorder() as recorder:
        ...
    recorder.summary()
    """

    def __init__(self) -> None:
        self.issued: list[Issued] = []

    def __enter__(self) -> Recorder:
        _active.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        _active.remove(self)

    @property
    def bytes_received(self) -> int:
        return sum(i.bytes_received for i in self.issued)

    @property
    def bytes_sent(self) -> int:
        return sum(i.bytes_sent for i in self.issued)

    def summary(self) -> list[dict[str, Any]]:
        """``kind``, ``axes``, ``count``, ``bytes`` (received), by kind and axes, in order of first use."""
        count: Counter[tuple[str, tuple[str, ...]]] = Counter()
        received: Counter[tuple[str, tuple[str, ...]]] = Counter()
        for entry in self.issued:
            count[entry.kind, entry.axes] += entry.count
            received[entry.kind, entry.axes] += entry.bytes_received
        return [
            {"kind": kind, "axes": list(axes), "count": n, "bytes": received[kind, axes]}
            for (kind, axes), n in count.items()
        ]


_active: list[Recorder] = []
_state = threading.local()


def note(
    kind: str, axes: tuple[str, ...], bytes_received: int, bytes_sent: int, count: int = 1, *, at_most: bool = False
) -> None:
    """Tells every entered recorder of one collective. Costs next to nothing where there is none."""
    if _active:
        entry = Issued(kind, axes, bytes_received, bytes_sent, count, at_most)
        for recorder in _active:
            recorder.issued.append(entry)


def recording() -> bool:
    """Is any recorder entered?"""
    return bool(_active)


@contextmanager
def noted() -> Iterator[None]:
    """Inside, collectives are noted by their issuer: hooks around torch's own collectives must not note them again."""
    before = is_noted()
    _state.noted = True
    try:
        yield
    finally:
        _state.noted = before


def is_noted() -> bool:
    """Does the issuer of what this thread does now note it itself?"""
    return bool(getattr(_state, "noted", False))
