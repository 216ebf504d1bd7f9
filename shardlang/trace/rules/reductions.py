"""Reductions, scans, sorts: what happens along a dim."""

from __future__ import annotations

from collections.abc import Sequence

from shardlang.layout import ReduceOp
from shardlang.trace.call import Call, axis_of
from shardlang.trace.rule import Rule, Term, group
from shardlang.trace.rules import rule
from shardlang.trace.rules.views import along

OVER: dict[str, ReduceOp] = {"sum": "sum", "amax": "max", "amin": "min"}
"""Reductions whose partial results are owed with this operator."""


def reduced_dims(call: Call) -> list[int]:
    """The dims that a reduction goes over; all where none is named."""
    rank = len(call.tensors[0].shape)
    dim = call.get("dim")
    if dim is None or dim == []:
        return list(range(rank))
    return [axis_of(d, rank) for d in ([dim] if isinstance(dim, int) else dim)] if rank else []


def reduced(
    call: Call, over: Sequence[int], keep: bool, results: int = 1
) -> tuple[tuple[Term, ...], list[tuple[Term, ...]], dict[str, int]]:
    """The terms of an operand and of results from which ``over`` is gone, or left with size 1."""
    shape = call.tensors[0].shape
    sizes = {f"d{i}": n for i, n in enumerate(shape)}
    terms = tuple((f"d{i}",) for i in range(len(shape)))
    output: list[Term] = []
    for i, term in enumerate(terms):
        if i not in over:
            output.append(term)
        elif keep:
            output.append(())
    return terms, [tuple(output)] * results, sizes


@rule("aten.sum", "aten.amax", "aten.amin")
def reduction(call: Call) -> Rule:
    """Partial results are owed over the axes that split the reduced dims."""
    over = reduced_dims(call)
    op = OVER[call.op._schema.name.split("::")[1]]
    terms, outputs, sizes = reduced(call, over, bool(call.get("keepdim")))
    contract = frozenset(f"d{i}" for i in over)
    linear = (group(0),) if op == "sum" else ()
    return Rule((terms,), tuple(outputs), sizes, contract=contract, op=op, linear=linear)


@rule(
    "aten.mean", "aten.prod", "aten.all", "aten.any", "aten.var", "aten.std", "aten.logsumexp", "aten.norm",
    "aten.linalg_vector_norm", "aten.argmax", "aten.argmin", "aten.median", "aten.max", "aten.min", "aten.var_mean",
    "aten.std_mean", "aten.count_nonzero", "aten.nansum", "aten.mode", "aten.kthvalue",
)  # fmt: skip
def whole_reduction(call: Call) -> Rule | None:
    """Along dims that must be whole. ``max`` and ``min`` of two tensors go element by element."""
    name = call.op._schema.name.split("::")[1]
    if len(call.tensors) == 2:
        from shardlang.trace.rules.pointwise import elementwise

        return elementwise(call)
    over = reduced_dims(call)
    keep = bool(call.get("keepdim"))
    terms, outputs, sizes = reduced(call, over, keep, len(call.results))
    whole = frozenset(f"d{i}" for i in over)
    linear = (group(0),) if name == "mean" else ()
    why = f"`{name}` of a split dim needs all of it"
    return Rule((terms,), tuple(outputs), sizes, whole=whole, linear=linear, why_whole=why)


@rule(
    "aten.softmax",
    "aten.log_softmax",
    "aten._softmax",
    "aten._log_softmax",
    "aten.softmin",
    "aten.special_softmax",
    "aten.special_log_softmax",
    "aten._safe_softmax",
)
def softmax(call: Call) -> Rule:
    """Normalises along a dim, which must be whole."""
    dim = axis_of(call.args[1], len(call.tensors[0].shape))
    return along(call, (dim,), "softmax normalises along this dim", linear=False)


@rule("aten.cumsum", "aten.cumprod", "aten.cummax", "aten.cummin", "aten.logcumsumexp", "aten.diff")
def scan(call: Call) -> Rule:
    """A scan along a dim, which must be whole; ``cumsum`` is linear."""
    dim = call.get("dim")
    dim = axis_of(-1 if dim is None else dim, len(call.tensors[0].shape))
    linear = call.op._schema.name in ("aten::cumsum", "aten::diff")
    return along(call, (dim,), "a scan runs along this dim", linear=linear)


@rule("aten.sort", "aten.argsort", "aten.topk", "aten.msort")
def sort(call: Call) -> Rule:
    """Sorts along a dim, which must be whole."""
    dim = call.get("dim")
    dim = axis_of(-1 if dim is None else dim, len(call.tensors[0].shape))
    return along(call, (dim,), "a sort compares along this dim", linear=False)
