"""States where an exchange may well end: near the target, halfway, or where the crossing of slow links is balanced."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice, product

from shardlang.plan.cost import Costs
from shardlang.plan.moves import anywhere, bits, filled, fits, goals, places, put_at, whole
from shardlang.plan.problem import Slots, State


def stations(costs: Costs) -> list[State]:
    """States near the target, or between slow and fast traffic, where an exchange may well end."""
    question = costs.question
    found = goals(costs)
    base = list(found[:16])
    for c in costs.order:
        fast = costs.all_atoms & ~costs.through[c] if c < len(costs.order) - 1 else costs.all_atoms
        for goal in base:
            more = anywhere(costs, goal[0], whole(costs, goal) & fast)
            if more is not None:
                found.append((more, goal[1]))
            for a in bits(whole(costs, goal) & fast):
                found += [(put, goal[1]) for put in places(costs, goal[0], a)][:4]
    if len(costs.order) > 1:
        for c in range(len(costs.order) - 1):
            fast = costs.all_atoms & ~costs.through[c]
            for goal in base[:4]:
                found += _balanced(costs, question.source, goal, fast)
    slots, owed = question.source
    for goal in base[:8]:
        found += [(put, owed) for put in filled(costs, slots, goal[0], whole(costs, question.source))]
        bare = [goal[0]]
        for c in range(len(costs.order) - 1):
            slow = costs.through[c]
            bare.append(tuple(tuple(a for a in at if slow >> a & 1) for at in goal[0]))
        for kept in bare:
            free = whole(costs, (kept, goal[1]))
            found += [(put, goal[1]) for put in filled(costs, kept, slots, free)]
    found += halfway(costs)
    return [s for s in dict.fromkeys(found) if fits(costs, s)]


def _balanced(costs: Costs, source: State, goal: State, fast: int) -> Iterator[State]:
    """Both ends with their fast atoms placed alike, so that a crossing of the slow links is shared evenly."""
    for pattern in (source[0], goal[0], None):
        for end in (source, goal):
            slots = tuple(tuple(a for a in at if not fast >> a & 1) for at in end[0])
            rest = fast & ~end[1]
            if pattern is not None:
                for v, at in enumerate(pattern):
                    for a in at:
                        if rest >> a & 1:
                            put = put_at(costs, slots, a, v)
                            if put is not None:
                                slots, rest = put, rest & ~(1 << a)
            for a in bits(rest):
                for v in reversed(range(len(slots))):
                    put = put_at(costs, slots, a, v)
                    if put is not None:
                        slots = put
                        break
            yield slots, end[1]


def halfway(costs: Costs) -> list[State]:
    """States in which the atoms of each link class, by kind, stand as in the source, as in the target, or aside.

    Kinds are: atoms that move to another place, that come to be whole, that are reduced, and that come to cut.
    """
    source, target = costs.question.source, costs.question.target
    kept = costs.question.kept
    before, after = _homes(source[0]), _homes(target[0])
    choices: list[list[dict[int, str]]] = []
    for c in costs.order:
        atoms = list(bits(costs.class_masks[c]))
        stay = [a for a in atoms if kept >> a & 1]
        owed = [a for a in atoms if (source[1] & ~kept) >> a & 1]
        moved = [a for a in atoms if a in before and a in after and before[a] != after[a]]
        gone = [a for a in atoms if a in before and a not in after]
        still = [a for a in atoms if a in before and before[a] == after.get(a)]
        choices.append([dict.fromkeys(still, "source")])
        for group, told in (
            (stay, "source aside"),
            (owed, "source target aside"),
            (moved, "source target aside"),
            (gone, "source target"),
        ):
            if group:
                choices.append([dict.fromkeys(group, way) for way in told.split()])
    fresh = [a for a in bits(whole(costs, source)) if a in after]
    idle = [a for a in bits(whole(costs, source)) if a not in after]
    choices.append([dict.fromkeys(fresh, way) for way in (("source", "target") if fresh else ("source",))])
    choices.append([dict.fromkeys(idle, way) for way in (("source", "aside") if idle else ("source",))])
    found: dict[State, None] = {}
    for picked in islice(product(*choices), 512):
        ways = {a: way for group in picked for a, way in group.items()}
        state = _stand(costs, ways, before, after)
        if state is not None and fits(costs, state):
            found[state] = None
    return list(found)


def _homes(slots: Slots) -> dict[int, tuple[int, int]]:
    return {a: (v, i) for v, at in enumerate(slots) for i, a in enumerate(at)}


def _stand(
    costs: Costs, ways: dict[int, str], before: dict[int, tuple[int, int]], after: dict[int, tuple[int, int]]
) -> State | None:
    """The state in which each atom stands as it is told; ``None`` where two want one place."""
    places: dict[tuple[int, int], int] = {}
    aside: list[int] = []
    pending = 0
    for a, way in ways.items():
        if way == "aside":
            aside.append(a)
        elif way == "source" and costs.question.source[1] >> a & 1:
            pending |= 1 << a
        else:
            place = (before if way == "source" else after).get(a)
            if place is None:
                continue
            if place in places:
                return None
            places[place] = a
    slots: list[tuple[int, ...]] = [()] * len(costs.extents)
    for v, i in sorted(places):
        if i != len(slots[v]):
            return None
        slots[v] = (*slots[v], places[v, i])
        if costs.extents[v] % math.prod(costs.size[a] for a in slots[v]):
            return None
    put: Slots = tuple(slots)
    # What is sliced comes first, being free to; what becomes pending at the end may stay, and the rest goes first.
    due, idle = costs.question.target[1], whole(costs, costs.question.source)
    for a in sorted(aside, key=lambda a: (not idle >> a & 1, not due >> a & 1, a)):
        for v in reversed(range(len(slots))):
            more = put_at(costs, put, a, v)
            if more is not None:
                put = more
                break
        else:
            return None
    return put, pending
