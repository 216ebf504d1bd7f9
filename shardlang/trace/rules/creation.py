"""Operators that make a tensor of the dtype and device of another, and take nothing else of it."""

from __future__ import annotations

from shardlang.trace.call import Call
from shardlang.trace.rule import Rule
from shardlang.trace.rules import rule


@rule("aten.new_zeros", "aten.new_ones", "aten.new_full", "aten.new_empty", "aten.new_tensor")
def new(call: Call) -> Rule:
    """The result is whole, however the operand is split."""
    sizes = {f"x{i}": n for i, n in enumerate(call.tensors[0].shape)}
    sizes.update({f"d{i}": n for i, n in enumerate(call.results[0].shape)})
    inputs = tuple((f"x{i}",) for i in range(len(call.tensors[0].shape)))
    return Rule((inputs,), (tuple((f"d{i}",) for i in range(len(call.results[0].shape))),), sizes)
