"""All states of a question that a good plan may pass through, at once, as arrays.

Which slots atoms stand aside in makes no difference to the way on, so that states which differ only in that are one.
Where they stand is told when a step leads there: it may take fresh slots, or those that it vacates.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from shardlang.plan.arrays import SLACK, UNIT, Floats, Masks, Prices, Steps, products, rounds
from shardlang.plan.cost import Costs, forced
from shardlang.plan.moves import bits
from shardlang.plan.places import ASIDE, OWED, WHOLE, Places, rooms
from shardlang.plan.problem import Slots, State

TABLED = 6
"""Up to so many atoms pairs of groups are looked up in a table."""


class Field:
    """The states of one question that fit under its cap, bounds on the ways from them, and prices of steps to them."""

    __slots__ = (
        "aside",
        "at",
        "beside",
        "block",
        "costs",
        "cut",
        "pending",
        "prices",
        "rooms",
        "swaps",
        "where",
    )  # fmt: skip

    def __init__(self, costs: Costs, places: Places) -> None:
        self.costs = costs
        where, cut, pending, aside, at = _grid(places)
        block = costs.numel * costs.element / products(costs.size)[cut]
        if costs.limit is not None and block.max() > costs.limit:
            fits = block <= costs.limit
            where, cut, pending, aside, block = where[:, fits], cut[fits], pending[fits], aside[fits], block[fits]
            at = {v: atoms[fits] for v, atoms in at.items()}
        self.where, self.cut, self.pending, self.aside, self.block, self.at = where, cut, pending, aside, block, at
        self.rooms = rooms(costs)
        self.prices = Prices(costs)
        self.beside: dict[tuple[int, int], Masks] = {}
        self.swaps: dict[tuple[int, int], dict[tuple[int, ...], bool]] = {}

    def __len__(self) -> int:
        return len(self.cut)

    def key(self, state: State) -> bytes:
        """Names a state up to which slots are taken aside."""
        key = [WHOLE] * len(self.costs.size)
        for v, at in enumerate(state[0]):
            for a in at:
                key[a] = v if v in self.at else ASIDE
        for a in bits(state[1]):
            key[a] = OWED
        return np.array(key, dtype=np.int8).tobytes()

    def find(self, state: State) -> int:
        """The index of a state."""
        key = np.frombuffer(self.key(state), dtype=np.int8)
        return int(np.nonzero((self.where == key[:, None]).all(axis=0))[0][0])

    def kinds(self) -> Masks:
        """A number for each state, the same for those that differ only in which of two atoms is which, where the target
        takes them alike."""
        costs, question = self.costs, self.costs.question
        groups: dict[tuple[int, int, int, int], list[int]] = {}
        for a in bits(costs.all_atoms & ~costs.homing):
            stands = (costs.size[a], costs.classes[a], question.target[1] >> a & 1, question.kept >> a & 1)
            groups.setdefault(stands, []).append(a)
        where = self.where.astype(np.int64)
        for group in groups.values():
            if len(group) > 1:
                where[group] = np.sort(where[group], axis=0)
        number = np.zeros(len(self), dtype=np.int64)
        for places in where:
            number = number * (len(costs.extents) + 3) + places + 3
        return number

    def state(self, i: int) -> State:
        """State ``i`` as a step from nowhere leads there."""
        return next(self.reached((((),) * len(self.costs.extents), 0), i))

    def reached(self, before: State, i: int) -> Iterator[State]:
        """State ``i`` as a step from another leads there: what comes aside takes fresh slots, then vacated ones."""
        costs = self.costs
        slots: list[tuple[int, ...]] = [()] * len(costs.extents)
        stands = {a: v for v, at in enumerate(before[0]) for a in at if v not in self.at}
        entering = []
        for a, v in enumerate(self.where[:, i].tolist()):
            if v >= 0:
                slots[v] = (a,)
            elif v == ASIDE:
                if a in stands:
                    slots[stands.pop(a)] = (a,)
                else:
                    entering.append(a)
        pending = int(self.pending[i])
        fresh = list(slots)
        vacated = set(stands.values())
        for a in entering:
            v = next(v for v in self.rooms[costs.size[a]] if not fresh[v] and v not in vacated)
            fresh[v] = (a,)
        yield tuple(fresh), pending
        if not entering or not stands:
            return
        paired = [self._swapped(list(slots), dict(sorted(stands.items(), reverse=h)), entering[::-1] if h else entering)
                  for h in (False, True)]  # fmt: skip
        for put in dict.fromkeys(paired):
            yield put, pending

    def _swapped(self, slots: list[tuple[int, ...]], stands: dict[int, int], entering: list[int]) -> Slots:
        """What comes aside takes, in order, what is vacated by atoms of its size, then fresh slots."""
        size = self.costs.size
        vacated = set(stands.values())
        for a in entering:
            leaving = next((b for b in stands if size[b] == size[a]), None)
            if leaving is not None:
                slots[stands.pop(leaving)] = (a,)
            else:
                slots[next(v for v in self.rooms[size[a]] if not slots[v] and v not in vacated)] = (a,)
        return tuple(slots)

    def _beside(self, slot: int, atom: int) -> Masks:
        """In one slot: same, alone, mine and theirs (four masks), beside an atom there; and a flag."""
        key = (slot, atom)
        known = self.beside.get(key)
        if known is not None:
            return known
        n, bit = len(self.costs.size), 1 << atom
        there = self.at.get(slot)
        found: Masks = np.full(len(self), bit << n, dtype=np.int64)
        if there is not None:
            product = products(self.costs.size)
            found[there != 0] = bit << 2 * n
            found |= there << 3 * n
            found[there == bit] = bit
            found[(there != 0) & (product[there] != product[bit])] |= 1 << 4 * n
        self.beside[key] = found
        return found

    def _compared(self, slots: Slots, near: Masks | None) -> tuple[Masks, Masks, Masks, Masks, Masks]:
        """Beside one cutting of the target's slots, of all: atoms that stand alike, its own where the other has none,
        its own and the other's where they differ, and whether any two such differ in size."""
        packed = np.zeros(len(self), dtype=np.int64)
        for v, at in enumerate(slots):
            if at and v in self.at:
                packed |= self._beside(v, at[0])
        if near is not None:
            packed = packed[near]
        n = len(self.costs.size)
        one = (1 << n) - 1
        return packed & one, packed >> n & one, packed >> 2 * n & one, packed >> 3 * n & one, packed >> 4 * n

    def prices_from(self, state: State, near: Masks) -> tuple[Floats, NDArray[np.bool_]]:
        """What the cheapest step from a state to each of some states (by index) costs; infinite where none leads. And
        which of these may be too low."""
        costs = self.costs
        same, left, mine, theirs, odd = self._compared(state[0], near)
        there, pending = self.cut[near], self.pending[near]
        came = there & ~same & ~theirs
        aside = sum(1 << a for v, at in enumerate(state[0]) if v not in self.at for a in at)
        swaps: list[Masks] = []
        every = np.arange(len(near))
        first = second = np.zeros(len(near), dtype=np.int64)
        if aside:
            aside_there = self.aside[near]
            out, into = aside & ~aside_there, aside_there & ~aside
            left, came = left | out, came & ~(aside_there & aside)
            at = np.nonzero((out != 0) & (into != 0))[0]
            if len(at):
                pairs = [_paired(out[at], into[at], costs.size, highest=False)]
                swaps = [at]
                uneven = np.nonzero((pairs[0][0] != out[at]) | (pairs[0][1] != into[at]))[0]
                if len(uneven):
                    swaps.append(at[uneven])
                    pairs.append(_paired(out[swaps[1]], into[swaps[1]], costs.size, highest=True))
                every = np.concatenate([every, *swaps])
                first, second = (np.concatenate([np.zeros_like(near), *(p[i] for p in pairs)]) for i in (0, 1))
                left, came = left[every] & ~first, came[every] & ~second
                mine, theirs, odd = mine[every] | first, theirs[every] | second, odd[every]
                there, pending = there[every], pending[every]
        cut = costs.mask_of(state[0])

        def pairs_forced(at: Masks, slower: int, cut: int) -> NDArray[np.bool_] | None:
            return self._forced(state[0], near[every[at]], first[at], second[at], slower, cut)

        steps = Steps(left, came, mine, theirs, odd, cut, state[1], there, pending, costs.block(state), pairs_forced)
        prices, rough = self.prices(steps)
        start = len(near)
        found, doubt = prices[:start], rough[:start]
        for at in swaps:
            found[at] = np.minimum(found[at], prices[start : start + len(at)])
            doubt[at] |= rough[start : start + len(at)]
            start += len(at)
        return found, doubt

    def _forced(
        self, slots: Slots, after: Masks, first: Masks, second: Masks, slower: int, cut: int
    ) -> NDArray[np.bool_] | None:
        """As ``cost.forced``, for steps to some states (by index) that pair two masks of atoms aside."""
        n = len(self.costs.size)
        if n * n > 62:
            return None
        keys = np.zeros(len(after), dtype=np.int64)
        for v, at in enumerate(slots):
            if at and v in self.at:
                keys |= (self._beside(v, at[0])[after] >> 3 * n & (1 << n) - 1) << n * at[0]
        known = self.swaps.setdefault((slower, cut), {})
        found = []
        for key in zip(keys.tolist(), first.tolist(), second.tolist(), strict=True):
            answer = known.get(key)
            if answer is None:
                swapped = [(a, q) for a in range(n) for q in bits(key[0] >> n * a & (1 << n) - 1)]
                for size in set(self.costs.size):
                    out, into = ([a for a in bits(m) if self.costs.size[a] == size] for m in key[1:])
                    swapped += zip(out, into, strict=True)
                answer = known[key] = forced(swapped, slower, cut)
            found.append(answer)
        return np.array(found, dtype=np.bool_)

    def prices_to(self, state: State) -> Floats:
        """What one step from each of all states to this one costs, where what comes aside takes fresh slots; infinite
        where that is in doubt."""
        same, came, mine, theirs, odd = self._compared(state[0], None)
        aside = sum(1 << a for v, at in enumerate(state[0]) if v not in self.at for a in at)
        left = self.cut & ~same & ~theirs & ~(self.aside & aside)
        came = came | aside & ~self.aside
        cut = self.costs.mask_of(state[0])
        steps = Steps(left, came, theirs, mine, odd, self.cut, self.pending, cut, state[1], self.block)
        found, rough = self.prices(steps)
        return np.where(rough, np.inf, found)

    def goals(self) -> NDArray[np.bool_]:
        """As ``moves.is_goal``: from which states does a slice or a mask lead to the target?"""
        question = self.costs.question
        slots, due = question.target
        same, *_, odd = self._compared(slots, None)
        wanted = self.costs.mask_of(slots) & ~same
        found: NDArray[np.bool_] = (self.pending & ~question.kept == 0) & (odd == 0)
        found &= (self.cut & ~same & ~due == 0) & (wanted & self.cut == 0)
        return found

    def bounds(self) -> Floats:
        """What the way from each state to the target costs at least: as ``bounds.bound``, or less."""
        costs, product = self.costs, products(self.costs.size)
        target, question = costs.question.target, costs.question
        one = (1 << len(costs.size)) - 1
        same, alone, _, theirs, odd = self._compared(target[0], None)
        left = self.cut & ~same & ~theirs
        reduced, kept = self.pending & ~question.kept, self.pending & question.kept
        cut = costs.mask_of(target[0])
        moved = self.cut & cut & ~same
        ends = moved & alone
        # Of atoms that go round in rings one is forced by the others; here no more than one is counted.
        astray = np.where(ends != 0, ends, moved & -moved)
        swaps = [
            (a, self._beside(v, a) >> 3 * len(costs.size) & one) for v, at in enumerate(target[0]) for a in at
        ]  # fmt: skip
        total, ranks = float(costs.numel * costs.element), float(costs.product(costs.all_atoms))
        time: Floats = np.zeros(len(self))
        crossed: Floats = np.zeros(len(self))
        known: Floats = np.zeros(len(self))
        latency: int | None = None
        for c in costs.order:
            apart = costs.through[c] & ~target[1]
            islands = float(costs.product(apart))
            members, copies = ranks / islands, islands / float(costs.product(cut & apart))
            needed = total / float(costs.product(cut & apart))
            parts, stays = product[reduced & apart], product[kept & costs.through[c]]
            crowded: Masks = np.zeros(len(self), dtype=np.int64)
            hears = parts * product[left & apart]
            for q, here in swaps:
                if apart >> q & 1:
                    crowded = crowded | here & apart
                else:
                    hears = hears * product[here & apart]
            conflict = crowded != 0
            merging = total * (stays * (parts - 1) + copies - 1) + (total - total / product[astray & apart])
            moving = np.where(conflict, needed, needed - needed / hears) / members
            lacking = needed - needed / (hears * product[crowded])
            staying = (lacking + lacking * (stays - 1) / copies) / members
            moving = np.where(stays > 1, np.maximum(moving, staying), moving)
            merging = np.maximum(merging / ranks, needed / members)
            crossed = np.maximum(crossed, np.where(parts > 1, merging, moving))
            time = time + crossed * (costs.rate[c] - (costs.rate[c + 1] if c + 1 < len(costs.rate) else 0))
            lowest = costs.latency[c] if latency is None else min(latency, costs.latency[c])
            if latency is not None:
                time = time + (latency - lowest) * UNIT * known
            latency = lowest
            known = np.maximum(known, rounds(hears + conflict, members))
        time = time + (latency or 0) * UNIT * known
        if odd.any():
            missing = np.maximum(total / product[cut] - total / product[self.cut], 0.0)
            time, crossed = np.where(odd, missing * costs.rate[-1], time), np.where(odd, missing, crossed)
        found = (crossed if costs.by_bytes else time) * (1 - SLACK)
        # The exact bound is rounded down to whole bytes.
        return np.maximum(found - (1 if costs.by_bytes else sum(costs.rate)), 0.0)


