"""Operators that only rearrange: views, permutations, slices. All are linear."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import count, pairwise
from typing import Any

from shardlang.trace.call import Call, axis_of
from shardlang.trace.rule import Literals, Rule, Shape, Term, group, result_shape_at
from shardlang.trace.rules import rule

LINEAR = (group(0),)


def refine(source: Shape, target: Shape) -> tuple[tuple[Term, ...], tuple[Term, ...], dict[str, int], frozenset[str]]:
    """The factors that a view pairs: the common refinement of the boundaries of both shapes.

    Where boundaries do not nest (6 x 4 to 4 x 6) the dims between two common boundaries become one factor that must
    be whole. Returns the terms of both, the sizes, and the factors that must be whole.
    """
    names = (f"v{i}" for i in count())
    sizes: dict[str, int] = {}
    whole: set[str] = set()
    left: list[Term] = []
    right: list[Term] = []
    for ins, outs in _groups(source, target):
        marks = sorted({*_marks(ins), *_marks(outs)})
        if any(b % a for a, b in pairwise(marks)):
            for dims, terms in ((ins, left), (outs, right)):
                for n in dims:
                    name = next(names)
                    sizes[name] = n
                    whole.add(name)
                    terms.append((name,))
            continue
        factors = [(next(names), b // a, a) for a, b in pairwise(marks)]
        sizes.update({name: n for name, n, _ in factors})
        for dims, terms in ((ins, left), (outs, right)):
            edges = [*reversed(_marks(dims))]
            for hi, lo in pairwise(edges):
                inside = [name for name, _, start in factors if lo <= start < hi]
                terms.append(tuple(reversed(inside)))
    return tuple(left), tuple(right), sizes, frozenset(whole)


def _marks(dims: Sequence[int]) -> list[int]:
    """The products of the trailing dims: 1 first."""
    marks = [1]
    for n in reversed(dims):
        marks.append(marks[-1] * n)
    return marks


def _groups(source: Shape, target: Shape) -> list[tuple[list[int], list[int]]]:
    """The least runs of dims of both shapes with equal products. A dim of size 1 is a run alone on its side."""
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(source) or j < len(target):
        if i < len(source) and source[i] == 1 and not (j < len(target) and target[j] == 1):
            groups.append(([1], []))
            i += 1
            continue
        if j < len(target) and target[j] == 1 and not (i < len(source) and source[i] == 1):
            groups.append(([], [1]))
            j += 1
            continue
        ins, outs = [source[i]], [target[j]]
        i, j = i + 1, j + 1
        while math.prod(ins) != math.prod(outs):
            if math.prod(ins) < math.prod(outs):
                ins.append(source[i])
                i += 1
            else:
                outs.append(target[j])
                j += 1
        groups.append((ins, outs))
    return groups


@rule("aten.view", "aten.reshape", "aten._unsafe_view", "aten.view_copy")
def view(call: Call) -> Rule | None:
    """Pairs the factors of both shapes; the literal size becomes the local one."""
    return _view(call, result_shape_at(1))


@rule("aten.flatten", "aten.squeeze", "aten.unsqueeze", "aten.ravel", "aten.atleast_1d", "aten.unsqueeze_copy")
def reshaped(call: Call) -> Rule | None:
    """A view whose literals name dims, not sizes."""
    return _view(call, None)


@rule("aten.view_as", "aten.reshape_as")
def view_as(call: Call) -> Rule | None:
    """A view to the shape of another tensor: both must be split alike."""
    made = _view(call, None)
    if made is None:
        return None
    terms = made.outputs[0]
    return Rule((made.inputs[0], terms), made.outputs, made.sizes, whole=made.whole, linear=LINEAR)


@rule("aten.unflatten")
def unflatten(call: Call) -> Rule | None:
    """One dim into several; its literal sizes become local."""
    dim = axis_of(call.args[1], len(call.tensors[0].shape))
    n = len(call.args[2])

    def rewrite(args: tuple[Any, ...], kwargs: Any, ins: Sequence[Shape], outs: Sequence[Shape]) -> tuple[Any, ...]:
        return (*args[:2], list(outs[0][dim : dim + n]), *args[3:])

    return _view(call, Literals(rewrite))


def _view(call: Call, literals: Literals | None) -> Rule | None:
    source, target = call.tensors[0].shape, call.results[0].shape
    if 0 in source:
        return None
    left, right, sizes, whole = refine(source, target)
    why = "the new dims do not nest in the old ones"
    return Rule((left,), (right,), sizes, whole=whole, linear=LINEAR, monotone=True, literals=literals, why_whole=why)


def permuted(call: Call, order: Sequence[int]) -> Rule:
    """The result's dims are the operand's in this order."""
    shape = call.tensors[0].shape
    terms = tuple((f"d{i}",) for i in range(len(shape)))
    sizes = {f"d{i}": n for i, n in enumerate(shape)}
    return Rule((terms,), (tuple(terms[i] for i in order),), sizes, linear=LINEAR, monotone=True)


@rule("aten.transpose", "aten.swapaxes", "aten.swapdims", "aten.transpose_copy")
def transpose(call: Call) -> Rule:
    """Two dims change places."""
    rank = len(call.tensors[0].shape)
    a, b = axis_of(call.args[1], rank), axis_of(call.args[2], rank)
    order = list(range(rank))
    if rank:
        order[a], order[b] = order[b], order[a]
    return permuted(call, order)


@rule("aten.t", "aten.numpy_T", "aten.mT", "aten.mH", "aten.adjoint", "aten.matrix_H")
def transposed(call: Call) -> Rule:
    """All dims, or the last two, in reverse."""
    rank = len(call.tensors[0].shape)
    if call.op._schema.name in ("aten::t", "aten::numpy_T"):
        return permuted(call, range(rank)[::-1])
    return permuted(call, [*range(rank - 2), rank - 1, rank - 2])


@rule("aten.permute", "aten.permute_copy")
def permute(call: Call) -> Rule:
    """Dims in a given order."""
    rank = len(call.tensors[0].shape)
    return permuted(call, [axis_of(d, rank) for d in call.args[1]])


@rule("aten.movedim", "aten.moveaxis")
def movedim(call: Call) -> Rule:
    """Some dims moved to places."""
    rank = len(call.tensors[0].shape)
    given = [[d] if isinstance(d, int) else list(d) for d in call.args[1:3]]
    sources, targets = ([axis_of(d, rank) for d in ds] for ds in given)
    order: list[int | None] = [None] * rank
    for source, target in zip(sources, targets, strict=True):
        order[target] = source
    rest = iter(d for d in range(rank) if d not in sources)
    return permuted(call, [next(rest) if d is None else d for d in order])


@rule("aten.expand", "aten.broadcast_to", "aten.expand_copy")
def expand(call: Call) -> Rule:
    """New dims and dims of size 1 repeat the value: they are new, and whole."""
    source, target = call.tensors[0].shape, call.results[0].shape
    offset = len(target) - len(source)
    sizes = {f"d{i}": n for i, n in enumerate(target)}
    inputs = tuple((f"d{i + offset}",) if n == target[i + offset] else () for i, n in enumerate(source))
    outputs = tuple((f"d{i}",) for i in range(len(target)))
    literals = result_shape_at(1)
    return Rule((inputs,), (outputs,), sizes, linear=LINEAR, monotone=True, literals=literals)


@rule("aten.expand_as")
def expand_as(call: Call) -> Rule:
    """``expand`` to the shape of another tensor, and split like it."""
    made = expand(call)
    assert made is not None
    return Rule((made.inputs[0], made.outputs[0]), made.outputs, made.sizes, linear=LINEAR)


def along(call: Call, touched: Sequence[int], why: str, *, linear: bool = True) -> Rule:
    """Result dims like the operand's, but for ``touched`` ones, which must be whole and may change size."""
    shape = call.tensors[0].shape
    sizes = {f"d{i}": n for i, n in enumerate(shape)}
    whole = {f"d{i}" for i in touched}
    terms = tuple((f"d{i}",) for i in range(len(shape)))
    outputs = []
    for result in call.results:
        dims: list[Term] = []
        for i, n in enumerate(result.shape):
            if i in touched and n != shape[i]:
                name = f"n{i}x{n}"
                sizes[name] = n
                dims.append((name,))
            else:
                dims.append((f"d{i}",))
        outputs.append(tuple(dims))
    return Rule((terms,), tuple(outputs), sizes, whole=frozenset(whole), linear=LINEAR if linear else (), why_whole=why)


