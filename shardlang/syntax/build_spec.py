"""From the parser's trees to the typed tree: names, sizes, specs and signatures."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from attrs import field, frozen
from lark import Token, Tree

from shardlang.diagnostics import Diagnostic, sl01_syntax
from shardlang.source import Source, Span
from shardlang.syntax import tree

MAX_INT = 2**63 - 1
"""A size must fit where torch keeps one."""
MAX_DEPTH = 64
"""The deepest tree of an expression."""

Node: TypeAlias = "Tree[Token]"
Child: TypeAlias = Any
"""A token, a tree, or ``None`` for an optional part that is not there."""


@frozen
class Context:
    """The text that is being read, and the faults found on the way."""

    source: Source
    faults: list[Diagnostic] = field(factory=list)

    def span(self, node: Child) -> Span:
        return Span(self.source, node.start_pos or 0, node.end_pos or 0)


def name(context: Context, token: Token) -> tree.Name:
    return tree.Name(str(token), context.span(token))


def names(context: Context, node: Node) -> tuple[tree.Name, ...]:
    return tuple(name(context, child) for child in node.children if isinstance(child, Token))


def integer(context: Context, token: Token) -> int:
    """The value of an INT; 1 (which harms nothing that follows) and a fault where it is too large."""
    if len(token) <= len(str(MAX_INT)) and (value := int(token)) <= MAX_INT:
        return value
    context.faults.append(sl01_syntax.huge_integer(context.span(token), MAX_INT))
    return 1


_OPERATORS: dict[str, Literal["+", "*", "//"]] = {"sum": "+", "product": "*", "quotient": "//", "scaled": "*"}


def expr(context: Context, node: Child) -> tree.Expr:
    """A size expression. One that is nested too deep for the stages that follow is a fault, and 1 in its place."""
    built, depth = _expr(context, node, 0)
    if depth > MAX_DEPTH:
        context.faults.append(sl01_syntax.too_long(context.span(node), MAX_DEPTH))
        return tree.Int(1, context.span(node))
    return built


def _expr(context: Context, node: Child, level: int) -> tuple[tree.Expr, int]:
    """The expression and its depth, or a part of it and a depth beyond the bound. ``level`` is how far to the right it
    stands in others; to the left there is a loop, whose length the text alone bounds."""
    above: list[Node] = []
    while isinstance(node, Tree):
        above.append(node)
        node = node.children[0]
    built, depth = _atom(context, node), level + 1
    for parent in reversed(above):
        if depth > MAX_DEPTH:
            break
        right, right_depth = _expr(context, parent.children[1], level + 1)
        depth = max(depth, right_depth) + 1
        built = tree.Binary(_OPERATORS[parent.data], built, right, built.span.join(right.span))
    return built, depth


def _atom(context: Context, token: Token) -> tree.Expr:
    if token.type == "INT":
        return tree.Int(integer(context, token), context.span(token))
    return tree.Ref(str(token), context.span(token))


def cut(context: Context, node: Node) -> tree.Cut:
    span = context.span(node)
    last = node.children[-1]
    assert isinstance(last, Token)
    if last.type == "DOT":
        return tree.Cut("whole", None, span)
    if last.type == "ANY":
        return tree.Cut("choose", None, span)
    return tree.Cut("even" if node.children[0] is None else "uneven", name(context, last), span)


def _cuts(context: Context, nodes: list[Child]) -> tuple[tree.Cut, ...]:
    cuts = tuple(cut(context, node) for node in nodes)
    for index, one in enumerate(cuts):
        if one.kind == "whole" and len(cuts) > 1:
            context.faults.append(sl01_syntax.misplaced_cut(one.span, "keeps a dim whole and stands beside a cut"))
        if one.kind == "choose" and index != len(cuts) - 1:
            context.faults.append(sl01_syntax.misplaced_cut(one.span, "is not the last cut of its dim"))
    return cuts


def dim(context: Context, node: Node) -> tree.Dim:
    size, *cuts = node.children
    unnamed = isinstance(size, Token) and size.type == "UNNAMED"
    return tree.Dim(None if unnamed else expr(context, size), _cuts(context, cuts), context.span(node))


def group(context: Context, node: Node) -> tree.Group:
    factors = tuple(dim(context, c) for c in node.children if isinstance(c, Tree) and c.data == "dim")
    cuts = _cuts(context, node.children[len(factors) :])
    for factor in factors:
        for one in factor.cuts:
            if one.kind == "choose":
                reason = "cuts a factor; the planner chooses for a whole dim"
                context.faults.append(sl01_syntax.misplaced_cut(one.span, reason))
    return tree.Group(factors, cuts, context.span(node))


def _spec_dim(context: Context, node: Node) -> tree.SpecDim:
    if node.data == "dim":
        return dim(context, node)
    if node.data == "group":
        return group(context, node)
    return tree.Rest(context.span(node))


_OPS: dict[str, Literal["sum", "avg", "max", "min"]] = {"PLUS": "sum", "AVG": "avg", "MAX": "max", "MIN": "min"}


def pending(context: Context, node: Node) -> tree.Pending:
    owed: list[tree.Owed] = []
    for child in node.children:
        assert isinstance(child, Tree)
        op, axis = child.children
        assert isinstance(op, Token)
        assert isinstance(axis, Token)
        owed.append(tree.Owed(_OPS[op.type], name(context, axis), context.span(child)))
    return tree.Pending(tuple(owed), context.span(node))


def tensor(context: Context, node: Node) -> tree.Tensor:
    dtype, *middle, owed = node.children
    dims = tuple(_spec_dim(context, child) for child in middle if isinstance(child, Tree))
    for index, one in enumerate(dims):
        if isinstance(one, tree.Rest) and index > 0:
            context.faults.append(sl01_syntax.misplaced_rest(one.span, "does not stand first"))
    return tree.Tensor(
        name(context, dtype) if isinstance(dtype, Token) else None,
        dims,
        pending(context, owed) if isinstance(owed, Tree) else None,
        context.span(node),
    )


def _part(context: Context, node: Node) -> tree.Tensor | tree.Whole | tree.Pending:
    if node.data == "tensor":
        return tensor(context, node)
    if node.data == "pending":
        return pending(context, node)
    return tree.Whole(context.span(node))


def spec(context: Context, node: Node) -> tree.Spec:
    first, _, grad = node.children
    assert isinstance(first, Tree)
    main = _part(context, first)
    assert not isinstance(main, tree.Pending)
    return tree.Spec(main, _part(context, grad) if isinstance(grad, Tree) else None, context.span(node))


def change(context: Context, node: Node) -> tree.Change:
    source, target = node.children
    assert isinstance(source, Tree)
    assert isinstance(target, Tree)
    return tree.Change(spec(context, source), spec(context, target), context.span(node))


def _arg(context: Context, node: Child) -> tree.Arg:
    span = context.span(node)
    if isinstance(node, Token):
        return tree.Arg(None, None, span)
    if node.data == "spec":
        return tree.Arg(None, spec(context, node), span)
    label, layout = node.children
    return tree.Arg(name(context, label), spec(context, layout), span)


def signature(context: Context, node: Node) -> tree.Signature:
    args, results = node.children
    given = tuple(_arg(context, child) for child in args.children) if isinstance(args, Tree) else ()
    assert isinstance(results, Tree)
    many = results.data == "results"
    made = tuple(_arg(context, child) for child in results.children) if many else (_arg(context, results),)
    return tree.Signature(given, made, many, context.span(node))
