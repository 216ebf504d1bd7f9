"""The part of the syntax tree for a ``model``: its lines, and the paths that they name."""

from __future__ import annotations

from typing import TypeAlias

from attrs import field, frozen

from shardlang.source import Span
from shardlang.syntax.spec_tree import Int, Name, Signature, Spec


@frozen
class Path:
    """A pattern over dotted names: ``layers.*.{wq,wk}.weight``, without the blanks it may have been written with."""

    text: str
    span: Span = field(eq=False, repr=False)


@frozen
class Param:
    """``param layers.*.wq.weight : [f/tp d]``; the path ``otherwise`` stands for all that no other line claims."""

    path: Path
    spec: Spec
    span: Span = field(eq=False, repr=False)


@frozen
class Call:
    """``call layers.*.attention (x: ..) -> .. eager``; the path ``root`` is the model itself."""

    path: Path
    signature: Signature
    eager: bool
    span: Span = field(eq=False, repr=False)


@frozen
class Option:
    """An option of ``fsdp`` or of ``compile``.

    ``param``, ``reduce`` or ``output`` with a dtype's name, ``reshard`` with a bool or an int, ``prefetch`` with an
    int, ``offload`` with a bool, ``all_gather`` with the name ``float8``; ``backend`` with a name. Names and kinds of
    values are already checked.
    """

    name: Name
    value: Name | Int | bool
    span: Span = field(eq=False, repr=False)
    value_span: Span = field(eq=False, repr=False)


@frozen
class Fsdp:
    """``fsdp layers.* over fsdp replicate dp { param bf16, reshard yes }``."""

    path: Path
    over: tuple[Name, ...]
    replicate: tuple[Name, ...]
    options: tuple[Option, ...]
    span: Span = field(eq=False, repr=False)


@frozen
class Checkpoint:
    """``checkpoint layers.*``."""

    path: Path
    span: Span = field(eq=False, repr=False)


@frozen
class Compile:
    """``compile layers.* { backend inductor }``."""

    path: Path
    options: tuple[Option, ...]
    span: Span = field(eq=False, repr=False)


@frozen
class Freeze:
    """``freeze tok_embeddings.**``."""

    path: Path
    span: Span = field(eq=False, repr=False)


ModelItem: TypeAlias = Param | Call | Fsdp | Checkpoint | Compile | Freeze


@frozen
class Reference:
    """``examples.llama.model:build``."""

    text: str
    span: Span = field(eq=False, repr=False)


@frozen
class Model:
    """``model llama from examples.llama.model:build on pod { .. }``."""

    name: Name
    reference: Reference | None
    mesh: Name
    items: tuple[ModelItem, ...]
    span: Span = field(eq=False, repr=False)
