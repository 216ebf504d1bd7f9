"""What was chosen, in words: each reshard with its price and the next best program, each open axis with its rivals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from attrs import frozen

from shardlang.dtypes import DTYPES
from shardlang.layout import Layout
from shardlang.plan.plan import Plan
from shardlang.trace.auto.choose import Chosen, Least, solve
from shardlang.trace.auto.eliminate import NEVER, Factor
from shardlang.trace.auto.operation import Operation
from shardlang.trace.auto.search import Search
from shardlang.trace.auto.strategies import Strategy
from shardlang.trace.call import operator_name
from shardlang.trace.capture import Site
from shardlang.trace.describe import moves_in_order
from shardlang.trace.pieces import State, layout_of, state_of
from shardlang.trace.program import LocalProgram, Move

MICRO = 10**6


@frozen(eq=False)
class _Taken:
    """An operator that takes a value in another layout than it comes in: its number, the operand, and the move."""

    index: int
    operand: int
    state: State
    name: str
    move: Move


def explain_text(found: Least, program: LocalProgram) -> str:
    """The total, each chosen reshard with its price and the next best, each open axis with the others."""
    search, chosen = found.search, found.chosen
    names = {q.number: n for q, n in zip(search.net.arguments, program.argument_names, strict=True)}
    moves = {(m.name, state_of(m.forward.target)): m for m in _moves(program, "chosen") if m.forward is not None}
    groups: dict[tuple[object, ...], list[_Taken]] = {}
    for index, operation in enumerate(search.net.operations):
        for operand, state in enumerate(found.wanted[operation.node]):
            quantity = operation.operands[operand]
            name = names.get(quantity.number, quantity.name)
            move = moves.get((name, state))
            if move is not None:
                key = (
                    str(operation.node.meta.get("site")),
                    operator_name(operation.op),
                    operand,
                    _price(move),
                    _way(move),
                )
                groups.setdefault(key, []).append(_Taken(index, operand, state, name, move))
    lines = [_total(program, chosen), *_largest(program), *_open(search, chosen, program)]
    for members in groups.values():
        lines += _described(search, chosen, members[0], len(members), names)
    if not groups:
        lines.append("nothing is moved in the body")
    for reason, title in (("asked", "asked for in the body:"), ("boundary", "demanded by the signature:")):
        lines += _listed(title, _moves(program, reason))
    sums = _moves(program, "gradient")
    if sums:
        lines.append("gradients added up:")
        lines += [f"  of `{m.name}`  {_price(m)}  {_kinds(m.backward)}" for m in sums]
    return "\n".join(lines)


def _listed(title: str, moves: Sequence[Move]) -> list[str]:
    return [title, *(f"  `{m.name}` to {_to(m)}  {_price(m)}  {_way(m)}" for m in moves)] if moves else []


def _total(program: LocalProgram, chosen: Chosen) -> str:
    moved = sum(p.time for m in _moves(program) for p in (m.forward, m.backward) if p is not None)
    text = f"{program.name}: {_us(program.work + moved)} modelled, forward and backward: {_us(program.work)} of work, "
    text += f"{_us(moved)} of moves"
    if chosen.gap is None:
        text += " (no two axes can be changed for the better; more than that is not shown)"
    elif chosen.gap > 0:
        text += f" (the solver stopped at its limit: at most {chosen.gap:.2%} may be missed)"
    return text


def _largest(program: LocalProgram) -> list[str]:
    """The largest block that a chosen reshard makes of a smaller one, since memory is not weighed."""
    made = []
    for move in _moves(program, "chosen"):
        if move.forward is not None:
            plan = move.forward
            before, after = (_block(layout, plan.dtype) for layout in (plan.source, plan.target))
            if after > before:
                made.append((after, before, move))
    if not made:
        return []
    after, before, move = max(made, key=lambda m: m[0])
    sizes = f"{_bytes(before)} -> {_bytes(after)} a rank"
    return [f"memory is not weighed: the largest block made is `{move.name}` to {_to(move)}, {sizes}"]


def _block(layout: Layout, dtype: str) -> int:
    """Bytes of the largest block of a rank, which the first one has."""
    return math.prod(layout.local_shape(layout.mesh.first_rank)) * DTYPES[dtype].itemsize


def _moves(program: LocalProgram, reason: str | None = None) -> list[Move]:
    moves = [program.moves[i] for i in moves_in_order(program)]
    return [m for m in moves if reason is None or m.reason == reason]


def _described(search: Search, chosen: Chosen, taken: _Taken, times: int, names: Mapping[int, str]) -> list[str]:
    operation = search.net.operations[taken.index]
    site: Site | None = operation.node.meta.get("site")
    place = f"{site.file.rsplit('/', 1)[-1]}:{site.line}" if site is not None else "the body"
    many = f" ({times} alike)" if times > 1 else ""
    lines = [
        f"{place}: `{taken.name}` to {_to(taken.move)} for {operator_name(operation.op)}{many}",
        f"  taken      {_price(taken.move)}  {_way(taken.move)}",
    ]
    other = _without(search, taken)
    if other is None:
        return [*lines, "  next best  none: the operator runs in no other way"]
    more = _us(other.time - chosen.time)
    return [*lines, f"  next best  {more} more in all: {_instead(search, chosen, other, taken, operation, names)}"]


def _without(search: Search, taken: _Taken) -> Chosen | None:
    """The best program in which the operator does not take its operand so."""
    choice, found = search.choices[taken.index], search.strategies[taken.index]
    if choice.variable is None:
        return None
    costs = [NEVER if found[k].wants[taken.operand].state == taken.state else 0 for k in choice.kinds]
    if all(costs):
        return None
    return solve(search, extra=[Factor((choice.variable,), torch.tensor(costs, dtype=torch.int64))])


def _strategy(search: Search, chosen: Chosen, index: int) -> Strategy:
    choice = search.choices[index]
    value = 0 if choice.variable is None else chosen.values[choice.variable]
    return search.strategies[index][choice.kinds[value]]


def _instead(
    search: Search, chosen: Chosen, other: Chosen, taken: _Taken, operation: Operation, names: Mapping[int, str]
) -> str:
    """How the operator runs in the other program, and how many others run otherwise, too."""
    now = _strategy(search, other, taken.index)
    mesh = search.model.prices.mesh
    parts = [
        f"`{names.get(q.number, q.name)}` as {layout_of(mesh, w.state)}"
        for q, w in zip(operation.operands, now.wants, strict=True)
        if not q.constant
    ]
    changed = sum(
        _strategy(search, chosen, i) != _strategy(search, other, i)
        for i in range(len(search.net.operations))
        if i != taken.index
    )
    also = f"; {changed} other operator{'s' * (changed > 1)} otherwise, too" if changed else ""
    return f"{', '.join(parts)} -> {layout_of(mesh, now.results[0])}{also}"


def _open(search: Search, chosen: Chosen, program: LocalProgram) -> list[str]:
    lines: list[str] = []
    for name, given, variable in zip(program.argument_names, search.given, search.options, strict=True):
        if variable is None:
            continue
        taken = chosen.values[variable]
        rivals = []
        for option in range(len(given.options)):
            if option == taken:
                continue
            costs = [0 if i == option else NEVER for i in range(len(given.options))]
            other = solve(search, extra=[Factor((variable,), torch.tensor(costs, dtype=torch.int64))])
            if other is not None:
                rivals.append((other.time, option))
        lines.append(f"`{name}`: the axis left open is chosen: {given.options[taken]}")
        for n, (time, option) in enumerate(sorted(rivals)):
            label = "next best  " if n == 0 else "           "
            lines.append(f"  {label}{given.options[option]}: {_us(time - chosen.time)} more in all")
    return lines


def _to(move: Move) -> Layout:
    """The layout after a move; of one that is for the gradient alone, the value's."""
    plan = move.forward or move.backward
    assert plan is not None
    return plan.target


def _plans(move: Move) -> Sequence[Plan]:
    return [p for p in (move.forward, move.backward) if p is not None]


def _price(move: Move) -> str:
    plans = _plans(move)
    return f"{_us(sum(p.time for p in plans))}, {_bytes(sum(p.bytes_received for p in plans))}"


def _way(move: Move) -> str:
    there, back = (_kinds(p) for p in (move.forward, move.backward))
    return f"{there}; its gradient {back}"


def _kinds(plan: Plan | None) -> str:
    if plan is None or not plan.steps:
        return "as it is"
    return ", then ".join(f"{s.kind} {'/'.join(s.axes)}".strip() for s in plan.steps)


def _us(picoseconds: int) -> str:
    return f"{picoseconds / MICRO:,.1f} us"


def _bytes(count: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"
