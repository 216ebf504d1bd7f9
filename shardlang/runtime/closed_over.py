"""Parameters that a function uses without taking them: of modules and parameters in its closure or its globals.

They are arguments that no signature names: each comes in the layout that it has (a plain one is whole), gets its
gradient, and is looked up at every call.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from operator import attrgetter
from types import CellType, CodeType
from typing import Any

from attrs import frozen
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


@frozen
class Outside:
    """What a function uses from outside: where its parameters and buffers are, by name, and its modules. Each once."""

    slots: dict[str, Slot]
    modules: tuple[nn.Module, ...]

    def tensors(self) -> list[Any]:
        """The parameters and buffers as they are now."""
        return [owner[key] for owner, key in self.slots.values()]

    def training(self) -> tuple[bool, ...]:
        """Which modules are in training, which their forward may depend on."""
        return tuple(map(attrgetter("training"), self.modules))


def closed_over(function: Callable[..., Any]) -> Outside:
    """What a function uses from outside, by its closure and by the global names in its code."""
    found: dict[str, Slot] = {}
    modules: dict[nn.Module, None] = {}
    seen: set[int] = set()

    def note(name: str, slot: Slot) -> None:
        value = slot[0][slot[1]]
        if isinstance(value, nn.Module):
            for path, part in value.named_modules():
                modules[part] = None
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
        return Outside(found, tuple(modules))
    for name, cell in zip(code.co_freevars, inner.__closure__ or (), strict=True):
        try:
            note(name, (_Cell(cell), name))
        except ValueError:  # an empty cell: the name is bound later
            continue
    for name in _names(code):
        if name in inner.__globals__:
            note(name, (inner.__globals__, name))
    return Outside(found, tuple(modules))


def _names(code: CodeType) -> Iterator[str]:
    """The global names that a function's code uses, with that of the functions in it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
