"""What checking knows of a model: names, shapes and dtypes. Read from a module by ``lower.facts``, or from a
checkpoint's header; nothing here touches torch."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import field, frozen


@frozen
class Tensor:
    """A parameter's global shape and its dtype as specs name it (torch's name where they have none)."""

    shape: tuple[int, ...]
    dtype: str
    trainable: bool = True


@frozen
class Facts:
    """A model's parameters by dotted name (every name of a tied one) and its modules (``""`` is the model).

    ``tied`` lists the names of each parameter that has several. Where ``shapes_known`` is false there are only names.
    """

    parameters: Mapping[str, Tensor]
    modules: tuple[str, ...]
    tied: tuple[tuple[str, ...], ...] = ()
    shapes_known: bool = True
    modules_known: bool = True
    """False where modules are known by their parameters alone: there may be others."""
    arguments: Mapping[str, tuple[str, ...]] = field(factory=dict)
    """For each module whose arguments are known and fixed: their names."""
    linear: frozenset[str] = frozenset()
    """The weights of ``nn.Linear`` layers, where kinds of modules are known."""


def modules_of(parameters: Mapping[str, Tensor]) -> tuple[str, ...]:
    """The modules that parameter names imply, parents before children."""
    modules = {"": None}
    for name in parameters:
        parts = name.split(".")[:-1]
        for i in range(len(parts)):
            modules[".".join(parts[: i + 1])] = None
    return tuple(modules)
