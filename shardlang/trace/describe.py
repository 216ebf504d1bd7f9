"""Local programs as text: their plan, the signature of their backward, their source."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from shardlang.plan.plan import Plan, dual
from shardlang.trace.call import operator_name
from shardlang.trace.program import LocalProgram, move, rank_value
from shardlang.trace.values import Value, dtype_name


def plan_text(program: LocalProgram) -> str:
    """A line for each step, forward and then backward, with the place in the user's file that it serves."""
    lines = []
    for direction in ("forward", "backward"):
        rows = []
        for index in moves_in_order(program):
            made = program.moves[index]
            plan = made.forward if direction == "forward" else made.backward
            if plan is None:
                continue
            where = f"{made.site.file.rsplit('/', 1)[-1]}:{made.site.line}" if made.site else made.reason
            rows += [(made.name, made.reason, where, text) for text in _steps(plan)]
        if direction == "backward":
            rows.reverse()
        lines.append(f"{direction}:" if rows else f"{direction}: nothing moves")
        lines += [f"  {name:<16} {text:<58} {reason:<9} {where}" for name, reason, where, text in rows]
    return "\n".join(lines)


def _steps(plan: Plan) -> list[str]:
    return [
        f"{s.kind} {'/'.join(s.axes)} {s.source} -> {s.target}  {s.bytes_received} B  {s.time / 10**6:.1f} us"
        for s in plan.steps
    ]


def moves_in_order(program: LocalProgram) -> list[int]:
    """The numbers of the moves that the graph has, in its order, each once."""
    found: dict[int, None] = {}
    for node in program.graph.nodes:
        if node.target is move:
            found[node.args[1]] = None
    return list(found)


def decisions_text(program: LocalProgram) -> str:
    """What ``auto`` chose at each place, its price, and the next best."""
    lines = []
    for decision in program.decisions:
        where = f"{decision.site.file.rsplit('/', 1)[-1]}:{decision.site.line}" if decision.site else "the boundary"
        lines.append(f"{where}: {decision.operator}")
        for i, (text, time, size) in enumerate(decision.ways):
            if i == decision.taken or i == (0 if decision.taken else 1):
                mark = "taken    " if i == decision.taken else "next best"
                lines.append(f"  {mark}  {time / 10**6:8.1f} us  {size:>10} B  {text}")
    return "\n".join(lines) or "nothing was to be chosen"


def backward_signature(program: LocalProgram) -> str:
    """``(grad of each result) -> (grad of each argument)`` with their layouts."""
    given = ", ".join(
        f"{dtype_name(d)}{dual(layout)}" for d, layout in zip(program.result_dtypes, program.results, strict=True)
    )
    made = ", ".join(
        f"{n}: {dtype_name(d)}{g}"
        for n, d, g in zip(program.argument_names, program.dtypes, program.gradients, strict=True)
    )
    return f"({given}) -> ({made})"


def local_source(program: LocalProgram) -> str:
    """The program as Python: the operators with local arguments, a comment with the layout of each value."""
    names: dict[fx.Node, str] = {}
    lines = [f"def {program.name}({', '.join(program.argument_names)}):"]
    for node in program.graph.nodes:
        names[node] = node.name
        if node.op == "placeholder":
            continue
        if node.op == "output":
            lines.append(f"    return {', '.join(names[n] for n in node.args[0])}")
        elif node.op == "get_attr":
            lines.append(f"    {node.name} = {_literal(program.constants[str(node.target)])}")
        else:
            lines.append(f"    {node.name} = {_call(program, node, names)}{_comment(node)}")
    return "\n".join(lines)


def _literal(tensor: torch.Tensor) -> str:
    return f"torch.tensor({tensor.tolist()}, dtype={tensor.dtype})"


def _call(program: LocalProgram, node: fx.Node, names: dict[fx.Node, str]) -> str:
    def text(argument: Any) -> str:
        if isinstance(argument, fx.Node):
            return names[argument]
        if isinstance(argument, list | tuple):
            return "[" + ", ".join(text(a) for a in argument) + "]"
        return repr(argument)

    if node.target is move:
        index = node.args[1]
        assert isinstance(index, int)
        made = program.moves[index]
        there = "identity" if made.forward is None else _kinds(made.forward)
        back = "identity" if made.backward is None else _kinds(made.backward)
        return f"carry({text(node.args[0])}, forward={there!r}, backward={back!r})"
    if node.target is rank_value:
        return f"of_rank({node.args[0]})"
    arguments = [text(a) for a in node.args] + [f"{k}={text(v)}" for k, v in node.kwargs.items()]
    target: Any = node.target
    name = f"torch.ops.{operator_name(target)}" if isinstance(target, torch._ops.OpOverload) else target.__name__
    return f"{name}({', '.join(arguments)})"


def _kinds(plan: Plan) -> str:
    return ", ".join(f"{s.kind} {'/'.join(s.axes)}" for s in plan.steps) or "identity"


def _comment(node: fx.Node) -> str:
    value = node.meta.get("value")
    return f"  # {dtype_name(value.dtype)}{value.layout}" if isinstance(value, Value) else ""
