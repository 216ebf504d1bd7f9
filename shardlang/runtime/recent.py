"""Calls found again: what a program depends on, and the programs of the latest calls by the very records they had.

A program depends on the types and layouts of its tensors, on the other arguments, and on what torch keeps beside a call
(``surroundings``). A call like a former one is found without a step of Python for each tensor: the records of DTensors
are compared by identity, at the speed of C, and the few that are others (of an input made anew, say) by what they say.
A record that was changed in place no longer has the hash that it had, so that it is not taken for what it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_
from typing import Any

import torch
from attrs import frozen

from shardlang.diagnostics import ShardlangError, sl05_functions
from shardlang.lower import torch_private, torch_tracing
from shardlang.runtime.arguments import TENSORS, key_of
from shardlang.runtime.results import forget

FEW = 4
"""How many records of a call may be others than before; where more are, it is looked up by all that it depends on."""


@frozen(eq=False)
class _Call:
    specs: list[Any]
    hashes: list[int | None]
    plain: tuple[int, ...]
    """The places of tensors that are no DTensors, which are looked at themselves."""
    keys: tuple[Any, ...]
    rest: Any
    found: Any


class Recent:
    """The latest calls of one function, each with what was ``found`` for it. ``rest`` is what counts beside tensors."""

    def __init__(self) -> None:
        self._by_last: dict[int, _Call] = {}
        """By the record of the last tensor, which the call keeps: layers with weights of their own stay apart."""
        self._last: _Call | None = None

    def find(self, tensors: Sequence[Any], rest: Any) -> Any:
        """What was kept for a call that has all in common with this one; ``None`` where there was none."""
        specs = torch_private.specs_of(tensors)
        call = self._by_last.get(id(specs[-1])) if specs else None
        if call is None:
            call = self._last
        if call is None or len(specs) != len(call.specs) or rest != call.rest:
            return None
        same = list(map(is_, specs, call.specs))
        others = same.count(False)
        if others > FEW:
            return None
        at = -1
        for _ in range(others):
            at = same.index(False, at + 1)
            if specs[at] is torch_private.PLAIN or specs[at] != call.specs[at]:
                return None
            hash(specs[at])  # which it keeps
        if torch_private.hashes_of(specs) != call.hashes:
            return None
        if call.plain and tuple([_key(tensors[i]) for i in call.plain]) != call.keys:
            return None
        return call.found

    def keep(self, tensors: Sequence[Any], rest: Any, found: Any) -> None:
        """Keeps what was found for a call."""
        specs = torch_private.specs_of(tensors)
        plain = tuple(i for i, s in enumerate(specs) if s is torch_private.PLAIN)
        for spec in specs:
            hash(spec)  # which it keeps
        keys = tuple([key_of(tensors[i]) for i in plain])
        call = _Call(specs, torch_private.hashes_of(specs), plain, keys, rest, found)
        self._last = call
        if specs:
            self._by_last[id(specs[-1])] = call
            forget(self._by_last)


def surroundings(device: str) -> tuple[Any, ...]:
    """What torch keeps beside a call and a trace depends on: the default dtype, and what autocast casts to.

    Raises ShardlangError (SL0530) where autocast is on for ``device`` and a trace, which is made on the CPU, would not
    see it.
    """
    casts = torch_tracing.autocast_state()
    if casts and any(d == device != "cpu" for d, _ in casts):
        raise ShardlangError(sl05_functions.autocast(device, None))
    return torch.get_default_dtype(), casts


def literal(value: Any, name: str, function: str) -> Any:
    """A hashable key of an argument that is no tensor: equal for values that a body cannot tell apart.

    ``1``, ``1.0`` and ``True`` are equal in Python and make different programs, and so do the two zeros. Raises
    ShardlangError (SL0531) for what has no hash.
    """
    if isinstance(value, tuple | list):
        return (type(value), *(literal(v, name, function) for v in value))
    if isinstance(value, dict):
        return (dict, *((literal(k, name, function), literal(v, name, function)) for k, v in value.items()))
    if isinstance(value, float | complex):
        return type(value), repr(value)
    try:
        hash(value)
    except TypeError as error:
        raise ShardlangError(sl05_functions.argument_without_hash(function, name, type(value).__name__)) from error
    return type(value), value


def _key(value: Any) -> Any:
    return key_of(value) if isinstance(value, TENSORS) else None
