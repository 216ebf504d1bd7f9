"""Objects that hold tensors, such as a cache that a model gives back: taken apart and put together with others."""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterable
from typing import Any

from attrs import frozen
from torch import Tensor, nn


@frozen(eq=False)
class Held:
    """An object with its tensors left out, which ``count`` others may take the place of; ``same`` is shared by all."""

    text: bytes
    count: int
    same: tuple[Any, ...]

    def filled(self, tensors: Iterable[Tensor]) -> Any:
        """A new object like the first, with these tensors."""
        reader = pickle.Unpickler(io.BytesIO(self.text))
        places = list(tensors)
        reader.persistent_load = lambda place: places[place[1]] if place[0] == "tensor" else self.same[place[1]]  # type: ignore[method-assign]  # the way pickle is told
        return reader.load()


class _Writer(pickle.Pickler):
    """Leaves tensors and modules out of what it writes; a tensor that is met twice is one."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.tensors: list[Tensor] = []
        self.same: list[Any] = []

    def persistent_id(self, value: Any) -> tuple[str, int] | None:
        if isinstance(value, Tensor):
            return "tensor", _place(value, self.tensors)
        return ("same", _place(value, self.same)) if isinstance(value, nn.Module) else None


def _place(value: Any, known: list[Any]) -> int:
    for i, other in enumerate(known):
        if other is value:
            return i
    known.append(value)
    return len(known) - 1


def take_apart(value: Any) -> tuple[Held, list[Tensor]] | None:
    """An object and its tensors; ``None`` for one that cannot be copied or has none."""
    file = io.BytesIO()
    writer = _Writer(file)
    try:
        writer.dump(value)
    except (pickle.PicklingError, TypeError, AttributeError):
        return None
    if not writer.tensors:
        return None
    return Held(file.getvalue(), len(writer.tensors), tuple(writer.same)), writer.tensors
