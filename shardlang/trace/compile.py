"""A traced function and the layouts of its arguments become a local program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from attrs import evolve, frozen

from shardlang.check.program import OperatorRule
from shardlang.diagnostics import ShardlangError, sl05_functions
from shardlang.layout import Layout
from shardlang.mesh import Mesh
from shardlang.source import Span
from shardlang.trace.auto.choose import least
from shardlang.trace.auto.explain import explain_text
from shardlang.trace.auto.search import Given
from shardlang.trace.builder import Builder
from shardlang.trace.capture import Mark, TensorType, Trace, capture
from shardlang.trace.describe import moves_in_order
from shardlang.trace.local import add_gradients
from shardlang.trace.program import LocalProgram
from shardlang.trace.propagate import rewritten, values_in, walk
from shardlang.trace.rules import of_file
from shardlang.trace.rules.factors import makers
from shardlang.trace.values import Value


@frozen
class Argument:
    """A tensor argument: its type, the layout it comes in, the one the body sees, its gradient's, and who says so.

    ``declared`` differs from ``layout`` where a move at the boundary is due. ``gradient`` is what the signature says of
    the gradient; it counts where the argument comes in the declared layout. Over ``parts`` the gradient may stay owed.
    ``options``: the layouts that the body may see it in, where the signature leaves an axis open.
    """

    name: str
    type: TensorType
    layout: Layout
    declared: Layout | None = None
    gradient: Layout | None = None
    span: Span | None = None
    parts: frozenset[str] = frozenset()
    options: tuple[Layout, ...] = ()


ResultLayouts = Callable[[Sequence[tuple[int, ...]]], Sequence["Layout | None"]]
"""From the global shapes of the results to their layouts; ``None`` leaves a result as it comes."""
Auto = bool | Literal["near"]
"""``True``: the layouts of all values are chosen for the least modelled time. ``near``: an operator that fits its
operands takes them as they come, and one that does not takes the cheapest way."""
MarkLayout = Callable[[Mark, tuple[int, ...]], Layout]
"""From an ``sl.reshard`` in the body and the shape of its tensor to the layout it asks for."""


def compile_function(
    function: Callable[..., Any],
    arguments: Sequence[Argument],
    mesh: Mesh,
    results: ResultLayouts,
    *,
    call: Callable[..., Any] | None = None,
    mark_layout: MarkLayout | None = None,
    auto: Auto = False,
    span: Span | None = None,
) -> LocalProgram:
    """Traces, types and lowers ``call(*tensors)`` (by default the function itself).

    Raises ShardlangError with a code of SL05 for what cannot be traced or typed.
    """
    trace = capture(function, [a.type for a in arguments], call or function)
    return lower(trace, arguments, mesh, results, mark_layout=mark_layout, auto=auto, name=_name(function), span=span)


def lower(
    trace: Trace,
    arguments: Sequence[Argument],
    mesh: Mesh,
    results: ResultLayouts,
    *,
    mark_layout: MarkLayout | None = None,
    auto: Auto = False,
    name: str = "function",
    span: Span | None = None,
    rules: tuple[OperatorRule, ...] = (),
) -> LocalProgram:
    """Types a trace and builds the local program. ``results`` gives the layouts of the results; ``rules`` are those of
    the function's file.

    Raises ShardlangError: SL0529 where ``auto`` needs a solver library that is absent, else as ``compile_function``.
    """
    with of_file(makers(rules)):
        if auto is True and len(mesh.ranks) > 1 and not trace.inner:
            chosen = _least(trace, arguments, mesh, results, mark_layout, name, span)
            if chosen is not None:
                return chosen
        arguments = [evolve(a, declared=a.options[0]) if a.options else a for a in arguments]
        return _near(trace, arguments, mesh, results, mark_layout, bool(auto), name, span)


def _least(
    trace: Trace,
    arguments: Sequence[Argument],
    mesh: Mesh,
    results: ResultLayouts,
    mark_layout: MarkLayout | None,
    name: str,
    span: Span | None,
) -> LocalProgram | None:
    """The program of least modelled time; ``None`` where some operator cannot be built, which ``_near`` tells."""
    found = least(
        trace,
        [Given(a.layout, a.options or (a.declared or a.layout,), a.gradient, a.parts) for a in arguments],
        mesh,
        results,
        lambda number, shape: mark_layout(trace.marks[number], shape) if mark_layout is not None else None,
        name,
    )
    if found is None:
        return None
    builder = Builder(mesh, trace.fake, True, wanted=found.wanted, rewrite=rewritten)
    seen = [
        evolve(a, declared=layout) if a.options or a.declared is not None else a
        for a, layout in zip(arguments, found.seen, strict=True)
    ]
    made = _lowered(builder, trace, seen, results, mark_layout, name, span)
    return evolve(made, explain=lambda: explain_text(found, made))


def _near(
    trace: Trace,
    arguments: Sequence[Argument],
    mesh: Mesh,
    results: ResultLayouts,
    mark_layout: MarkLayout | None,
    auto: bool,
    name: str,
    span: Span | None,
) -> LocalProgram:
    """Under ``auto`` each misfit takes the cheapest way by itself at first; then, while the number of nodes typed
    allows, each decision in turn is tried another way, and kept so where the whole program's modelled time is less.
    """

    def built(choices: tuple[int, ...]) -> LocalProgram:
        builder = Builder(mesh, trace.fake, auto, choices, rewrite=rewritten)
        return _lowered(builder, trace, arguments, results, mark_layout, name, span)

    best = built(())
    choices = [0] * len(best.decisions)
    budget = NODES // max(len(trace.graph.nodes), 1)
    for i in range(len(choices)):
        for other in range(1, min(WAYS, len(best.decisions[i].ways) if i < len(best.decisions) else 0)):
            if budget == 0:
                return best
            budget -= 1
            tried = (*choices[:i], other)
            found = built(tried)
            if modelled_time(found) < modelled_time(best):
                best, choices = found, [*tried, *[0] * (len(found.decisions) - len(tried))]
    return best


NODES = 3000
"""How many nodes may be typed again in the search for a cheaper program: a count, so that all ranks find the same."""
WAYS = 3
"""How many ways are tried at each decision."""


def modelled_time(program: LocalProgram) -> int:
    """Picoseconds of all moves, forward and backward, and of the operators."""
    plans = [p for i in moves_in_order(program) for p in (program.moves[i].forward, program.moves[i].backward)]
    return program.work + sum(p.time for p in plans if p is not None)


def _lowered(
    builder: Builder,
    trace: Trace,
    arguments: Sequence[Argument],
    results: ResultLayouts,
    mark_layout: MarkLayout | None,
    name: str,
    span: Span | None,
) -> LocalProgram:
    placeholders = [n for n in trace.graph.nodes if n.op == "placeholder"]
    values = [
        builder.argument(a.name, a.layout, p.meta["val"], a.span) for a, p in zip(arguments, placeholders, strict=True)
    ]

    def layout_of_mark(number: int, value: Value) -> Layout:
        assert mark_layout is not None
        return mark_layout(trace.marks[number], value.shape)

    seen = [
        v if a.declared is None else builder.move(v, a.declared, "boundary")
        for v, a in zip(values, arguments, strict=True)
    ]
    made = values_in(walk(builder, trace.module, seen, layout_of_mark, trace.inner))
    layouts = list(results([v.shape for v in made]))
    if len(layouts) != len(made):
        raise ShardlangError(sl05_functions.signature_mismatch(name, "result", len(layouts), len(made), span))
    builder.gradients = True
    final = [v if t is None else builder.move(v, t, "boundary") for v, t in zip(made, layouts, strict=True)]
    builder.graph.output(tuple(v.node for v in final))
    builder.graph.eliminate_dead_code()
    declared = [a.gradient if v is s else None for a, v, s in zip(arguments, values, seen, strict=True)]
    gradients = add_gradients(builder, values, declared, [a.parts for a in arguments])
    builder.graph.eliminate_dead_code()
    builder.graph.lint()
    return LocalProgram(
        name,
        builder.graph,
        tuple(builder.moves),
        tuple(builder.rank_values),
        builder.constants,
        tuple(a.name for a in arguments),
        tuple(a.layout for a in arguments),
        gradients,
        tuple(v.layout for v in final),
        trace.results,
        tuple(a.type.dtype for a in arguments),
        tuple(v.dtype for v in final),
        tuple(builder.draws),
        tuple(builder.decisions),
        builder.work,
        tuple(builder.inner),
    )


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", "function")
