"""The syntax tree of sizes, specs and signatures; ``tree`` has the rest, and all of it by name.

Two trees are equal when they say the same: spans do not count. Names stay ``Name`` nodes, so that an error about one
can point at it; sizes stay expressions.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from attrs import field, frozen

from shardlang.source import Span


@frozen
class Name:
    """An identifier, as written."""

    text: str
    span: Span = field(eq=False, repr=False)

    def __str__(self) -> str:
        return self.text


# Expressions of sizes


@frozen
class Int:
    """A literal size."""

    value: int
    span: Span = field(eq=False, repr=False)


@frozen
class Ref:
    """A size by name: a ``let``, or a free name that unification binds. ``name`` is the text."""

    name: str
    span: Span = field(eq=False, repr=False)


@frozen
class Binary:
    """Two sizes combined. In a spec only ``*`` occurs; ``let`` has all three. The tree leans left and is never deep."""

    op: Literal["+", "*", "//"]
    left: Expr
    right: Expr
    span: Span = field(eq=False, repr=False)


Expr: TypeAlias = Int | Ref | Binary


# Tensor specs


@frozen
class Cut:
    """What stands after a ``/``: an axis (``even``, or ``uneven`` with ``~``), ``.`` (``whole``), ``?`` (``choose``).

    ``axis`` is ``None`` for the last two. ``whole`` is then the only cut of its dim; ``choose`` stands last.
    """

    kind: Literal["even", "uneven", "whole", "choose"]
    axis: Name | None
    span: Span = field(eq=False, repr=False)


@frozen
class Dim:
    """A dim, or a factor of one: a size (``None`` for ``_``) and its cuts, major to minor."""

    size: Expr | None
    cuts: tuple[Cut, ...]
    span: Span = field(eq=False, repr=False)


@frozen
class Group:
    """``(kv/tp k)/fsdp``: one dim made of factors, major to minor, then cuts of the flattened local dim."""

    factors: tuple[Dim, ...]
    cuts: tuple[Cut, ...]
    span: Span = field(eq=False, repr=False)


@frozen
class Rest:
    """``...``: any number of leading dims, not split."""

    span: Span = field(eq=False, repr=False)


SpecDim: TypeAlias = Dim | Group | Rest


@frozen
class Owed:
    """One pending axis of ``{+tp, avg dp}``."""

    op: Literal["sum", "avg", "max", "min"]
    axis: Name
    span: Span = field(eq=False, repr=False)


@frozen
class Pending:
    """``{+tp, avg dp}``: at least one."""

    owed: tuple[Owed, ...]
    span: Span = field(eq=False, repr=False)


@frozen
class Tensor:
    """``bf16[batch/dp seq d]{+tp}``. The span covers all of it."""

    dtype: Name | None
    dims: tuple[SpecDim, ...]
    pending: Pending | None
    span: Span = field(eq=False, repr=False)


@frozen
class Whole:
    """``whole``: every rank holds all of it, whatever its shape."""

    span: Span = field(eq=False, repr=False)


@frozen
class Spec:
    """A tensor and, where written, its gradient: another tensor, or what is pending in it (dims as the tensor's)."""

    tensor: Tensor | Whole
    grad: Tensor | Whole | Pending | None
    span: Span = field(eq=False, repr=False)


@frozen
class Change:
    """``A => B``."""

    source: Spec
    target: Spec
    span: Span = field(eq=False, repr=False)


@frozen
class Arg:
    """A tensor of a signature. A result may have no name; a result ``_`` has no spec either and passes untouched."""

    name: Name | None
    spec: Spec | None
    span: Span = field(eq=False, repr=False)


@frozen
class Signature:
    """``(x: [..], ..) -> [..]`` or ``-> (a: [..], _)``. ``many`` tells a list of one result from a bare result."""

    args: tuple[Arg, ...]
    results: tuple[Arg, ...]
    many: bool
    span: Span = field(eq=False, repr=False)
