"""The network of a trace as variables and tables: strategies of operators, and what each value costs under them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any

import torch
from attrs import define, field, frozen

from shardlang.trace.auto.eliminate import NEVER, Factor
from shardlang.trace.auto.operation import Quantity
from shardlang.trace.auto.prices import SOMEWHERE, Backward, Prices, Want
from shardlang.trace.pieces import State
from shardlang.trace.values import dtype_name

Atom = tuple[Want, ...]
"""How one operator uses a value under one strategy: once, or in several operands."""
Row = tuple[State, Atom]
"""The layout that a value is produced in, and uses that the same choice settles."""
DENSE = 1 << 20
"""Entries of a table over all uses of a value; with more the uses are tied together by the copies that there are."""

SLOW = 1 << 13
"""The same where every entry is priced by itself."""


@frozen(eq=False)
class Choice:
    """A variable seen through what matters of it: ``kinds[i]`` is the number of the kind of value ``i``.

    ``variable`` is ``None`` where there is nothing to choose.
    """

    variable: int | None
    kinds: tuple[int, ...]


@define(eq=False)
class Model:
    """Variables by number, with the number of their values, and the tables between them.

    Equal tables are made once: what a value costs is asked for by its type, the layouts it comes in, and its uses.
    """

    prices: Prices
    sizes: list[int] = field(factory=list)
    factors: list[Factor] = field(factory=list)
    tables: dict[tuple[object, ...], torch.Tensor] = field(factory=dict)
    constant: int = 0
    """What is to be paid whatever is chosen."""

    def variable(self, size: int) -> int:
        """A new variable with this many values."""
        self.sizes.append(size)
        return len(self.sizes) - 1

    def add(self, scope: Sequence[int], table: torch.Tensor) -> None:
        """A table whose dims are the variables of ``scope``, in that order."""
        order = sorted(range(len(scope)), key=lambda i: scope[i])
        self.factors.append(Factor(tuple(scope[i] for i in order), table.permute(order).contiguous()))

    def costs(self, variable: int, costs: Sequence[int]) -> None:
        """What each value of a variable costs by itself."""
        key = ("costs", tuple(costs))
        if key not in self.tables:
            self.tables[key] = torch.tensor(costs, dtype=torch.int64)
        self.add([variable], self.tables[key])

    def seen(self, choice: Choice, count: int) -> Choice:
        """The same choice with a variable of its own for the kinds, ``count`` in number."""
        if choice.variable is None or choice.kinds == tuple(range(count)):
            return choice
        made = self.variable(count)
        key = ("seen", choice.kinds, count)
        if key not in self.tables:
            table = torch.full((len(choice.kinds), count), NEVER, dtype=torch.int64)
            table[torch.arange(len(choice.kinds)), torch.tensor(choice.kinds)] = 0
            self.tables[key] = table
        self.add([choice.variable, made], self.tables[key])
        return Choice(made, tuple(range(count)))

    def value(
        self,
        quantity: Quantity,
        produced: tuple[Choice, tuple[State, ...]],
        uses: Sequence[tuple[Choice, tuple[Atom, ...]]],
        back: Backward = SOMEWHERE,
        asked: State | None = None,
    ) -> None:
        """The table of one value: the layouts that it comes in, and its uses, each a choice among atoms.

        ``asked``: the value is what ``sl.reshard`` makes of the one that is produced.
        """
        if not uses and asked is None and back is SOMEWHERE:
            return
        source, rows, uses = _joined(produced, uses)
        if len(uses) > 1:
            uses = [(self.seen(c, len(atoms)), atoms) for c, atoms in uses]
            source = self.seen(source, len(rows))
        counts = (len(rows), *(len(a) for _, a in uses))
        slow = back is not SOMEWHERE or asked is not None
        if len(uses) > 1 and math.prod(counts) > (SLOW if slow else DENSE):
            self._tied(quantity, source, rows, uses, back, asked)
            return
        dtype, flows = dtype_name(quantity.fake.dtype), quantity.flows
        ends = [source, *(c for c, _ in uses)]
        fixed = tuple(c.kinds[0] if c.variable is None else None for c in ends)
        key = (dtype, flows, rows, tuple(a for _, a in uses), back, asked)
        kinds = tuple(c.kinds for c in ends)
        if (key, kinds, fixed) not in self.tables:
            if key not in self.tables:
                atoms = [a for _, a in uses]
                self.tables[key] = value_table(self.prices, dtype, flows, rows, atoms, back, asked)
            table = self.tables[key]
            for dim, choice in enumerate(ends):
                if choice.kinds != tuple(range(counts[dim])):
                    table = table.index_select(dim, torch.tensor(choice.kinds))
            self.tables[(key, kinds, fixed)] = table.reshape(
                [n for n, f in zip(table.shape, fixed, strict=True) if f is None]
            )
        table = self.tables[(key, kinds, fixed)]
        scope = [c.variable for c in ends if c.variable is not None]
        if not scope:
            self.constant += int(table)
        elif bool((table != 0).any()):
            self.add(scope, table)

    def _tied(
        self,
        quantity: Quantity,
        source: Choice,
        rows: tuple[Row, ...],
        uses: Sequence[tuple[Choice, tuple[Atom, ...]]],
        back: Backward,
        asked: State | None,
    ) -> None:
        """Many uses of one value: a yes or no for each use that there may be, paid for once, however many have it."""
        dtype, flows = dtype_name(quantity.fake.dtype), quantity.flows
        alone = value_table(self.prices, dtype, flows, rows, [], back, asked)
        if source.variable is not None:
            self.costs(source.variable, [int(alone[k]) for k in source.kinds])
        else:
            self.constant += int(alone[source.kinds[0]])
        wants = dict.fromkeys(w for _, atoms in uses for atom in atoms for w in atom)
        for want in wants:
            costs = value_table(self.prices, dtype, flows, rows, [((want,),)], back, asked).reshape(-1) - alone
            having = [[any(w == want for w in atom) for atom in atoms] for _, atoms in uses]
            if not bool((costs != 0).any()):
                continue
            there = self.variable(2)
            if source.variable is None:
                self.costs(there, [0, int(costs[source.kinds[0]])])
            else:
                self.add([source.variable, there], torch.stack([torch.zeros_like(costs), costs], 1)[list(source.kinds)])
            for (choice, _), has in zip(uses, having, strict=True):
                if any(has[k] for k in choice.kinds):
                    link = torch.tensor([[NEVER if has[k] else 0, 0] for k in choice.kinds], dtype=torch.int64)
                    if choice.variable is None:
                        self.add([there], link[0])
                    else:
                        self.add([choice.variable, there], link)


def _joined(
    produced: tuple[Choice, tuple[State, ...]], uses: Sequence[tuple[Choice, tuple[Atom, ...]]]
) -> tuple[Choice, tuple[Row, ...], list[tuple[Choice, tuple[Atom, ...]]]]:
    """Uses by one variable as one, and those by the variable of the value itself as a part of how it is produced."""
    source, states = produced
    by: dict[int | None, list[tuple[Choice, tuple[Atom, ...]]]] = {}
    for use in uses:
        by.setdefault(use[0].variable, []).append(use)

    def together(members: Sequence[tuple[Choice, tuple[Atom, ...]]], i: int) -> Atom:
        return tuple(w for choice, atoms in members for w in atoms[choice.kinds[i]])

    own = by.pop(source.variable, [])
    pairs = [(states[k], together(own, i)) for i, k in enumerate(source.kinds)]
    if source.variable is not None and not own:
        pairs = [(states[k], ()) for k in source.kinds]
    rows = {pair: n for n, pair in enumerate(dict.fromkeys(pairs))}
    merged = []
    for variable, members in by.items():
        all_atoms = [together(members, i) for i in range(len(members[0][0].kinds))]
        order = {atom: n for n, atom in enumerate(dict.fromkeys(all_atoms))}
        merged.append((Choice(variable, tuple(order[a] for a in all_atoms)), tuple(order)))
    return Choice(source.variable, tuple(rows[p] for p in pairs)), tuple(rows), merged


def value_table(
    prices: Prices,
    dtype: str,
    flows: bool,
    rows: Sequence[Row],
    uses: Sequence[tuple[Atom, ...]],
    back: Backward,
    asked: State | None,
) -> torch.Tensor:
    """What a value costs: a dim for how it is produced, and one for the atoms of each use."""
    table = torch.zeros([len(rows), *(len(a) for a in uses)], dtype=torch.int64)
    if back is not SOMEWHERE or asked is not None:
        for entry in product(*(range(n) for n in table.shape)):
            state, own = rows[entry[0]]
            wants = (*own, *(w for atoms, i in zip(uses, entry[1:], strict=True) for w in atoms[i]))
            table[entry] = value_cost(prices, dtype, flows, state, wants, back, asked)
        return table
    wanted = [w.state for _, own in rows for w in own] + [w.state for atoms in uses for a in atoms for w in a]
    for target in dict.fromkeys(wanted):
        # At this layout: which use has which wants of it; the uses that have none of it are one case.
        cases: list[list[tuple[Atom, list[int]]]] = []
        for atoms in uses:
            having: dict[Atom, list[int]] = {}
            for i, atom in enumerate(atoms):
                having.setdefault(tuple(w for w in atom if w.state == target), []).append(i)
            cases.append(list(having.items()))
        own_wants = [tuple(w for w in own if w.state == target) for _, own in rows]
        for combined in product(*cases):
            wants = tuple(w for has, _ in combined for w in has)
            at: tuple[torch.Tensor, ...] = ()
            if combined:
                at = tuple(torch.meshgrid(*(torch.tensor(i) for _, i in combined), indexing="ij"))
            for p, (state, _) in enumerate(rows):
                here = own_wants[p] + wants
                cost = value_cost(prices, dtype, flows, state, here, back, None) if here else 0
                if cost:
                    rows_at: Any = (p, *at)
                    table[rows_at] += cost
    return table.clamp_(max=NEVER)


def value_cost(
    prices: Prices,
    dtype: str,
    flows: bool,
    state: State,
    wants: Sequence[Want],
    back: Backward,
    asked: State | None,
) -> int:
    """What a value costs that comes in ``state`` and is wanted so: moves, their ways back, sums of gradients."""
    if prices.layout(state) is None or (asked is not None and prices.layout(asked) is None):
        return NEVER
    total = 0
    if asked is not None:
        total += prices.between(state, asked, dtype)
        back = Backward(through=state) if asked != state else SOMEWHERE
        state = asked
    elif back.through == state:
        back = SOMEWHERE
    by: dict[State, list[Want]] = {}
    for want in wants:
        by.setdefault(want.state, []).append(want)
    moved = any(s != state for s in by)
    if flows:
        parts = [w.parts for w in by.get(state, []) if w.parts is not None]
        total += prices.in_place(state, dtype, parts, moved, back)
    for target, uses in by.items():
        if target != state:
            total += prices.copy(state, target, dtype, flows, tuple(w.parts for w in uses if w.parts is not None))
    return min(total, NEVER)