@rule("aten.slice", "aten.narrow", "aten.slice_copy")
def sliced(call: Call) -> Rule:
    """The sliced dim must be whole, unless all of it is taken."""
    dim = axis_of(call.get("dim") or 0, len(call.tensors[0].shape))
    shape, result = call.tensors[0].shape, call.results[0].shape
    if shape == result and call.get("step") in (1, None) and call.op._schema.name == "aten::slice":

        def rewrite(args: tuple[Any, ...], kwargs: Any, ins: Sequence[Shape], outs: Sequence[Shape]) -> tuple[Any, ...]:
            return args[:2]

        made = along(call, (), "")
        return Rule(made.inputs, made.outputs, made.sizes, linear=LINEAR, monotone=True, literals=Literals(rewrite))
    why = "a slice of a split dim lies on some ranks only"
    length, start = result[dim], call.get("start") or 0
    start += shape[dim] if start < 0 else 0
    even = call.get("step") in (1, None) and length and shape[dim] % length == 0 and start % length == 0
    if even and len(call.args) > 3:

        def one(args: tuple[Any, ...], kwargs: Any, ins: Sequence[Shape], outs: Sequence[Shape]) -> tuple[Any, ...]:
            local = outs[0][dim]
            first = start // length * local
            narrow = call.op._schema.name == "aten::narrow"
            return (args[0], dim, first, local if narrow else first + local)

        return parts(call, dim, shape[dim] // length, why, Literals(one))
    return along(call, (dim,), why)


def parts(call: Call, dim: int, count: int, why: str, literals: Literals | None) -> Rule:
    """A dim taken apart into equal parts, of which each result is one. Ranks may hold their own part of every part, as
    they do of a fused weight; which part it is must not differ between them."""
    shape = call.tensors[0].shape
    sizes = {f"d{i}": n for i, n in enumerate(shape)} | {"part": count, f"d{dim}": shape[dim] // count}
    terms = tuple((f"d{i}",) for i in range(len(shape)))
    whole = (*terms[:dim], ("part", f"d{dim}"), *terms[dim + 1 :])
    return Rule(
        (whole,), (terms,) * len(call.results), sizes, whole=frozenset({"part"}), linear=LINEAR, why_whole=why,
        literals=literals,
    )  # fmt: skip


@rule("aten.select")
def select(call: Call) -> Rule:
    """The selected dim must be whole and goes away."""
    shape = call.tensors[0].shape
    dim = axis_of(call.args[1], len(shape))
    terms = tuple((f"d{i}",) for i in range(len(shape)))
    sizes = {f"d{i}": n for i, n in enumerate(shape)}
    why = "one index of a split dim lies on some ranks only"
    outputs = (terms[:dim] + terms[dim + 1 :],)
    return Rule((terms,), outputs, sizes, whole=frozenset({f"d{dim}"}), linear=LINEAR, monotone=True, why_whole=why)


@rule(
    "aten.chunk", "aten.split", "aten.split_with_sizes", "aten.tensor_split", "aten.unsafe_chunk", "aten.unsafe_split"
)
def chunked(call: Call) -> Rule:
    """The dim that is taken apart must be whole, but within equal parts."""
    dim = axis_of(call.get("dim") or 0, len(call.tensors[0].shape))
    why = "the parts of a split dim lie on some ranks only"
    lengths = {r.shape[dim] for r in call.results}
    if len(lengths) > 1 or not all(lengths) or len(call.args) < 2:
        return along(call, (dim,), why)
    given = call.args[1]
    by_number = call.op._schema.name in ("aten::chunk", "aten::unsafe_chunk", "aten::tensor_split")
    if by_number and not isinstance(given, int):
        return along(call, (dim,), why)

    def rewrite(args: tuple[Any, ...], kwargs: Any, ins: Sequence[Shape], outs: Sequence[Shape]) -> tuple[Any, ...]:
        lengths = [out[dim] for out in outs]
        return (args[0], lengths[0] if isinstance(given, int) else lengths, *args[2:])

    return parts(call, dim, len(call.results), why, None if by_number else Literals(rewrite))


@rule("aten.unbind")
def unbind(call: Call) -> Rule:
    """Every index of a dim, which must be whole."""
    shape = call.tensors[0].shape
    dim = axis_of(call.get("dim") or 0, len(shape))
    terms = tuple((f"d{i}",) for i in range(len(shape)))
    sizes = {f"d{i}": n for i, n in enumerate(shape)}
    outputs = (terms[:dim] + terms[dim + 1 :],) * len(call.results)
    return Rule((terms,), outputs, sizes, whole=frozenset({f"d{dim}"}), linear=LINEAR)


@rule("aten.flip")
def flip(call: Call) -> Rule:
    """Flipped dims must be whole."""
    rank = len(call.tensors[0].shape)
    return along(call, [axis_of(d, rank) for d in call.args[1]], "a flip moves elements across ranks")


@rule("aten.roll")
def roll(call: Call) -> Rule:
    """Rolled dims must be whole."""
    rank = len(call.tensors[0].shape)
    dims = call.get("dims") or range(rank)
    return along(call, [axis_of(d, rank) for d in dims], "a roll moves elements across ranks")


@rule("aten.repeat", "aten.tile")
def repeat(call: Call) -> Rule:
    """A repeated dim is a product of the repeats, which are whole, and the dim."""
    shape, result = call.tensors[0].shape, call.results[0].shape
    offset = len(result) - len(shape)
    sizes: dict[str, int] = {f"d{i}": n for i, n in enumerate(shape)}
    outputs: list[Term] = []
    for i, n in enumerate(result):
        old = shape[i - offset] if i >= offset else 1
        sizes[f"r{i}"] = n // old if old else 1
        outputs.append((f"r{i}", f"d{i - offset}") if i >= offset else (f"r{i}",))
    return Rule((tuple((f"d{i}",) for i in range(len(shape))),), (tuple(outputs),), sizes, linear=LINEAR)


@rule("aten.repeat_interleave.self_int")
def repeat_interleave(call: Call) -> Rule | None:
    """Each element of a dim several times: the dim is a product of it and the repeats, which are whole."""
    dim = call.get("dim")
    if dim is None or call.get("output_size") is not None:
        return None
    shape = call.tensors[0].shape
    dim = axis_of(dim, len(shape))
    sizes = {f"d{i}": n for i, n in enumerate(shape)} | {"r": call.args[1]}
    terms = tuple((f"d{i}",) for i in range(len(shape)))
    outputs = tuple((*t, "r") if i == dim else t for i, t in enumerate(terms))
    return Rule((terms,), (outputs,), sizes, linear=LINEAR, monotone=True)


@rule("aten.view_as_complex", "aten.view_as_real")
def complex_view(call: Call) -> Rule:
    """Pairs of reals as complex numbers and back; the dim of pairs is whole."""
    longer = max(call.tensors[0].shape, call.results[0].shape, key=len)
    sizes = {f"d{i}": n for i, n in enumerate(longer)}
    terms = tuple((f"d{i}",) for i in range(len(longer)))
    pair = frozenset({f"d{len(longer) - 1}"})
    if len(call.tensors[0].shape) == len(longer):
        return Rule((terms,), (terms[:-1],), sizes, whole=pair, linear=LINEAR)
    return Rule((terms[:-1],), (terms,), sizes, linear=LINEAR)


@rule("aten.tril", "aten.triu")
def triangle(call: Call) -> Rule:
    """A triangle is cut by global indices: both of its dims must be whole."""
    rank = len(call.tensors[0].shape)
    return along(call, (rank - 2, rank - 1), "a triangle is cut by global indices")
