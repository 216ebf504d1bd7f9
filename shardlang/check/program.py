"""A checked program: what every later stage reads. Names are resolved, rules applied, meshes sized; no syntax left.

Sizes stay expressions over ``let`` constants and free names, since a free name is bound by the shapes it meets
(``check.bind``). Spans stay, so that an error found late still points at the user's text.
"""

from __future__ import annotations

from typing import Literal

from attrs import field, frozen

from shardlang.layout import Cut, Pending
from shardlang.mesh import Link, Mesh
from shardlang.source import Source, Span


@frozen
class Size:
    """A size expression: an integer, a free name, or an operation on two sizes. ``let`` names are folded already."""

    kind: Literal["int", "name", "+", "*", "//"]
    span: Span
    value: int = 0
    name: str = ""
    left: Size | None = None
    right: Size | None = None


@frozen
class SpecFactor:
    """A factor of a dim: its size (``None`` for ``_``) and the axes that cut it, major to minor.

    ``fallback``: the cuts come from a ``rules`` line with ``else whole``, and are left out where they do not divide.
    """

    size: Size | None
    cuts: tuple[str, ...] = ()
    span: Span | None = None
    fallback: bool = False


@frozen
class SpecDim:
    """One dim of a spec: factors, then flat cuts. ``rest`` is ``...``; ``choose`` is ``/?``, the planner's choice."""

    factors: tuple[SpecFactor, ...]
    flat: tuple[Cut, ...] = ()
    rest: bool = False
    choose: bool = False
    span: Span | None = None


@frozen
class TensorSpec:
    """A tensor's layout as declared. ``dims`` is ``None`` for ``whole``; ``grad`` is the gradient's, if written."""

    dims: tuple[SpecDim, ...] | None
    span: Span
    dtype: str | None = None
    pending: tuple[Pending, ...] = ()
    grad: TensorSpec | None = None


@frozen
class Arg:
    """A named tensor of a signature; results may be unnamed (``name`` empty); ``_`` passes one untouched (no spec)."""

    name: str
    spec: TensorSpec | None
    span: Span


@frozen
class Fn:
    name: str
    mesh: Mesh | None
    args: tuple[Arg, ...]
    results: tuple[Arg, ...]
    span: Span
    many: bool = False
    """The results are a list, even one of a single tensor."""


@frozen
class Reshard:
    name: str
    mesh: Mesh
    source: TensorSpec
    target: TensorSpec
    span: Span


@frozen
class PathPattern:
    """A pattern over dotted names: ``*`` anything in a component, ``{a,b}`` either, ``[0..3]`` a range, ``**`` any
    number of components.

    ``root`` alone is the model itself and ``otherwise`` (only in ``param``) all that no other line claims. ``text`` has
    no blanks.
    """

    text: str
    span: Span

    def part(self, start: int, length: int) -> Span:
        """Where a part of the pattern's text, of no blanks itself, was written."""
        places = [i for i, c in enumerate(self.span.text) if c not in " \t"]
        begin = self.span.start + places[start]
        return self.span.source.span(begin, begin + length)


@frozen
class ParamLine:
    pattern: PathPattern
    spec: TensorSpec
    span: Span


@frozen
class CallLine:
    pattern: PathPattern
    args: tuple[Arg, ...]
    results: tuple[Arg, ...]
    span: Span
    eager: bool = False
    many: bool = False


@frozen
class FsdpLine:
    """One ``fully_shard`` group a matched module. ``over`` and ``replicate`` are axes; options by name."""

    pattern: PathPattern
    over: tuple[str, ...]
    replicate: tuple[str, ...]
    span: Span
    param_dtype: str | None = None
    reduce_dtype: str | None = None
    output_dtype: str | None = None
    reshard: bool | int = True
    prefetch: int = 0
    offload: bool = False
    float8: bool = False
    """Are weights of linear layers gathered as float8 (``all_gather float8``)?"""
    over_span: Span | None = None
    reshard_span: Span | None = None


@frozen
class CompileLine:
    """Modules that go through ``torch.compile``. ``backend`` is torch's name of one; ``None``: torch's own choice."""

    pattern: PathPattern
    backend: str | None = None


@frozen
class Model:
    name: str
    reference: str | None
    mesh: Mesh
    params: tuple[ParamLine, ...]
    calls: tuple[CallLine, ...]
    fsdp: tuple[FsdpLine, ...]
    checkpoint: tuple[PathPattern, ...]
    freeze: tuple[PathPattern, ...]
    span: Span
    reference_span: Span | None = None
    compile: tuple[CompileLine, ...] = ()
    rules: tuple[OperatorRule, ...] = ()
    """Those of operators that the file declares: they count in the model's calls."""


@frozen
class Transfer:
    source: str
    target: str
    span: Span


@frozen
class Budget:
    model: str
    span: Span
    memory: int | None = None
    peak: float | None = None
    forbid: tuple[tuple[str, str], ...] = ()
    """(kind of step, link) pairs that no plan may use."""
    memory_span: Span | None = None
    forbid_spans: tuple[Span, ...] = ()
    """One for each of ``forbid``."""


@frozen
class OperatorRule:
    """``rule aten.mm: [i k+] [k+ j] -> [i j]``; factors as written, marks ``+`` and ``!`` kept with the name."""

    operator: str
    inputs: tuple[tuple[tuple[str, ...], ...], ...]
    outputs: tuple[tuple[tuple[str, ...], ...], ...]
    span: Span


@frozen
class Program:
    """All of a file. ``lets`` holds the folded constants, ``--set`` applied."""

    source: Source
    links: dict[str, Link] = field(factory=dict, eq=False)
    meshes: dict[str, Mesh] = field(factory=dict, eq=False)
    lets: dict[str, int] = field(factory=dict, eq=False)
    fns: dict[str, Fn] = field(factory=dict, eq=False)
    reshards: dict[str, Reshard] = field(factory=dict, eq=False)
    models: dict[str, Model] = field(factory=dict, eq=False)
    transfers: tuple[Transfer, ...] = ()
    budgets: tuple[Budget, ...] = ()
    rules: tuple[OperatorRule, ...] = ()
