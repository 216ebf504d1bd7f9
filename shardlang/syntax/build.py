"""From the parser's trees to the typed tree: declarations. What the grammar cannot refuse is refused here."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any, Literal

from lark import Token, Tree

from shardlang.diagnostics import sl01_syntax
from shardlang.syntax import tree
from shardlang.syntax.build_spec import Child, Context, Node, change, expr, integer, name, names, signature, spec

_DECIMAL = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_BYTES = {**_DECIMAL, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
UNITS: dict[Literal["bandwidth", "time", "bytes"], dict[str, int]] = {
    "bandwidth": {f"{unit}/s": size for unit, size in _BYTES.items()},
    "time": {"s": 10**12, "ms": 10**9, "us": 10**6, "ns": 10**3, "ps": 1},
    "bytes": _BYTES,
}
"""The units of each kind of quantity, in bytes per second, picoseconds and bytes."""

MAX_DIGITS = 18
OPTIONS: dict[str, str] = {
    "param": "a dtype",
    "reduce": "a dtype",
    "output": "a dtype",
    "reshard": "`yes`, `no` or an integer",
    "prefetch": "an integer",
    "offload": "`yes` or `no`",
    "all_gather": "`float8`",
}
"""The options of ``fsdp`` and what each takes."""

COMPILE_OPTIONS: dict[str, str] = {"backend": "a name"}
"""The options of ``compile`` and what each takes."""


def file(context: Context, node: Node) -> tree.File:
    """The whole file; broken declarations are not in ``node`` any more."""
    decls = [_DECLS[child.data](context, child) for child in node.children if isinstance(child, Tree)]
    return tree.File(tuple(decls), context.source.whole())


def quantity(context: Context, token: Token, kind: Literal["bandwidth", "time", "bytes"]) -> tree.Quantity:
    match = re.fullmatch(r"([0-9.]+)[ \t]*(.*)", token)
    assert match is not None
    number, unit = match.groups()
    span = context.span(token)
    start = span.end - len(unit)
    value = 1
    if unit not in UNITS[kind]:
        bits = "`b` would be a bit; quantities count bytes" if re.search(r"[kKMGTi]b", unit) else ""
        where = context.source.span(start, span.end)
        context.faults.append(sl01_syntax.bad_quantity(where, kind, UNITS[kind], unit, bits))
    elif len(number) > MAX_DIGITS:
        context.faults.append(sl01_syntax.huge_integer(span, 10**MAX_DIGITS))
    else:
        value = round(Fraction(number) * UNITS[kind][unit])
        if kind == "bandwidth" and value == 0:
            context.faults.append(sl01_syntax.zero_bandwidth(span))
    return tree.Quantity(kind, value, number, unit, span)


def _link(context: Context, node: Node) -> tree.Link:
    _, label, bandwidth, latency = _tokens(node)
    return tree.Link(
        name(context, label),
        quantity(context, bandwidth, "bandwidth"),
        quantity(context, latency, "time"),
        context.span(node),
    )


def axes(context: Context, node: Node) -> tuple[tree.Axis, ...]:
    return tuple(_axis(context, child) for child in node.children if isinstance(child, Tree))


def _axis(context: Context, node: Node) -> tree.Axis:
    label, size, link = node.children
    assert isinstance(label, Token)
    assert isinstance(size, Token)
    value = None if size.type == "ANY" else integer(context, size)
    if value == 0:
        context.faults.append(sl01_syntax.zero_axis(context.span(size), str(label)))
    return tree.Axis(
        name(context, label),
        value,
        name(context, link) if isinstance(link, Token) else None,
        context.span(node),
        context.span(size),
    )


def _mesh(context: Context, node: Node) -> tree.Mesh:
    _, label, along, ranks = node.children
    taken = None
    if isinstance(ranks, Tree):
        _, first, last = _tokens(ranks)
        taken = tree.Ranks(integer(context, first), integer(context, last), context.span(ranks))
        if taken.first > taken.last:
            context.faults.append(
                sl01_syntax.backward_range(context.source.span(first.start_pos or 0, last.end_pos or 0))
            )
    assert isinstance(along, Tree)
    return tree.Mesh(_name(context, label), axes(context, along), taken, context.span(node))


def _split(context: Context, node: Node) -> tree.Split:
    _, mesh, axis, along = node.children
    assert isinstance(along, Tree)
    parts = axes(context, along)
    for part in parts:
        if part.size is None:
            context.faults.append(sl01_syntax.open_part(part.size_span))
    return tree.Split(_name(context, mesh), _name(context, axis), parts, context.span(node))


def _let(context: Context, node: Node) -> tree.Let:
    bindings: list[tree.Binding] = []
    for child in _trees(node):
        label, value = child.children
        bindings.append(tree.Binding(_name(context, label), expr(context, value), context.span(child)))
    return tree.Let(tuple(bindings), context.span(node))


def _rules(context: Context, node: Node) -> tree.Rules:
    on, *lines = _trees(node)
    built: list[tree.RuleLine] = []
    for line in lines:
        dims, targets = line.children[:2]
        assert isinstance(dims, Tree)
        assert isinstance(targets, Tree)
        fallback = line.children[2] is not None
        built.append(tree.RuleLine(names(context, dims), names(context, targets), fallback, context.span(line)))
    return tree.Rules(_on(context, on), tuple(built), context.span(node))


def _on(context: Context, node: Child) -> tree.Name:
    return _name(context, node.children[1])


def _name(context: Context, child: Child) -> tree.Name:
    assert isinstance(child, Token)
    return name(context, child)


def _tokens(node: Node) -> list[Token]:
    return [child for child in node.children if isinstance(child, Token)]


def _trees(node: Node) -> list[Node]:
    return [child for child in node.children if isinstance(child, Tree)]


def _fn(context: Context, node: Node) -> tree.Fn:
    _, label, on, shape = node.children
    assert isinstance(shape, Tree)
    mesh = None if on is None else _on(context, on)
    return tree.Fn(_name(context, label), mesh, signature(context, shape), context.span(node))


def _reshard(context: Context, node: Node) -> tree.Reshard:
    _, label, on, move = node.children
    assert isinstance(move, Tree)
    mesh = None if on is None else _on(context, on)
    return tree.Reshard(_name(context, label), mesh, change(context, move), context.span(node))


def _path(context: Context, token: Child) -> tree.Path:
    span = context.span(token)
    for first, last in re.findall(r"\[(\d+)\.\.(\d+)\]", token):
        if len(first) > MAX_DIGITS or len(last) > MAX_DIGITS:
            context.faults.append(sl01_syntax.huge_integer(span, 10**MAX_DIGITS))
        elif int(first) > int(last):
            context.faults.append(sl01_syntax.backward_range(span))
    return tree.Path(re.sub(r"[ \t]", "", token), span)


def _param(context: Context, node: Node) -> tree.Param:
    _, path, layout = node.children
    assert isinstance(layout, Tree)
    return tree.Param(_path(context, path), spec(context, layout), context.span(node))


def _call(context: Context, node: Node) -> tree.Call:
    _, path, shape, eager = node.children
    assert isinstance(shape, Tree)
    return tree.Call(_path(context, path), signature(context, shape), eager is not None, context.span(node))


def _fsdp(context: Context, node: Node) -> tree.Fsdp:
    _, path, _, over, replicate, options = node.children
    assert isinstance(over, Tree)
    copies: tuple[tree.Name, ...] = ()
    if isinstance(replicate, Tree):
        inner = replicate.children[1]
        assert isinstance(inner, Tree)
        copies = names(context, inner)
    built = _options(context, options, "fsdp", OPTIONS)
    return tree.Fsdp(_path(context, path), names(context, over), copies, built, context.span(node))


def _options(context: Context, node: Child | None, keyword: str, known: dict[str, str]) -> tuple[tree.Option, ...]:
    """What stands in the braces of a line, if it has any."""
    built: list[tree.Option] = []
    first: dict[str, tree.Name] = {}
    for child in _trees(node) if isinstance(node, Tree) else []:
        option = _option(context, child, keyword, known)
        if option is None:
            continue
        if option.name.text in first:
            context.faults.append(sl01_syntax.repeated_option(option.name.span, first[option.name.text].span))
        first.setdefault(option.name.text, option.name)
        built.append(option)
    return tuple(built)


def _option(context: Context, node: Node, keyword: str, known: dict[str, str]) -> tree.Option | None:
    label, value = _tokens(node)
    if label not in known:
        context.faults.append(sl01_syntax.unknown_option(context.span(label), keyword, known))
        return None
    built: tree.Name | tree.Int | bool | None = None
    wanted = known[label]
    if value.type == "INT":
        built = tree.Int(integer(context, value), context.span(value)) if "integer" in wanted else None
    elif "yes" in wanted:
        built = {"yes": True, "no": False}.get(str(value))
    elif wanted in ("a dtype", "a name") or wanted == f"`{value}`":
        built = name(context, value)
    if built is None:
        context.faults.append(sl01_syntax.bad_option_value(context.span(value), str(label), wanted))
        return None
    return tree.Option(name(context, label), built, context.span(node), context.span(value))


def _checkpoint(context: Context, node: Node) -> tree.Checkpoint:
    return tree.Checkpoint(_path(context, node.children[1]), context.span(node))


def _compile(context: Context, node: Node) -> tree.Compile:
    _, path, options = node.children
    return tree.Compile(
        _path(context, path), _options(context, options, "compile", COMPILE_OPTIONS), context.span(node)
    )


def _freeze(context: Context, node: Node) -> tree.Freeze:
    return tree.Freeze(_path(context, node.children[1]), context.span(node))


def _model(context: Context, node: Node) -> tree.Model:
    _, label, origin, on, *items = node.children
    reference = None
    if isinstance(origin, Tree):
        text = origin.children[1]
        reference = tree.Reference(str(text), context.span(text))
    built = tuple(_ITEMS[item.data](context, item) for item in items if isinstance(item, Tree))
    return tree.Model(_name(context, label), reference, _on(context, on), built, context.span(node))


def _transfer(context: Context, node: Node) -> tree.Transfer:
    _, source, target = _tokens(node)
    return tree.Transfer(name(context, source), name(context, target), context.span(node))


def _budget(context: Context, node: Node) -> tree.Budget:
    limits = tuple(_limit(context, child) for child in _trees(node))
    return tree.Budget(_name(context, node.children[1]), limits, context.span(node))


def _limit(context: Context, node: Node) -> tree.Limit:
    span = context.span(node)
    value = node.children[1]
    assert isinstance(value, Token)
    if node.data == "memory":
        return tree.MemoryLimit(quantity(context, value, "bytes"), span)
    if node.data == "peak":
        if len(value) > MAX_DIGITS:
            context.faults.append(sl01_syntax.huge_integer(context.span(value), 10**MAX_DIGITS))
        return tree.PeakLimit(value[:-1], span)
    return tree.Forbid(name(context, value), _on(context, node.children[2]), span)


def _rule(context: Context, node: Node) -> tree.Rule:
    _, operator, *patterns, outputs = node.children
    assert isinstance(outputs, Tree)
    return tree.Rule(
        _name(context, operator),
        tuple(_pattern(context, p) for p in patterns if isinstance(p, Tree)),
        tuple(_pattern(context, p) for p in _trees(outputs)),
        context.span(node),
    )


def _pattern(context: Context, node: Node) -> tree.RulePattern:
    dims: list[tree.RuleFactor | tree.RuleGroup] = []
    for child in _trees(node):
        if child.data == "factor":
            dims.append(_factor(context, child))
        else:
            factors = tuple(_factor(context, c) for c in _trees(child))
            dims.append(tree.RuleGroup(factors, context.span(child)))
    return tree.RulePattern(tuple(dims), context.span(node))


def _factor(context: Context, node: Node) -> tree.RuleFactor:
    word, mark = node.children
    marks: dict[str, Literal["", "+", "!"]] = {"+": "+", "!": "!"}
    return tree.RuleFactor(str(word), marks.get(str(mark), ""), context.span(node))


_DECLS: dict[str, Callable[[Context, Node], Any]] = {
    "link": _link,
    "mesh": _mesh,
    "split": _split,
    "let": _let,
    "rules": _rules,
    "fn": _fn,
    "reshard": _reshard,
    "model": _model,
    "transfer": _transfer,
    "budget": _budget,
    "rule": _rule,
}
_ITEMS: dict[str, Callable[[Context, Node], Any]] = {
    "param": _param,
    "call": _call,
    "fsdp": _fsdp,
    "checkpoint": _checkpoint,
    "compile": _compile,
    "freeze": _freeze,
}