@lru_cache(maxsize=256)
def _grid(places: Places) -> tuple[NDArray[np.int8], Masks, Masks, Masks, dict[int, Masks]]:
    """All ways for atoms to be in their places: where each is, masks of those that cut, owe and stand aside, and the
    atom in each slot of the target."""
    where = np.zeros((len(places), 1), dtype=np.int8)
    at: dict[int, Masks] = {}
    taken = np.zeros(1, dtype=np.int64)
    for a, open_to in enumerate(places):
        rows, columns = [], []
        for v in open_to:
            left = np.nonzero(taken >> v & 1 == 0)[0] if v >= 0 else np.arange(len(taken))
            rows.append(left)
            columns.append(np.full(len(left), v, dtype=np.int8))
        index, column = np.concatenate(rows), np.concatenate(columns)
        where, taken = where[:, index], taken[index]
        where[a] = column
        taken = taken | np.where(column >= 0, np.int64(1) << np.maximum(column, 0).astype(np.int64), 0)
    one = np.int64(1) << np.arange(len(places), dtype=np.int64)[:, None]
    cut = (one * ((where >= 0) | (where == ASIDE))).sum(axis=0)
    pending: Masks = (one * (where == OWED)).sum(axis=0)
    aside: Masks = (one * (where == ASIDE)).sum(axis=0)
    for v in sorted({v for open_to in places for v in open_to if v >= 0}):
        at[v] = (one * (where == v)).sum(axis=0)
    return where, cut, pending, aside, at


