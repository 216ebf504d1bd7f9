"""From the typed tree to text: each piece in one line, in the one way that ``fmt`` writes it."""

from __future__ import annotations

from collections.abc import Iterable

from shardlang.syntax import tree


def expr(node: tree.Expr) -> str:
    """A size: ``+`` with blanks, ``*`` and ``//`` without, brackets only where they count."""
    if isinstance(node, tree.Int):
        return str(node.value)
    if isinstance(node, tree.Ref):
        return node.name
    left, right = expr(node.left), expr(node.right)
    if isinstance(node.left, tree.Binary) and node.left.op == "+" and node.op != "+":
        left = f"({left})"
    if isinstance(node.right, tree.Binary) and not (node.op == "+" and node.right.op != "+"):
        right = f"({right})"
    return f"{left} + {right}" if node.op == "+" else f"{left}{node.op}{right}"


def cut(node: tree.Cut) -> str:
    if node.kind == "whole":
        return "/."
    if node.kind == "choose":
        return "/?"
    return f"/{'~' if node.kind == 'uneven' else ''}{node.axis}"


def dim(node: tree.SpecDim) -> str:
    if isinstance(node, tree.Rest):
        return "..."
    if isinstance(node, tree.Group):
        inner = "(" + " ".join(dim(f) for f in node.factors) + ")"
    else:
        inner = "_" if node.size is None else expr(node.size)
    return inner + "".join(cut(c) for c in node.cuts)


def pending(node: tree.Pending) -> str:
    return "{" + ", ".join(f"+{o.axis}" if o.op == "sum" else f"{o.op} {o.axis}" for o in node.owed) + "}"


def tensor(node: tree.Tensor | tree.Whole | tree.Pending) -> str:
    if isinstance(node, tree.Whole):
        return "whole"
    if isinstance(node, tree.Pending):
        return pending(node)
    dtype = node.dtype.text if node.dtype is not None else ""
    owed = pending(node.pending) if node.pending is not None else ""
    return f"{dtype}[{' '.join(dim(d) for d in node.dims)}]{owed}"


def spec(node: tree.Spec) -> str:
    return tensor(node.tensor) + (f" grad {tensor(node.grad)}" if node.grad is not None else "")


def change(node: tree.Change) -> str:
    return f"{spec(node.source)} => {spec(node.target)}"


def arg(node: tree.Arg) -> str:
    if node.spec is None:
        return "_"
    return f"{node.name}: {spec(node.spec)}" if node.name is not None else spec(node.spec)


def results(node: tree.Signature) -> str:
    made = ", ".join(arg(r) for r in node.results)
    return f"({made})" if node.many else made


def signature(node: tree.Signature) -> str:
    return f"({', '.join(arg(a) for a in node.args)}) -> {results(node)}"


def axes(nodes: Iterable[tree.Axis]) -> str:
    return " * ".join(axis(a) for a in nodes)


def axis(node: tree.Axis) -> str:
    return f"{node.name}:{'?' if node.size is None else node.size}" + (f"@{node.link}" if node.link else "")


def quantity(node: tree.Quantity) -> str:
    return f"{node.number} {node.unit}"


def binding(node: tree.Binding) -> str:
    return f"{node.name} = {expr(node.value)}"


def rule_line(node: tree.RuleLine) -> str:
    dims, targets = ", ".join(str(n) for n in node.dims), "/".join(str(n) for n in node.axes)
    return f"{dims} -> {targets}{' else whole' if node.fallback else ''}"


def limit(node: tree.Limit) -> str:
    if isinstance(node, tree.MemoryLimit):
        return f"memory <= {quantity(node.most)}"
    if isinstance(node, tree.PeakLimit):
        return f"peak <= {node.ratio}x"
    return f"forbid {node.kind} on {node.link}"


def option(node: tree.Option) -> str:
    value = node.value
    if isinstance(value, bool):
        return f"{node.name} {'yes' if value else 'no'}"
    return f"{node.name} {value.value if isinstance(value, tree.Int) else value}"


def groups(node: tree.Fsdp) -> str:
    """What follows the path of an ``fsdp`` line."""
    text = "over " + "/".join(str(n) for n in node.over)
    if node.replicate:
        text += " replicate " + "/".join(str(n) for n in node.replicate)
    return text + options(node.options)


def options(nodes: Iterable[tree.Option]) -> str:
    """The braces at the end of a line, with a space before them; nothing where there is nothing in them."""
    inside = ", ".join(option(o) for o in nodes)
    return f" {{ {inside} }}" if inside else ""


def rule(node: tree.Rule) -> str:
    inputs, outputs = (" ".join(_pattern(p) for p in ps) for ps in (node.inputs, node.outputs))
    return f"rule {node.operator}: {inputs} -> {outputs}"


def _pattern(node: tree.RulePattern) -> str:
    return "[" + " ".join(_factor(d) for d in node.dims) + "]"


def _factor(node: tree.RuleFactor | tree.RuleGroup) -> str:
    if isinstance(node, tree.RuleGroup):
        return "(" + " ".join(_factor(f) for f in node.factors) + ")"
    return node.name + node.mark
