"""Codes SL03: layouts and sizes. Each function takes meaning and writes the prose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shardlang.diagnostics.diagnostic import Diagnostic, Label, message
from shardlang.diagnostics.prose import conjoined, named, plural, quoted
from shardlang.source import Span


def _bound(bound: Mapping[str, tuple[int, str]]) -> tuple[str, ...]:
    """A note of the sizes bound so far and of who bound them: ``name -> (size, who)``."""
    if not bound:
        return ()
    items = [f"{n}={v}" + (f" ({who})" if who else "") for n, (v, who) in list(bound.items())[:12]]
    more = f" and {len(bound) - 12} more" if len(bound) > 12 else ""
    return ("sizes bound so far: " + ", ".join(items) + more,)


@message("SL0301", "a size that is not the one declared")
def size_conflict(
    span: Span,
    tensor: str,
    dim: int,
    actual: int,
    expected: int,
    bound: Mapping[str, tuple[int, str]],
    binder: Label | None = None,
) -> Diagnostic:
    written = span.text
    says = f"`{written}`" if written == str(expected) else f"`{written}` is {expected}"
    constant = binder is None and written.isidentifier() and written not in bound
    return Diagnostic(
        f"dim {dim} of {named(tensor)} has size {actual}, but {says}",
        span,
        label=f"{actual} in the tensor",
        labels=(binder,) if binder else (),
        notes=(*_bound(bound), *((f"`{written}` has this size by a `let` or by `--set`",) if constant else ())),
    )


@message("SL0302", "an axis that does not divide what it splits")
def does_not_divide(
    span: Span,
    tensor: str,
    what: str,
    size: int,
    axes: Sequence[tuple[str, int]],
    *,
    uneven: str | None,
    bound: Mapping[str, tuple[int, str]],
) -> Diagnostic:
    """``what`` is split: a dim or a factor as written. ``uneven``: the text that asks for uneven blocks, if any may."""
    ways = 1
    for _, k in axes:
        ways *= k
    names = "/".join(n for n, _ in axes)
    product = str(ways) if len(axes) == 1 else " * ".join(str(k) for _, k in axes) + f" = {ways}"
    near = [n for n in (size // ways * ways, (size // ways + 1) * ways) if n > 0]
    called = f"`{what}` of size {size}" if what != str(size) else f"size {size}"
    divisors = [d for d in range(1, min(size, 512) + 1) if size % d == 0]
    notes = [f"the sizes nearest to {size} that {ways} divides: {conjoined(map(str, near))}"]
    if len(divisors) <= 12:
        notes.append(f"{size} splits over {conjoined(map(str, divisors), 'or')} ranks")
    helps = [f"write `{uneven}` for uneven blocks"] if uneven else ["a factor is split by whole units, never unevenly"]
    return Diagnostic(
        f"mesh axis `{names}` ({product} ranks) does not divide {called} in {named(tensor)}",
        span,
        label=f"{size} is no multiple of {ways}",
        notes=(*notes, *_bound(bound)),
        helps=tuple(helps),
    )


@message("SL0303", "a spec with another number of dims than its tensor")
def rank_mismatch(span: Span, tensor: str, shape: Sequence[int], dims: int, rest: bool) -> Diagnostic:
    least = "at least " if rest else ""
    return Diagnostic(
        f"{named(tensor)} has {plural(len(shape), 'dim')}, but its spec has {least}{dims}",
        span,
        label=f"{least}{plural(dims, 'dim')} here",
        notes=(f"the shape of {named(tensor)} is {_shape(shape)}",),
    )


@message("SL0304", "a scalar that is asked to split")
def scalar_split(span: Span, tensor: str, axes: Sequence[str]) -> Diagnostic:
    return Diagnostic(
        f"{named(tensor)} is a scalar, and has no dim to split over {quoted(axes)}",
        span,
        label="a dim of a scalar",
        helps=("write `[]` or `whole`",),
    )


@message("SL0305", "a size that nothing determines")
def size_undetermined(
    span: Span, tensor: str, names: Sequence[str], bound: Mapping[str, tuple[int, str]]
) -> Diagnostic:
    if not names:
        text, helps = f"nothing says what size `{span.text}` of {named(tensor)} has", ("write a size or a name",)
    else:
        text = f"the size of {quoted(names)} in {named(tensor)} cannot be found"
        helps = ("write its size, or declare it with `let`",)
    return Diagnostic(text, span, label="not determined", notes=_bound(bound), helps=helps)


@message("SL0306", "an axis that is both splitting and pending")
def splits_and_pending(span: Span, axis: str, tensor: str, first: Span) -> Diagnostic:
    return Diagnostic(
        f"mesh axis `{axis}` both splits {named(tensor)} and is pending in it",
        span,
        label="pending here",
        labels=(Label(first, "splits a dim here"),),
        notes=("an axis either splits a tensor or still owes it a reduction",),
        helps=(f"remove one use of `{axis}`",),
    )


@message("SL0307", "a sub-axis beside its parent")
def beside_parent(span: Span, axis: str, other: str, parent: str, tensor: str, first: Span) -> Diagnostic:
    return Diagnostic(
        f"`{axis}` and `{other}` are used side by side in {named(tensor)}, though both are of mesh axis `{parent}`",
        span,
        label=f"used with `{other}`",
        labels=(Label(first, "first used here"),),
        notes=(f"`/{parent}` means all of its sub-axes, major to minor",),
        helps=(f"name `{parent}` alone or its sub-axes alone",),
    )


@message("SL0308", "pending reductions whose order matters")
def pending_do_not_commute(span: Span, op: str, first: Span, first_op: str, tensor: str) -> Diagnostic:
    return Diagnostic(
        f"pending {op} and pending {first_op} of {named(tensor)} do not commute",
        span,
        label=f"{op} here",
        labels=(Label(first, f"{first_op} here"),),
        notes=("sum goes with avg; max and min go alone: else the value would depend on which is reduced first",),
    )


@message("SL0309", "an uneven cut of a factor")
def uneven_factor(span: Span, axis: str) -> Diagnostic:
    return Diagnostic(
        f"`/~{axis}` cuts a factor, but an uneven cut is of a whole dim",
        span,
        label="uneven cut of a factor",
        helps=(f"write `/~{axis}` after the closing parenthesis, or `/{axis}` here",),
    )


@message("SL0310", "a number that is too large")
def number_too_large(span: Span, limit: int) -> Diagnostic:
    return Diagnostic(
        "this number is too large",
        span,
        label="too large",
        notes=(f"a size is at most {limit}",),
    )


@message("SL0311", "a launch whose ranks do not fill the mesh")
def world_size(span: Span | None, mesh: str, axes: str, nproc: int, expected: int, open_axis: bool) -> Diagnostic:
    if open_axis:
        text = f"{plural(nproc, 'rank')} cannot fill mesh `{mesh}` ({axes}): its fixed axes take {expected} at a time"
        near = [n for n in (nproc // expected * expected, (nproc // expected + 1) * expected) if n > 0]
        helps = (f"launch with `--nproc {near[-1]}`" if len(near) == 1 else f"launch {near[0]} or {near[1]} ranks",)
    else:
        text = f"mesh `{mesh}` ({axes}) has {plural(expected, 'rank')}, but the launch has {nproc}"
        helps = (f"launch with `--nproc {expected}`, or write `?` for one axis",)
    return Diagnostic(text, span, label=f"{nproc} ranks given", helps=helps)


@message("SL0312", "a mesh with two open axes")
def two_open_axes(span: Span, mesh: str, first: Span) -> Diagnostic:
    return Diagnostic(
        f"mesh `{mesh}` has two axes of size `?`",
        span,
        label="second `?`",
        labels=(Label(first, "first `?`"),),
        notes=("`?` takes what the launch has left, so that only one axis can have it",),
    )


@message("SL0313", "sub-axes that do not multiply to their axis")
def split_product(span: Span, axis: str, size: int, product: int) -> Diagnostic:
    return Diagnostic(
        f"the sub-axes of `{axis}` multiply to {product}, but it has {plural(size, 'rank')}",
        span,
        label=f"{product} in all",
    )


@message("SL0314", "a size that is no multiple of its known factors")
def size_no_multiple(
    span: Span, tensor: str, dim: int, actual: int, known: int, bound: Mapping[str, tuple[int, str]]
) -> Diagnostic:
    return Diagnostic(
        f"dim {dim} of {named(tensor)} has size {actual}, which `{span.text}` cannot be",
        span,
        label=f"no multiple of {known}" if known > 1 else f"{actual} in the tensor",
        notes=_bound(bound),
    )


@message("SL0315", "a range of ranks that is not the mesh's size")
def ranks_range(span: Span, mesh: str, size: int, first: int, last: int) -> Diagnostic:
    have = max(0, last - first + 1)
    return Diagnostic(
        f"mesh `{mesh}` has {plural(size, 'rank')}, but `{span.text}` names {have}",
        span,
        label=plural(have, "rank"),
        helps=(f"write `ranks {first}..{first + size - 1}`",),
    )


@message("SL0316", "an open axis where its size is needed")
def open_axis(span: Span | None, mesh: str, axis: str, purpose: str) -> Diagnostic:
    return Diagnostic(
        f"{purpose} needs the size of mesh axis `{axis}`{f' of `{mesh}`' if mesh else ''}, which is `?`",
        span,
        helps=("give the axis a size; where a file is launched, `--nproc N` does",),
    )


@message("SL0317", "different sizes across `=>`")
def sizes_across(span: Span, size: int, first_size: int, first: Span) -> Diagnostic:
    return Diagnostic(
        f"a dim has size {first_size} before `=>` and {size} after it",
        span,
        label=f"{size} here",
        labels=(Label(first, f"{first_size} here"),),
        notes=("a transition never changes the shape",),
    )


@message("SL0318", "a transition that changes the dtype")
def dtype_change(span: Span, dtype: str, source: str, first: Span) -> Diagnostic:
    return Diagnostic(
        f"`=>` goes from {source} to {dtype}, but a transition never changes the dtype",
        span,
        label=f"{dtype} here",
        labels=(Label(first, f"{source} here"),),
        helps=(f"leave out the dtype after `=>`, and cast with `.to({dtype})` before or after",),
    )


@message("SL0319", "a tensor of another dtype than declared")
def dtype_mismatch(span: Span, tensor: str, actual: str, expected: str) -> Diagnostic:
    return Diagnostic(
        f"{named(tensor)} is {actual}, but its spec says {expected}", span, label=f"{actual} in the tensor"
    )


@message("SL0320", "a division by zero in a size")
def division_by_zero(span: Span) -> Diagnostic:
    return Diagnostic(f"`{span.text}` divides by zero", span, label="zero on the right")


@message("SL0321", "names across `=>` that nothing tells apart")
def unbound_pair(span: Span, names: Sequence[str], first: Span) -> Diagnostic:
    return Diagnostic(
        f"{quoted(names)} are unbound names on one dim across `=>`",
        span,
        label="another name here",
        labels=(Label(first, "this name before `=>`"),),
        notes=("a dim keeps its size across `=>`",),
        helps=(f"write `{first.text}` on both sides, or give the sizes",),
    )


@message("SL0322", "a choice that nobody makes")
def nothing_chooses(span: Span, tensor: str) -> Diagnostic:
    return Diagnostic(
        f"`/?` in {named(tensor)} leaves an axis to the planner, which has no choice to make here",
        span,
        label="no axis named",
        notes=("it chooses for both sides of a transition and for the arguments of a function; the rest it is told",),
        helps=("name the axis: `/tp`, or `/.` for a whole dim",),
    )


@message("SL0323", "an axis that is pending twice")
def pending_twice(span: Span, axis: str, tensor: str, first: Span) -> Diagnostic:
    return Diagnostic(
        f"mesh axis `{axis}` is pending twice in {named(tensor)}",
        span,
        label="used again here",
        labels=(Label(first, "first used here"),),
        helps=(f"remove one use of `{axis}`",),
    )


@message("SL0324", "a transition between different numbers of dims")
def dims_across(span: Span, source_dims: int, target_dims: int, first: Span) -> Diagnostic:
    return Diagnostic(
        f"`=>` goes from {plural(source_dims, 'dim')} to {target_dims}, but a transition never changes the shape",
        span,
        label=plural(target_dims, "dim"),
        labels=(Label(first, plural(source_dims, "dim")),),
    )


@message("SL0325", "sizes across `=>` that cannot be equal")
def multiples_across(span: Span, first: Span) -> Diagnostic:
    return Diagnostic(
        f"`{first.text}` before `=>` and `{span.text}` after it cannot have one size",
        span,
        label="this dim",
        labels=(Label(first, "and this dim"),),
        notes=("a transition never changes the shape",),
    )


@message("SL0326", "ranks beyond the launch")
def ranks_beyond(span: Span, mesh: str, last: int, nproc: int) -> Diagnostic:
    return Diagnostic(
        f"mesh `{mesh}` is on ranks up to {last}, but the launch has {nproc}",
        span,
        label=f"the last rank is {nproc - 1}",
        helps=(f"launch with `--nproc {last + 1}` or more",),
    )


@message("SL0327", "more ways to choose axes than are compared")
def too_many_ways(span: Span, tensor: str, limit: int | None = None) -> Diagnostic:
    ways = "more ways than can be looked at" if limit is None else f"more than {limit} ways"
    return Diagnostic(
        f"the `/?` of {named(tensor)} can be chosen in {ways}",
        span,
        label="too much is left open",
        notes=("each way is planned, and the cheapest is taken",),
        helps=("name the axis of some of these dims",),
    )


def _shape(shape: Sequence[int]) -> str:
    return "[" + " ".join(map(str, shape)) + "]"