def _paired(out: Masks, into: Masks, sizes: tuple[int, ...], *, highest: bool) -> tuple[Masks, Masks]:
    """Of atoms that leave and come, as many as can be paired with one of the same size, lowest or highest first."""
    if len(sizes) <= TABLED:
        leaving, coming = _pairs(sizes, highest)
        index = out << len(sizes) | into
        return leaving[index], coming[index]
    return _pair(out, into, sizes, highest)


@lru_cache(maxsize=64)
def _pairs(sizes: tuple[int, ...], highest: bool) -> tuple[Masks, Masks]:
    masks = np.arange(1 << 2 * len(sizes), dtype=np.int64)
    return _pair(masks >> len(sizes), masks & (1 << len(sizes)) - 1, sizes, highest)


def _pair(out: Masks, into: Masks, sizes: tuple[int, ...], highest: bool) -> tuple[Masks, Masks]:
    leaving, coming = np.zeros_like(out), np.zeros_like(into)
    order = range(len(sizes))[:: -1 if highest else 1]
    for size in sorted(set(sizes)):
        alike = [a for a in order if sizes[a] == size]
        outs, ins = ((m >> np.array(alike)[:, None] & 1).sum(axis=0) for m in (out, into))
        few = np.minimum(outs, ins)
        for mask, found in ((out, leaving), (into, coming)):
            taken = np.zeros_like(out)
            for a in alike:
                bit = (mask >> a & 1) * (taken < few)
                found |= bit << a
                taken += bit
    return leaving, coming
