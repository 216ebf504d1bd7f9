"""Parameters that a function uses without taking them: of modules and parameters in its closure or its globals.

They are arguments that no signature names: each comes in the layout that it has (a plain one is whole), gets its
gradient, and is looked up at every call.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from types import CellType, CodeType
from typing import Any

from torch import nn

from shardlang.runtime.attributes import Slot


class _Cell:
    """A cell of a closure, as a place with one key."""

    def __init__(self, cell: CellType) -> None:
        self.cell = cell

    def __getitem__(self, _: str) -> Any:
        return self.cell.cell_contents

    def __setitem__(self, _: str, value: Any) -> None:
        self.cell.cell_contents = value


def closed_over(function: Callable[..., Any]) -> dict[str, Slot]:
    """Where the parameters are that a function uses from outside, by name; buffers of modules, too. Each once."""
    found: dict[str, Slot] = {}
    seen: set[int] = set()

    def note(name: str, slot: Slot) -> None:
        value = slot[0][slot[1]]
        if isinstance(value, nn.Module):
            for path, part in value.named_modules():
                for tensors in (part._parameters, part._buffers):
                    for last, tensor in tensors.items():
                        if tensor is not None and id(tensor) not in seen:
                            seen.add(id(tensor))
                            found["_".join(filter(None, (name, path.replace(".", "_"), last)))] = tensors, last
        elif isinstance(value, nn.Parameter) and id(value) not in seen:
            seen.add(id(value))
            found[name] = slot

    inner = inspect.unwrap(function)
    if inspect.ismethod(inner):
        holder = {"self": inner.__self__}
        note("self", (holder, "self"))
        inner = inner.__func__
    code = getattr(inner, "__code__", None)
    if code is None:
        return found
    for name, cell in zip(code.co_freevars, inner.__closure__ or (), strict=True):
        try:
            note(name, (_Cell(cell), name))
        except ValueError:  # an empty cell: the name is bound later
            continue
    for name in _names(code):
        if name in inner.__globals__:
            note(name, (inner.__globals__, name))
    return found


def _names(code: CodeType) -> Iterator[str]:
    """The global names that a function's code uses, with that of the functions in it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
