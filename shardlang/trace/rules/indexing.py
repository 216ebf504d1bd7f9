"""Operators that look up by index."""

from __future__ import annotations

from shardlang.trace.call import Call, TensorArg, axis_of
from shardlang.trace.rule import Rule, Term, group
from shardlang.trace.rules import rule
from shardlang.trace.rules.pointwise import aligned


@rule("aten.embedding")
def embedding(call: Call) -> Rule:
    """``[v! d] [i..] -> [i.. d]``, linear in the table. Over a split table it is rewritten."""
    table, index = (t.shape for t in call.tensors)
    sizes = {"v": table[0], "d": table[1]} | {f"i{n}": size for n, size in enumerate(index)}
    rows = tuple((f"i{n}",) for n in range(len(index)))
    why = "rows are looked up by global index"
    inputs: tuple[tuple[Term, ...], ...] = ((("v",), ("d",)), rows)
    return Rule(inputs, ((*rows, ("d",)),), sizes, whole=frozenset("v"), linear=(group(0),), why_whole=why)


@rule("aten.embedding_bag", "aten._embedding_bag", "aten._embedding_bag_forward_only")
def embedding_bag(call: Call) -> Rule:
    """``[v! d] [n!] [o!] [n!] -> [b d]``: a bag is a sum, mean or max of rows, which only their width may split."""
    table, index, offsets, *weights = (t.shape for t in call.tensors)
    sizes = {"v": table[0], "d": table[1], "n": index[0], "o": offsets[0], "b": call.results[0].shape[0]}
    inputs: list[tuple[Term, ...]] = [(("v",), ("d",)), (("n",),), (("o",),), *([(("n",),)] if weights else [])]
    outputs: list[tuple[Term, ...]] = [(("b",), ("d",))]
    for i, result in enumerate(call.results[1:], 1):
        alike = tuple(result.shape) == tuple(call.results[0].shape)  # which row was the greatest, in each element
        own: tuple[Term, ...] = tuple((f"r{i}x{d}",) for d in range(len(result.shape)))
        sizes |= {name: n for (name,), n in zip(own, result.shape, strict=True)}
        outputs.append(outputs[0] if alike else own)
    why = "rows are looked up by global index, bags by global place"
    return Rule(tuple(inputs), tuple(outputs), sizes, whole=frozenset("vno"), why_whole=why)


@rule("aten.index_select")
def index_select(call: Call) -> Rule:
    """The indexed dim must be whole and takes the place of the index."""
    shape, index = (t.shape for t in call.tensors)
    dim = axis_of(call.args[1], len(shape))
    sizes = {f"d{i}": n for i, n in enumerate(shape)} | {"i": index[0] if index else 1}
    terms = tuple((f"d{i}",) for i in range(len(shape)))
    row: tuple[Term, ...] = (("i",),) if index else ()
    outputs = ((*terms[:dim], ("i",), *terms[dim + 1 :]),)
    return Rule((terms, row), outputs, sizes, whole=frozenset({f"d{dim}"}), linear=(group(0),))


@rule("aten.gather", "aten.take_along_dim")
def gather(call: Call) -> Rule | None:
    """Along a dim, which must be whole; the others are paired where both have the same size."""
    if len(call.tensors) != 2 or call.get("dim") is None:
        return None
    shape, index = (t.shape for t in call.tensors)
    if len(shape) != len(index) or not shape:
        return None
    dim = axis_of(call.get("dim"), len(shape))
    sizes = {f"i{i}": n for i, n in enumerate(index)} | {f"d{i}": n for i, n in enumerate(shape)}
    paired = [i != dim and shape[i] == index[i] for i in range(len(shape))]
    rows = tuple((f"i{i}",) for i in range(len(shape)))
    inputs = (tuple((f"i{i}",) if paired[i] else (f"d{i}",) for i in range(len(shape))), rows)
    whole = frozenset(f"d{i}" for i in range(len(shape)) if not paired[i])
    why = "elements are looked up by global index"
    return Rule(inputs, (rows,), sizes, whole=whole, linear=(group(0),), why_whole=why)


@rule("aten.index")
def index(call: Call) -> Rule | None:
    """``x[:, i, j]``: indexed dims must be whole, indices broadcast and take their place. Bool indices are refused."""
    x, *indices = call.tensors
    places = list(call.args[1])
    if any(i.dtype in _BOOL for i in indices):
        return None
    places += [None] * (len(x.shape) - len(places))
    at = [d for d, p in enumerate(places) if isinstance(p, TensorArg)]
    sizes = {f"d{i}": n for i, n in enumerate(x.shape)}
    rank = len(call.results[0].shape) - (len(x.shape) - len(at))
    together = at == list(range(at[0], at[-1] + 1))
    start = at[0] if together else 0
    rows = call.results[0].shape[start : start + rank]
    terms, row_sizes = aligned(indices, rows)
    renamed = tuple(tuple(tuple(f"i{n}" for n in t) for t in operand) for operand in terms)
    sizes.update({f"i{n}": size for n, size in row_sizes.items()})
    kept: list[Term] = [(f"d{d}",) for d in range(len(x.shape)) if d not in at]
    new: list[Term] = [(f"id{n}",) for n in range(rank)]
    output = (*kept[:start], *new, *kept[start:])
    inputs = (tuple((f"d{i}",) for i in range(len(x.shape))), *renamed)
    why = "elements are looked up by global index"
    return Rule(inputs, (output,), sizes, whole=frozenset(f"d{d}" for d in at), linear=(group(0),), why_whole=why)


def _bools() -> frozenset[object]:
    import torch

    return frozenset({torch.bool, torch.uint8})


_BOOL = _bools()


@rule("aten.one_hot")
def one_hot(call: Call) -> Rule:
    """A new last dim, whole."""
    shape = call.tensors[0].shape
    sizes = {f"d{i}": n for i, n in enumerate(call.results[0].shape)}
    terms = tuple((f"d{i}",) for i in range(len(shape)))
    return Rule((terms,), ((*terms, (f"d{len(shape)}",)),), sizes)
