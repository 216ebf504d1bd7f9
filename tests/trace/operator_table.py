"""Writes ``spec/operators.md`` from the rules themselves, on the calls of ``operators.py``.

python -m tests.trace.operator_table > spec/operators.md
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from shardlang.trace.call import Call, TensorArg, operator_name
from shardlang.trace.capture import TensorType, capture
from shardlang.trace.propagate import out_of_place
from shardlang.trace.rewrites import REWRITES
from shardlang.trace.rule import Rule, Term
from shardlang.trace.rules import RULES, find, load
from tests.trace.operators import EXAMPLES

HEAD = """# Operators

What each operator lets pass. A rule names the factors of dims, one letter each here: a factor that stands in operands
and result may be split, alike in all of them; `+` is summed over, and its axes are owed by the result; `!` must be
whole; `1` is a dim of size 1 that pairs with nothing; `(a b)` is a dim made of factors. *Pending in* lists the
operands in which the operator is linear, through which a value whose sum is owed passes (`0, 1`: in each alone; `0+1`:
in both together). Rows come from real calls, so that the number of dims is that of the call; rules hold for any.
Whatever has no rule runs on whole values; an operator that torch makes of others is taken apart into those first.

This file is written by `python -m tests.trace.operator_table`.

| operator | rule on an example | pending in | remarks |
|---|---|---|---|
"""

INVARIANTS = """
## Invariants

1. Run on all ranks, simulated, an operator gives the value and the gradients of one device, under any layouts its rule
   allows.
2. A value whose sum is owed enters only operators that are linear in it.
3. What a rule does not let pass is moved by a plan or is an error; it is never moved unseen.
"""


def rows() -> list[str]:
    load()
    found: dict[str, str] = {}
    for example in EXAMPLES:
        types = [TensorType(tuple(t.shape), t.dtype) for t in example.tensors]
        trace = capture(example.function, types, example.function)
        for node in trace.graph.nodes:
            target: Any = node.target
            if (
                node.op != "call_function"
                or not isinstance(target, torch._ops.OpOverload)
                or target is operator.getitem
            ):
                continue
            target, _ = out_of_place(target)
            name = operator_name(target)
            if name in found or name.startswith("shardlang."):
                continue
            row = _row(name, target, node)
            if row is not None:
                found[name] = row
    return [found[name] for name in sorted(found)]


def _row(name: str, target: Any, node: fx.Node) -> str | None:
    def shown(argument: Any) -> Any:
        if isinstance(argument, fx.Node):
            value = argument.meta["val"]
            return TensorArg(tuple(value.shape), value.dtype) if isinstance(value, torch.Tensor) else None
        return argument

    args = fx.node.map_aggregate(node.args, shown)
    kwargs = dict(fx.node.map_aggregate(node.kwargs, shown))
    results = tuple(TensorArg(tuple(t.shape), t.dtype) for t in pytree.tree_leaves(node.meta.get("val")))
    call = Call(target, tuple(args), kwargs, results)
    maker = find(name)
    rule = maker(call) if maker is not None and call.tensors else None
    packet = ".".join(name.split(".")[:2])
    rewrite = REWRITES.get(name) or REWRITES.get(packet)
    remarks = [_first(maker.__doc__)] if maker is not None and maker.__doc__ else []
    if rewrite is not None:
        remarks.append(_first(rewrite.__doc__))
    if rule is None and rewrite is None:
        return None
    text = f"`{rule_text(rule)}`" if rule is not None else "rewritten"
    return f"| `{name}` | {text} | {linear_text(rule)} | {' '.join(remarks)} |".replace("``", "`")


def _first(text: str | None) -> str:
    return " ".join((text or "").strip().split("\n\n")[0].split())


def rule_text(rule: Rule) -> str:
    """The rule in the language's own notation, with letters for factors."""
    letters: dict[str, str] = {}
    for name in rule.names():
        letters[name] = "abcdefghijklmnopqrstuvwxyz"[len(letters) % 26]

    def factor(name: str, inside: bool) -> str:
        mark = "+" if name in rule.contract and inside else "!" if name in rule.whole else ""
        return letters[name] + mark

    def dims(terms: tuple[Term, ...], inside: bool) -> str:
        parts = []
        for term in terms:
            names = [factor(n, inside) for n in term]
            parts.append("1" if not names else names[0] if len(names) == 1 else f"({' '.join(names)})")
        return "[" + " ".join(parts) + "]"

    left = " ".join(dims(t, True) for t in rule.inputs)
    return f"{left} -> {' '.join(dict.fromkeys(dims(t, False) for t in rule.outputs))}"


def linear_text(rule: Rule | None) -> str:
    if rule is None:
        return ""
    text = ", ".join("+".join(map(str, sorted(g))) for g in rule.linear)
    return text + (" (max, min too)" if rule.monotone and text else "max, min" if rule.monotone else "") or "-"


def table() -> str:
    rest = sorted(n for n in RULES if not n.startswith("shardlang_tests."))
    more = "\nRules also exist for, each like its kin above: " + ", ".join(f"`{n}`" for n in rest) + ".\n"
    return HEAD + "\n".join(rows()) + "\n" + more + INVARIANTS


if __name__ == "__main__":
    print(table(), end="")
