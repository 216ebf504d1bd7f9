"""Where the atoms of a question may be on the way: cutting slots of the target, whole, pending, or aside.

An atom stands *aside* in a slot that the target leaves empty, be it the one that it comes from. Room for that is cut
off from what is left of the dims.
"""

from __future__ import annotations

from math import perm, prod

from attrs import evolve

from shardlang.plan.cost import Costs
from shardlang.plan.problem import Problem

WHOLE, OWED, ASIDE = -1, -2, -3
"""Where an atom is that cuts no slot of the target."""
Places = tuple[tuple[int, ...], ...]
"""For each atom where it may be: slots of the target, or one of the three above."""


def roomy(asked: Problem) -> Problem:
    """The same with a slot for each atom to stand aside in, cut off from what is left of the dims, roomiest first."""
    question = asked.question
    extents, of_dim = list(question.extents), [list(slots) for slots in asked.slots_of_dim]
    taken = {v for end in (question.source, question.target) for v, at in enumerate(end[0]) if at}
    for size in question.sizes:
        rooms = [(extents[v], -i, v) for i, slots in enumerate(of_dim) for v in slots if v not in taken]
        room = max((r for r in rooms if r[0] % size == 0 and r[0] > size), default=None)
        if room is not None:
            _, i, v = room
            extents[v] //= size
            taken.add(len(extents))
            of_dim[-i].insert(of_dim[-i].index(v), len(extents))
            extents.append(size)
    more = ((),) * (len(extents) - len(question.extents))
    source, target = ((end[0] + more, end[1]) for end in (question.source, question.target))
    larger = evolve(question, extents=tuple(extents), source=source, target=target)
    return Problem(larger, asked.atoms, tuple(map(tuple, of_dim)))


def single(asked: Problem) -> bool:
    """Does every slot have one atom at most, of its own size, in source and target?"""
    q = asked.question
    return all(
        len(at) <= 1 and prod(q.sizes[a] for a in at) in (1, n)
        for end in (q.source, q.target)
        for at, n in zip(end[0], q.extents, strict=True)
    )


def places(costs: Costs, *, foreign: bool) -> Places:
    """Where each atom may be; ``foreign``: in the target's slots for other atoms too."""
    question, sizes = costs.question, costs.size
    target = question.target[0]
    open_slots = rooms(costs)
    before = [a for at, goal in zip(question.source[0], target, strict=True) if not goal for a in at]
    found: list[tuple[int, ...]] = []
    for a, size in enumerate(sizes):
        # Where room is short, those that stand aside in the source have it.
        rank = sum(sizes[b] == size and (b not in before, b) < (a not in before, a) for b in range(len(sizes)))
        at = [WHOLE] + [OWED] * (question.source[1] >> a & 1) + [ASIDE] * (rank < len(open_slots.get(size, ())))
        for v, (goal, start) in enumerate(zip(target, question.source[0], strict=True)):
            if goal and (a in goal or a in start or (foreign and question.extents[v] == size)):
                at.append(v)
        found.append(tuple(at))
    return tuple(found)


def count(places: Places) -> int:
    """How many ways there are, at most, for atoms to be in their places, one in a slot."""
    slots = len({v for open_to in places for v in open_to if v >= 0})
    # By how many atoms are in none of the slots: over all choices of these, the product of their other places.
    ways = [1]
    for open_to in places:
        others = sum(v < 0 for v in open_to)
        ways = [(ways[k] if k < len(ways) else 0) + (others * ways[k - 1] if k else 0) for k in range(len(ways) + 1)]
    total, atoms = 0, len(places)
    for k, n in enumerate(ways):
        if atoms - k <= slots:
            total += n * perm(slots, atoms - k)
    return min(total, prod(map(len, places)))


def rooms(costs: Costs) -> dict[int, list[int]]:
    """The slots that the target leaves empty, by extent."""
    found: dict[int, list[int]] = {}
    for v, (extent, goal) in enumerate(zip(costs.extents, costs.question.target[0], strict=True)):
        if not goal:
            found.setdefault(extent, []).append(v)
    return found
