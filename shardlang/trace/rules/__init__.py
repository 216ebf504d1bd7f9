"""The rules of operators, by name: ``aten.add.Tensor`` for an overload, ``aten.add`` for all of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from importlib import import_module

from shardlang.trace.call import RuleMaker

RULES: dict[str, RuleMaker] = {}
"""Every rule, filled by the modules of this room when the first rule is looked up."""
DECLARED: set[RuleMaker] = set()
"""Those that users declared."""

MODULES = (
    "pointwise", "views", "joining", "reductions", "matrix", "networks", "indexing", "scattering", "images", "creation",
    "factors",
)  # fmt: skip


def names(text: str) -> frozenset[str]:
    """The aten operators that a list of words names."""
    return frozenset(f"aten.{word}" for word in text.split())


def rule(*operators: str) -> Callable[[RuleMaker], RuleMaker]:
    """Registers the maker of a rule for operators."""

    def decorate(make: RuleMaker) -> RuleMaker:
        for operator in operators:
            if operator in RULES:
                raise ValueError(f"{operator} has two rules")
            RULES[operator] = make
        return make

    return decorate


@lru_cache(maxsize=1)
def load() -> None:
    """Imports every module of rules, once."""
    for module in MODULES:
        import_module(f"shardlang.trace.rules.{module}")


def find(name: str) -> RuleMaker | None:
    """The maker for an operator's overload, or for the operator."""
    load()
    if name in RULES:
        return RULES[name]
    return RULES.get(".".join(name.split(".")[:2]))


def is_declared(name: str) -> bool:
    """Is an operator's rule a user's? Then it is the whole truth about the operator: no way of ours goes before it."""
    return find(name) in DECLARED
