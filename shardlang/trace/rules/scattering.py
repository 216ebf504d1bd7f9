"""Operators that put values at places of a tensor, or pad it."""

from __future__ import annotations

from shardlang.trace.call import Call, TensorArg, axis_of
from shardlang.trace.rule import Rule, Term, group
from shardlang.trace.rules import rule
from shardlang.trace.rules.pointwise import elementwise
from shardlang.trace.rules.views import along

WHY = "values are put at places by global index"


@rule("aten.scatter", "aten.scatter_add", "aten.scatter_reduce")
def scatter(call: Call) -> Rule | None:
    """Along a dim, which must be whole; the others are paired where all have the same size. Adding is linear."""
    shapes = [t.shape for t in call.tensors]
    if len({len(s) for s in shapes}) != 1 or not shapes[0]:
        return None
    rank = len(shapes[0])
    dim = axis_of(call.args[1], rank)
    sizes: dict[str, int] = {}
    inputs: list[tuple[Term, ...]] = []
    paired = [d != dim and len({s[d] for s in shapes}) == 1 for d in range(rank)]
    for i, shape in enumerate(shapes):
        names = [f"d{d}" if paired[d] else f"t{i}x{d}" for d in range(rank)]
        sizes.update(dict(zip(names, shape, strict=True)))
        inputs.append(tuple((n,) for n in names))
    whole = frozenset(n for n in sizes if n.startswith("t"))
    linear = (group(0, 2),) if call.op._schema.name == "aten::scatter_add" else ()
    return Rule(tuple(inputs), (inputs[0],), sizes, whole=whole, linear=linear, why_whole=WHY)


@rule("aten.select_scatter", "aten.slice_scatter")
def into(call: Call) -> Rule:
    """One index or a slice of a dim, which must be whole, comes from another tensor; linear in both together."""
    shape, source = (t.shape for t in call.tensors)
    rank = len(shape)
    dim = axis_of(call.get("dim") or 0, rank)
    sizes = {f"d{i}": n for i, n in enumerate(shape)}
    terms: tuple[Term, ...] = tuple((f"d{i}",) for i in range(rank))
    other = terms[:dim] + terms[dim + 1 :]
    whole = {f"d{dim}"}
    if len(source) == rank:
        sizes["s"] = source[dim]
        whole.add("s")
        other = (*terms[:dim], ("s",), *terms[dim + 1 :])
    return Rule((terms, other), (terms,), sizes, whole=frozenset(whole), linear=(group(0, 1),), why_whole=WHY)


@rule("aten.index_put", "aten.index_add", "aten.index_copy", "aten.index_fill", "aten.masked_scatter", "aten.put")
def put(call: Call) -> Rule | None:
    """All must be whole, but for dims of ``index_add``, ``index_copy`` and ``index_fill`` that are not indexed."""
    x = call.tensors[0].shape
    named = call.op._schema.name.split("::")[1]
    sizes = {f"d{i}": n for i, n in enumerate(x)}
    terms: tuple[Term, ...] = tuple((f"d{i}",) for i in range(len(x)))
    whole = set(sizes)
    inputs: list[tuple[Term, ...]] = [terms]
    linear: tuple[frozenset[int], ...] = ()
    indexed = named in ("index_add", "index_copy", "index_fill") and bool(x)
    if indexed:
        dim = axis_of(call.args[1], len(x))
        whole = {f"d{dim}"}
        linear = (group(0, 2),) if named == "index_add" else ()
    for i, tensor in enumerate(call.tensors[1:], 1):
        if indexed and i == 2 and len(tensor.shape) == len(x):
            sizes["s"] = tensor.shape[dim]
            whole.add("s")
            inputs.append((*terms[:dim], ("s",), *terms[dim + 1 :]))
            continue
        names = [f"t{i}x{d}" for d in range(len(tensor.shape))]
        sizes.update(dict(zip(names, tensor.shape, strict=True)))
        whole |= set(names)
        inputs.append(tuple((n,) for n in names))
    return Rule(tuple(inputs), (terms,), sizes, whole=frozenset(whole), linear=linear, why_whole=WHY)


@rule("aten.constant_pad_nd")
def constant_pad(call: Call) -> Rule:
    """Padded dims must be whole; linear where zeros are padded."""
    shape, pad = call.tensors[0].shape, call.args[1]
    rank = len(shape)
    touched = [rank - 1 - i // 2 for i, n in enumerate(pad) if n]
    zero = not call.get("value")
    return along(call, sorted(set(touched)), "padding is put at the ends of the whole dim", linear=zero)


@rule(
    "aten.reflection_pad1d", "aten.reflection_pad2d", "aten.reflection_pad3d", "aten.replication_pad1d",
    "aten.replication_pad2d", "aten.replication_pad3d",
)  # fmt: skip
def edge_pad(call: Call) -> Rule:
    """Padded with what lies at the ends: these dims must be whole."""
    rank, space = len(call.tensors[0].shape), len(call.args[1]) // 2
    return along(call, range(rank - space, rank), "the ends of a dim are repeated", linear=True)


@rule("aten.diagonal", "aten.diagonal_copy")
def diagonal(call: Call) -> Rule:
    """Two dims, which must be whole, become one, the last."""
    shape = call.tensors[0].shape
    first, second = (axis_of(call.get(n), len(shape)) for n in ("dim1", "dim2"))
    sizes = {f"d{i}": n for i, n in enumerate(shape)} | {"new": call.results[0].shape[-1]}
    terms: tuple[Term, ...] = tuple((f"d{i}",) for i in range(len(shape)))
    kept = tuple(t for i, t in enumerate(terms) if i not in (first, second))
    whole = frozenset({f"d{first}", f"d{second}"})
    why = "a diagonal is cut by global indices"
    return Rule((terms,), ((*kept, ("new",)),), sizes, whole=whole, linear=(group(0),), why_whole=why)


@rule("aten.copy")
def copied(call: Call) -> Rule:
    """The second operand in the shape and dtype of the first."""
    return elementwise(call, (group(1),) if call.results[0].dtype.is_floating_point else ())


@rule("aten.fill")
def filled(call: Call) -> Rule:
    """Takes shape and splits from its operand, nothing of its value."""
    return elementwise(call)


@rule("aten.bucketize", "aten.isin")
def looked_up(call: Call) -> Rule | None:
    """Each element of one operand among all of the other."""
    name = call.op._schema.name
    if len(call.tensors) != 2 or not isinstance(call.args[0], TensorArg):
        return None
    shapes = [t.shape for t in call.tensors]
    sizes = {f"d{i}": n for i, n in enumerate(shapes[0])} | {f"o{i}": n for i, n in enumerate(shapes[1])}
    terms: tuple[Term, ...] = tuple((f"d{i}",) for i in range(len(shapes[0])))
    others: tuple[Term, ...] = tuple((f"o{i}",) for i in range(len(shapes[1])))
    whole = frozenset(f"o{i}" for i in range(len(shapes[1])))
    return Rule((terms, others), (terms,), sizes, whole=whole, why_whole=f"`{name}` looks at all of them")
