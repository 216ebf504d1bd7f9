"""Small words between ranks, on a process group of their own. Control traffic: a recorder does not count it.

Every exchange begins with words of one size, whatever the ranks are about. So ranks that are about different things
find out, where a backend would take the bytes of one for those of the other, or end the process.
"""

from __future__ import annotations

import hashlib

import torch
import torch.distributed as dist
from attrs import frozen

from shardlang.runtime import record
from shardlang.runtime.groups import CONTROL, Group, group_of


@frozen
class Differ(Exception):
    """Ranks exchange words about different things: the first rank and one that differs from it, and what each is about.

    For whoever asked to make a diagnostic of it (see ``faults.apart``).
    """

    ranks: tuple[int, int]
    words: tuple[str, str]


def group_for_words(ranks: tuple[int, ...]) -> Group:
    """The group on which some ranks exchange words, and on which no tensor of theirs ever is."""
    return group_of(ranks, CONTROL)


def tell(group: Group, about: str, mine: bytes = b"", shown: str | None = None) -> list[bytes] | None:
    """What every rank says, in the group's order; ``None`` where all say the same, for which one collective is enough.

    Raises ``Differ``, on all ranks, where they are not about the same thing; ``shown`` is what it then says of this
    rank's (``about`` itself, where it is not given).
    """
    text = (about if shown is None else shown).encode()
    word = _digest(about.encode()) + len(text).to_bytes(4, "little") + _digest(mine) + len(mine).to_bytes(8, "little")
    words = _gathered(group, word)
    if len({w[:16] for w in words}) > 1:
        room = max(int.from_bytes(w[16:20], "little") for w in words)
        texts = [t.rstrip(b"\0").decode() for t in _gathered(group, text.ljust(room, b"\0"))]
        other = next(i for i, w in enumerate(words) if w[:16] != words[0][:16])
        raise Differ((group.ranks[0], group.ranks[other]), (texts[0], texts[other]))
    if all(w[20:] == word[20:] for w in words):
        return None
    sizes = [int.from_bytes(w[36:], "little") for w in words]
    return [t[:size] for t, size in zip(_gathered(group, mine.ljust(max(sizes), b"\0")), sizes, strict=True)]


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()[:16]


def _gathered(group: Group, mine: bytes) -> list[bytes]:
    """Equally many bytes of every rank, in the group's order."""
    given = torch.frombuffer(bytearray(mine), dtype=torch.uint8)
    got = [torch.empty_like(given) for _ in range(group.size)]
    with record.noted():
        dist.all_gather(got, given, group.handle)
    return [bytes(g.tolist()) for g in got]


__all__ = ["Differ", "group_for_words", "tell"]
