"""The stream of seeds of the counter-based generator: the same on every rank, and the same again in a recomputation.

What is computed again in a backward pass (activation checkpointing, torch's or ours) must draw what it drew before.
Checkpointing puts torch's own generator back to where it was; so each seed is filed under a number drawn from that
generator, and a recomputation, which draws the same number, finds it. The number is never used for anything else:
torch's generators may differ between ranks.
"""

from __future__ import annotations

from itertools import count
from typing import Any

import torch

from shardlang.lower import torch_tracing

KEPT = 1 << 16
"""How many seeds may be out between a forward pass and its backward pass; the oldest goes first."""

_stream: list[Any] = [0, count(1)]
_filed: dict[int, int] = {}


def manual_seed(seed: int) -> None:
    """Starts the stream of seeds of ``rand``, ``randn`` and of dropout anew. It is not torch's, which may differ
    between ranks."""
    _stream[:] = [seed << 32, count(1)]


def next_seed() -> int:
    """The next seed of ``manual_seed``'s stream, which is the same on every rank."""
    return int(_stream[0] + next(_stream[1]))


def seed_of_call() -> int:
    """The seed of one call of a program that draws: a new one, but in a recomputation that of the first computation."""
    with torch_tracing.without_modes():
        place = int(torch.randint(1 << 62, (1,)))
    if torch_tracing.in_backward() and place in _filed:
        return _filed[place]
    seed = _filed[place] = next_seed()
    if len(_filed) > KEPT:
        del _filed[next(iter(_filed))]
    return seed
