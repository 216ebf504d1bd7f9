"""Plain tensors that modules keep as attributes, neither parameters nor buffers: a table of positions, say.

Like a buffer, each is whole and the same on every rank. It is looked up at every call, so that a later one counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

Slot = tuple[Any, Any]
"""A dict or list, and the key or place in it where a tensor is."""

TORCHS = frozenset(vars(nn.Module()))
"""What every module has as attributes of its own."""


def plain_tensors(modules: Mapping[str, nn.Module]) -> dict[str, Slot]:
    """Where the plain tensors of modules are, by name: attributes, and members of lists and dicts that are."""
    found: dict[str, Slot] = {}
    for path, part in modules.items():
        for name, value in vars(part).items():
            if name in TORCHS:
                continue
            full = f"{path}.{name}" if path else name
            if isinstance(value, Tensor):
                found[full] = vars(part), name
            elif isinstance(value, list | dict):
                members = enumerate(value) if isinstance(value, list) else value.items()
                found |= {f"{full}[{key!r}]": (value, key) for key, one in members if isinstance(one, Tensor)}
    return found


@contextmanager
def in_place_of(slots: Sequence[Slot], values: Sequence[Tensor]) -> Iterator[None]:
    """Inside, other tensors are where these are."""
    before = [owner[key] for owner, key in slots]
    for (owner, key), value in zip(slots, values, strict=True):
        owner[key] = value
    try:
        yield
    finally:
        for (owner, key), value in zip(slots, before, strict=True):
            owner[key] = value
