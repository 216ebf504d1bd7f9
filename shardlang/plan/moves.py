"""Where a step may lead: the states worth asking ``cost.between`` about, from a state on the way to a target."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, zip_longest

from shardlang.plan.cost import Costs
from shardlang.plan.problem import Slots, State

SMALL = 3
"""Up to this many atoms every subset and order is tried."""


def is_goal(costs: Costs, x: State) -> bool:
    """Is the target only a slice or a mask away (which are free)?

    Where the target's atoms differ from the state's, the state's become pending and the target's were whole.
    """
    slots, due = costs.question.target
    if x[1] & ~costs.question.kept:
        return False
    cut = costs.mask_of(x[0])
    for have, want in zip(x[0], slots, strict=True):
        if have == want:
            continue
        for p, q in zip_longest(have, want, fillvalue=-1):
            if p == q:
                continue
            if (p >= 0 and not due >> p & 1) or (q >= 0 and cut >> q & 1):
                return False
            if p >= 0 and q >= 0 and costs.size[p] != costs.size[q]:
                return False
    return True


def goals(costs: Costs) -> list[State]:
    """The states from which a mask leads to the target: its pending atoms still pending, whole, or cutting any slot."""
    slots, due = costs.question.target
    stands = {a: v for v, at in enumerate(costs.question.source[0]) for a in at}
    found: list[State] = [(slots, 0)]
    for a in range(len(costs.size)):
        if not due >> a & 1:
            continue
        more: list[State] = []
        for at, pending in found:
            v = stands.get(a)
            if v is not None and len(at[v]) == 1 and costs.size[at[v][0]] == costs.size[a]:
                # Where it cuts, what is to cut there stays whole.
                more.append(((*at[:v], (a,), *at[v + 1 :]), pending))
            if costs.question.kept >> a & 1:
                more.append((at, pending | 1 << a))
            more.append((at, pending))
            if len(found) <= 64:
                more += [(put, pending) for put in places(costs, at, a)]
        found = more[:256]
    return [g for g in found if fits(costs, g)]


def fits(costs: Costs, x: State) -> bool:
    """Is a block of the state no larger than the cap allows?"""
    return costs.limit is None or costs.block(x) <= costs.limit


def whole(costs: Costs, x: State) -> int:
    """The atoms on which the value is whole."""
    return costs.all_atoms & ~costs.mask_of(x[0]) & ~x[1]


def places(costs: Costs, slots: Slots, atom: int) -> Iterator[Slots]:
    """The slots with one more atom at the end of one of them, wherever it divides."""
    for v in range(len(slots)):
        put = put_at(costs, slots, atom, v)
        if put is not None:
            yield put


def put_at(costs: Costs, slots: Slots, atom: int, slot: int) -> Slots | None:
    ways = costs.size[atom]
    for a in slots[slot]:
        ways *= costs.size[a]
    if costs.extents[slot] % ways:
        return None
    return (*slots[:slot], (*slots[slot], atom), *slots[slot + 1 :])


def homeward(costs: Costs, slots: Slots, atoms: int) -> tuple[Slots, int]:
    """Puts atoms where the target has them, as far as what stands there leads up to it; and which it could not put."""
    wanted = atoms & costs.homing
    if not wanted:
        return slots, atoms
    target = costs.question.target[0]
    changed = list(slots)
    for a, v, i in costs.homes:
        if wanted >> a & 1 and len(changed[v]) == i and changed[v] == target[v][:i]:
            changed[v] = target[v][: i + 1]
            atoms &= ~(1 << a)
    return tuple(changed), atoms


def filled(costs: Costs, slots: Slots, pattern: Slots, free: int) -> Iterator[Slots]:
    """Cuts the slots that a pattern cuts by atoms of the same sizes, so that blocks are the pattern's up to order.

    The pattern's own atoms come first where they are free, then others, from either end.
    """
    for others in (list(bits(free)), list(reversed(list(bits(free))))):
        left = free
        put: list[tuple[int, ...]] = list(slots)
        wanted = []
        for v, at in enumerate(pattern):
            for a in at[len(slots[v]) :]:
                if left >> a & 1:
                    left &= ~(1 << a)
                wanted.append((v, a))
        for v, a in wanted:
            if not free >> a & 1:
                same = [b for b in others if left >> b & 1 and costs.size[b] == costs.size[a]]
                if not same:
                    break
                a = same[0]
                left &= ~(1 << a)
            put[v] = (*put[v], a)
        else:
            if tuple(put) != slots:
                yield tuple(put)


def anywhere(costs: Costs, slots: Slots, atoms: int) -> Slots | None:
    """Puts atoms at home where that is open, else where they divide, last slots first; ``None`` if one fits nowhere."""
    slots, atoms = homeward(costs, slots, atoms)
    due = costs.question.target[1]
    for a in (*bits(atoms & due), *bits(atoms & ~due)):
        for v in reversed(range(len(slots))):
            put = put_at(costs, slots, a, v)
            if put is not None:
                slots = put
                break
        else:
            return None
    return slots


def bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def subsets(costs: Costs, mask: int) -> list[int]:
    """Groups of atoms worth moving at once: all subsets of a few, else all, those of each class, and single ones."""
    atoms = list(bits(mask))
    if len(atoms) <= SMALL:
        return [sum(1 << a for a in c) for k in range(len(atoms), 0, -1) for c in combinations(atoms, k)]
    found = [mask]
    found += [m for c in costs.order for m in (mask & costs.class_masks[c], mask & costs.through[c]) if m]
    return list(dict.fromkeys(found + [1 << a for a in atoms]))


def neighbours(costs: Costs, x: State) -> Iterator[State]:
    """States one named step away: what a slice, gather, all-to-all or reduction makes of this one."""
    slots, pending = x
    free = whole(costs, x)
    reduced = pending & ~costs.question.kept
    few = len(costs.size) <= SMALL
    put, _ = homeward(costs, slots, free)
    if put != slots:
        yield put, pending
    for put in filled(costs, slots, costs.question.target[0], free):
        yield put, pending
    for a in bits(free):
        if few:
            for put in places(costs, slots, a):
                yield put, pending
        elif reduced:
            one = anywhere(costs, slots, 1 << a)
            if one is not None:
                yield one, pending
    if pending:
        yield from _reductions(costs, x, reduced)
    if pending & costs.question.kept:
        yield from _reductions(costs, x, pending)
    movable = 0
    for at, want in zip(slots, costs.question.target[0], strict=True):
        same = 0
        while same < min(len(at), len(want)) and at[same] == want[same]:
            same += 1
        for a in at[0 if few else same :]:
            movable |= 1 << a
    for group in subsets(costs, movable):
        taken = _take(slots, group)
        if taken is None:
            continue
        yield taken, pending
        home, rest = homeward(costs, taken, group)
        if not rest:
            yield home, pending
        if few and not rest & (rest - 1) and rest:
            for put in places(costs, home, rest.bit_length() - 1):
                yield put, pending
        spread = anywhere(costs, taken, group)
        if spread is not None:
            yield spread, pending


def _reductions(costs: Costs, x: State, reduced: int) -> Iterator[State]:
    slots, pending = x
    few = len(costs.size) <= SMALL
    for group in subsets(costs, reduced):
        after = pending & ~group
        yield slots, after
        home, rest = homeward(costs, slots, group)
        if not rest:
            yield home, after
        spread = anywhere(costs, slots, group)
        if spread is not None:
            yield spread, after
        for v in range(len(slots)):
            one: Slots | None = slots
            for a in bits(group):
                one = put_at(costs, one, a, v) if one is not None else None
            if one is not None:
                yield one, after
        if few and group & (group - 1):
            placed: list[Slots] = [slots]
            for a in bits(group):
                placed = [put for at in placed for put in places(costs, at, a)]
            for put in placed:
                yield put, after


def _take(slots: Slots, group: int) -> Slots | None:
    """The slots without a group of atoms; ``None`` where one of them stands before an atom that stays."""
    taken = []
    for at in slots:
        n = len(at)
        while n and group >> at[n - 1] & 1:
            n -= 1
        if any(group >> a & 1 for a in at[:n]):
            return None
        taken.append(at[:n])
    return tuple(taken)
