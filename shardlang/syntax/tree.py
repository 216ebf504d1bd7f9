"""The syntax tree: what the text says, with the span of every node, and nothing looked up yet.

Two trees are equal when they say the same: spans do not count. Names stay ``Name`` nodes, so that an error about one
can point at it; sizes stay expressions.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from attrs import field, frozen

from shardlang.source import Span
from shardlang.syntax.model_tree import (
    Call,
    Checkpoint,
    Compile,
    Freeze,
    Fsdp,
    Model,
    ModelItem,
    Option,
    Param,
    Path,
    Reference,
)
from shardlang.syntax.spec_tree import (
    Arg,
    Binary,
    Change,
    Cut,
    Dim,
    Expr,
    Group,
    Int,
    Name,
    Owed,
    Pending,
    Ref,
    Rest,
    Signature,
    Spec,
    SpecDim,
    Tensor,
    Whole,
)

__all__ = [
    "Arg",
    "Axis",
    "Binary",
    "Binding",
    "Budget",
    "Call",
    "Change",
    "Checkpoint",
    "Compile",
    "Cut",
    "Decl",
    "Dim",
    "Expr",
    "File",
    "Fn",
    "Forbid",
    "Freeze",
    "Fsdp",
    "Group",
    "Int",
    "Let",
    "Limit",
    "Link",
    "MemoryLimit",
    "Mesh",
    "Model",
    "ModelItem",
    "Name",
    "Option",
    "Owed",
    "Param",
    "Path",
    "PeakLimit",
    "Pending",
    "Quantity",
    "Ranks",
    "Ref",
    "Reference",
    "Reshard",
    "Rest",
    "Rule",
    "RuleFactor",
    "RuleGroup",
    "RuleLine",
    "RulePattern",
    "Rules",
    "Signature",
    "Spec",
    "SpecDim",
    "Split",
    "Tensor",
    "Transfer",
    "Whole",
]


@frozen
class Quantity:
    """``450 GB/s``. ``value`` is in bytes per second, picoseconds or bytes, by ``kind``.

    ``number`` and ``unit`` are as written.
    """

    kind: Literal["bandwidth", "time", "bytes"]
    value: int
    number: str
    unit: str
    span: Span = field(eq=False, repr=False)


@frozen
class Link:
    """``link nvlink = 450 GB/s, 3 us``."""

    name: Name
    bandwidth: Quantity
    latency: Quantity
    span: Span = field(eq=False, repr=False)


@frozen
class Axis:
    """``tp:8@nvlink``; ``size`` is ``None`` for ``?``."""

    name: Name
    size: int | None
    link: Name | None
    span: Span = field(eq=False, repr=False)
    size_span: Span = field(eq=False, repr=False)


@frozen
class Ranks:
    """``ranks 0..7``, both ends included."""

    first: int
    last: int
    span: Span = field(eq=False, repr=False)


@frozen
class Mesh:
    """``mesh pod = dp:?@ib * tp:8@nvlink ranks 0..7``."""

    name: Name
    axes: tuple[Axis, ...]
    ranks: Ranks | None
    span: Span = field(eq=False, repr=False)


@frozen
class Split:
    """``split pod.tp = tp0:2 * tp1:4``."""

    mesh: Name
    axis: Name
    parts: tuple[Axis, ...]
    span: Span = field(eq=False, repr=False)


@frozen
class Binding:
    """``f = 4*d``."""

    name: Name
    value: Expr
    span: Span = field(eq=False, repr=False)


@frozen
class Let:
    """``let d = 4096, f = 4*d``."""

    bindings: tuple[Binding, ...]
    span: Span = field(eq=False, repr=False)


@frozen
class RuleLine:
    """``kv, f -> tp`` or ``vocab -> tp else whole`` (``fallback``)."""

    dims: tuple[Name, ...]
    axes: tuple[Name, ...]
    fallback: bool
    span: Span = field(eq=False, repr=False)


@frozen
class Rules:
    """``rules on pod { .. }``."""

    mesh: Name
    lines: tuple[RuleLine, ...]
    span: Span = field(eq=False, repr=False)


@frozen
class Fn:
    """``fn mlp on pod (x: ..) -> ..``."""

    name: Name
    mesh: Name | None
    signature: Signature
    span: Span = field(eq=False, repr=False)


@frozen
class Reshard:
    """``reshard cache on pod: A => B``."""

    name: Name
    mesh: Name | None
    change: Change
    span: Span = field(eq=False, repr=False)


@frozen
class Transfer:
    """``transfer llama => llama_serve``."""

    source: Name
    target: Name
    span: Span = field(eq=False, repr=False)


@frozen
class MemoryLimit:
    """``memory <= 60 GiB``."""

    most: Quantity
    span: Span = field(eq=False, repr=False)


@frozen
class PeakLimit:
    """``peak <= 1.0x``; ``ratio`` as written, without the ``x``."""

    ratio: str
    span: Span = field(eq=False, repr=False)


@frozen
class Forbid:
    """``forbid all_gather on ib``."""

    kind: Name
    link: Name
    span: Span = field(eq=False, repr=False)


Limit: TypeAlias = MemoryLimit | PeakLimit | Forbid


@frozen
class Budget:
    """``budget llama { memory <= 60 GiB; .. }``."""

    model: Name
    limits: tuple[Limit, ...]
    span: Span = field(eq=False, repr=False)


@frozen
class RuleFactor:
    """A factor of an operator's rule: a name, an integer or ``...`` with its mark.

    ``+`` contracts and leaves a pending sum, ``!`` must be whole.
    """

    name: str
    mark: Literal["", "+", "!"]
    span: Span = field(eq=False, repr=False)


@frozen
class RuleGroup:
    """``(g k+)``: one dim made of factors."""

    factors: tuple[RuleFactor, ...]
    span: Span = field(eq=False, repr=False)


@frozen
class RulePattern:
    """``[i (g k+)]``: one tensor of an operator's rule."""

    dims: tuple[RuleFactor | RuleGroup, ...]
    span: Span = field(eq=False, repr=False)


@frozen
class Rule:
    """``rule aten.mm: [i k+] [k+ j] -> [i j]``."""

    operator: Name
    inputs: tuple[RulePattern, ...]
    outputs: tuple[RulePattern, ...]
    span: Span = field(eq=False, repr=False)


Decl: TypeAlias = Link | Mesh | Split | Let | Rules | Fn | Reshard | Model | Transfer | Budget | Rule


@frozen
class File:
    """Declarations in the order of the text."""

    decls: tuple[Decl, ...]
    span: Span = field(eq=False, repr=False)
