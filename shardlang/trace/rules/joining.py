"""Operators that join tensors along a dim."""

from __future__ import annotations

from shardlang.trace.call import Call, axis_of
from shardlang.trace.rule import Rule, Term
from shardlang.trace.rules import rule


@rule("aten.cat", "aten.concat", "aten.concatenate")
def cat(call: Call) -> Rule:
    """The joined dim must be whole; linear in all operands together. Empty 1-dim operands are skipped by torch."""
    result = call.results[0].shape
    rank = len(result)
    dim = axis_of(call.get("dim") or 0, rank)
    sizes = {f"d{i}": n for i, n in enumerate(result)}
    whole = {f"d{dim}"}
    inputs: list[tuple[Term, ...]] = []
    for i, operand in enumerate(call.tensors):
        if operand.shape == (0,) and rank != 1:
            sizes["e"] = 0
            inputs.append((("e",),))
            continue
        sizes[f"c{i}"] = operand.shape[dim]
        whole.add(f"c{i}")
        inputs.append(tuple((f"c{i}",) if d == dim else (f"d{d}",) for d in range(rank)))
    outputs = (tuple((f"d{d}",) for d in range(rank)),)
    why = "parts joined along a split dim would lie on other ranks"
    linear = (frozenset(range(len(inputs))),)
    return Rule(tuple(inputs), outputs, sizes, whole=frozenset(whole), linear=linear, why_whole=why)


@rule("aten.stack")
def stack(call: Call) -> Rule:
    """A new dim, whole; linear in all operands together."""
    result = call.results[0].shape
    dim = axis_of(call.get("dim") or 0, len(result))
    sizes = {f"d{i}": n for i, n in enumerate(result)}
    terms = tuple((f"d{i}",) for i in range(len(result)))
    inputs = (terms[:dim] + terms[dim + 1 :],) * len(call.tensors)
    return Rule(inputs, (terms,), sizes, linear=(frozenset(range(len(inputs))),))
