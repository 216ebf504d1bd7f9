"""What any plan must cost from a state to the target: lower bounds that hold for every sequence of steps.

For each link class, take the ranks that agree on the atoms of that class and slower ones as one *island*. What an
island needs and does not hold crosses links of that class or slower, and some member receives at least its share. A
value that is reduced over ``p`` islands and needed on ``c`` takes ``p - 1`` merges and ``c - 1`` further receipts of
each element; one of ``k`` parts that stays pending and moves takes ``k - 1`` more, of its parts or to merge them. An
island that must hear of ``k`` islands, ``m`` ranks each, takes steps whose groups multiply up to that. The bounds of
the classes hold at once, so their sum by telescoping does too.
"""

from __future__ import annotations

from shardlang.plan.cost import Costs, log2
from shardlang.plan.problem import State


def bound(costs: Costs, x: State, target: State) -> tuple[int, int]:
    """Time (units of 2^-SHIFT ps) and bytes received by some rank, from ``x`` on; 0, 0 at the target."""
    size, product = costs.size, costs.product
    left = 0
    swapped: list[tuple[int, int]] = []
    aligned = True
    for a, b in zip(x[0], target[0], strict=True):
        if a == b:
            continue
        for i in range(max(len(a), len(b))):
            p = a[i] if i < len(a) else -1
            q = b[i] if i < len(b) else -1
            if p == q or p < 0:
                continue
            if q < 0:
                left |= 1 << p
            else:
                swapped.append((p, q))
                aligned = aligned and size[p] == size[q]
    late = target[1]
    reduced = x[1] & ~costs.question.kept
    cut = costs.mask_of(target[0])
    total = costs.numel * costs.element
    if not aligned:
        missing = max(total // product(cut) - total // product(costs.mask_of(x[0])), 0)
        return missing * costs.rate[-1], missing
    # Atoms that cut elsewhere in the target: few elements are where they belong. Of a ring of them one is forced.
    moved = astray(x, target) if reduced else 0
    ranks = product(costs.all_atoms)
    time = crossed = known = 0
    latency = None
    last = len(costs.latency) - 1
    for c in costs.order:
        apart = costs.through[c] & ~late
        islands = product(apart)
        members = ranks // islands
        parts = product(reduced & apart)
        needed = total // product(cut & apart)
        hears = parts * product(left & apart)
        copies = islands // product(cut & apart)
        stays = product(x[1] & costs.question.kept & costs.through[c])
        rare, conflict = 1, False
        for p, q in swapped:
            if apart >> p & 1:
                if apart >> q & 1:
                    conflict = True
                    rare *= size[p]
                else:
                    hears *= size[p]
        if parts > 1:
            twice = total - total // product(moved & apart) if moved & apart else 0
            least = max((total * (stays * (parts - 1) + copies - 1) + twice) // ranks, needed // members)
            hears += conflict
        else:
            least = (needed if conflict else needed - needed // hears) // members
            if stays > 1:
                lacking = needed - needed // (hears * rare)
                least = max(least, (lacking + lacking * (stays - 1) // copies) // members)
            hears += conflict
        crossed = max(crossed, least)
        time += crossed * (costs.rate[c] - (costs.rate[c + 1] if c < last else 0))
        lowest = costs.latency[c] if latency is None else min(latency, costs.latency[c])
        if latency is not None:
            time += (latency - lowest) * known
        latency = lowest
        known = max(known, rounds(hears, members))
    return time + (latency or 0) * known, crossed


def astray(x: State, target: State) -> int:
    """Atoms that cut another digit in the target, of those that go round in rings all but one."""
    home = {a: (v, i) for v, at in enumerate(target[0]) for i, a in enumerate(at)}
    place = {a: (v, i) for v, at in enumerate(x[0]) for i, a in enumerate(at)}
    there = {at: a for a, at in place.items()}
    moved = {a for a, at in place.items() if home.get(a, at) != at}
    found = sum(1 << a for a in moved)
    while moved:
        first = a = moved.pop()
        while (a := there.get(home[a], -1)) in moved:
            moved.discard(a)
        if a == first:
            found &= ~(1 << first)
    return found


def rounds(hears: int, members: int) -> int:
    """The least sum of log2 of groups with which ``members`` ranks together hear of ``hears`` islands."""
    if hears <= 1:
        return 0
    at_once = log2(1 + -(-(hears - 1) // members))
    if members == 1:
        return at_once
    rounds, reach = 1, 1 + members
    while reach < hears:
        rounds, reach = rounds + 1, reach * (1 + members)
    return min(at_once, max(2, rounds) * log2(2))
