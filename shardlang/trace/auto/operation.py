"""The operators of a trace, as the search for layouts sees them: which values they take and give, and by what rule."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from attrs import evolve, frozen
from torch import fx
from torch.utils import _pytree as pytree

from shardlang.trace.call import Call, TensorArg, operator_name
from shardlang.trace.propagate import out_of_place
from shardlang.trace.rewrites import REWRITES
from shardlang.trace.rule import Rule, Term
from shardlang.trace.rules import find
from shardlang.trace.rules.pointwise import aligned


@frozen(eq=False)
class Quantity:
    """A value of the trace: ``fake`` has its global shape and dtype. ``flows``: a gradient goes back into it."""

    number: int
    fake: torch.Tensor
    constant: bool
    flows: bool
    name: str

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.fake.shape)


@frozen(eq=False)
class Operation:
    """A node of the trace that makes values from others.

    ``rule`` is what the operator lets pass; of one that is put down differently (``probed``) it only says which splits
    are worth a try. ``gradients``: outside of ``no_grad``.
    """

    node: fx.Node
    op: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    operands: tuple[Quantity, ...]
    results: tuple[Quantity, ...]
    rule: Rule | None
    probed: bool
    gradients: bool

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for operators that have the same strategies, if their operands' pieces are the same."""
        given, structure = pytree.tree_flatten((self.args, self.kwargs))
        literals = tuple(None if isinstance(a, Quantity) else repr(a) for a in given)
        return (
            operator_name(self.op),
            self.node.target is self.op,
            repr(structure),
            literals,
            tuple((q.shape, q.fake.dtype, q.constant, q.flows) for q in self.operands),
            tuple((q.shape, q.fake.dtype, q.flows) for q in self.results),
            self.gradients,
        )


def operation(
    node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any], results: Sequence[Quantity], gradients: bool
) -> Operation:
    """The operation of a node whose tensor arguments are quantities."""
    op, cast = out_of_place(node.target)
    operands = tuple(a for a in pytree.tree_leaves((args, kwargs)) if isinstance(a, Quantity))
    name = operator_name(op)
    rewritten = name in REWRITES or ".".join(name.split(".")[:2]) in REWRITES
    given, structure = pytree.tree_flatten((args, kwargs))
    shown = pytree.tree_unflatten(
        [TensorArg(a.shape, a.fake.dtype) if isinstance(a, Quantity) else a for a in given], structure
    )
    call = Call(op, shown[0], shown[1], tuple(TensorArg(q.shape, q.fake.dtype) for q in results))
    maker = find(name)
    rule = maker(call) if maker is not None else None
    probed = rewritten or rule is None or cast is not None
    if rule is None or rewritten:
        rule = _worth_trying(call, rule)
    return Operation(node, op, args, kwargs, operands, tuple(results), rule, probed, gradients)


def _worth_trying(call: Call, rule: Rule | None) -> Rule | None:
    """Which dims of an operator that is put down differently may be tried split: those of its rule, whole ones too."""
    if rule is not None:
        return evolve(rule, whole=frozenset(), contract=frozenset(), linear=())
    tensors = call.tensors
    if not tensors:
        return None
    if call.op._schema.name == "aten::cross_entropy_loss":
        logits, *others = tensors
        classes = 1 if len(logits.shape) > 1 else 0
        sizes = {f"d{i}": n for i, n in enumerate(logits.shape)}
        terms: tuple[Term, ...] = tuple((f"d{i}",) for i in range(len(logits.shape)))
        rows = terms[:classes] + terms[classes + 1 :]
        of = {logits.shape: terms, tuple(logits.shape[i] for i in range(len(terms)) if i != classes): rows}
        inputs = tuple(of.get(t.shape, (terms[classes],)) for t in (logits, *others))
        outputs = tuple(rows if len(r.shape) == len(rows) else () for r in call.results)
        return Rule(inputs, outputs, sizes)
    widest = max(tensors, key=lambda t: len(t.shape))
    if not _broadcast(widest.shape, tensors):
        return None
    inputs, sizes = aligned(tensors, widest.shape)
    outputs = tuple(
        aligned([r], widest.shape)[0][0] if _broadcast(widest.shape, [r]) else ((),) * len(r.shape)
        for r in call.results
    )
    return Rule(inputs, outputs, sizes)


def _broadcast(shape: tuple[int, ...], tensors: Iterable[TensorArg]) -> bool:
    """Do all fit into this shape from the right?"""
    return all(
        len(t.shape) <= len(shape)
        and all(n in (1, m) for n, m in zip(reversed(t.shape), reversed(shape), strict=False))
        for t in tensors
    )
