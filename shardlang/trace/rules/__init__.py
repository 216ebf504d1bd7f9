"""The rules of operators, by name: ``aten.add.Tensor`` for an overload, ``aten.add`` for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from importlib import import_module
from types import MappingProxyType

from shardlang.trace.call import RuleMaker

RULES: dict[str, RuleMaker] = {}
"""Every rule, filled by the modules of this room when the first rule is looked up."""
DECLARED: set[RuleMaker] = set()
"""Those that users declared from Python, for every function."""
NONE: Mapping[str, RuleMaker] = MappingProxyType({})
_OF_FILE: ContextVar[Mapping[str, RuleMaker]] = ContextVar("rules of the file whose function is lowered", default=NONE)

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


@contextmanager
def of_file(makers: Mapping[str, RuleMaker]) -> Iterator[None]:
    """Inside, a file's own rules count, before all others, and no other file's do."""
    before = _OF_FILE.set(makers)
    try:
        yield
    finally:
        _OF_FILE.reset(before)


def find(name: str) -> RuleMaker | None:
    """The maker for an operator's overload, or for the operator; a rule of the file at hand comes first."""
    load()
    operator = ".".join(name.split(".")[:2])
    for rules in (_OF_FILE.get(), RULES):
        found = rules.get(name) or rules.get(operator)
        if found is not None:
            return found
    return None


def is_declared(name: str) -> bool:
    """Is an operator's rule a user's? Then it is the whole truth about the operator: no way of ours goes before it."""
    found = find(name)
    return found in DECLARED or (found is not None and found in _OF_FILE.get().values())
