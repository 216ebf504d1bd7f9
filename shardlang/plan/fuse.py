"""Fewer atoms and slots: those that go together in both source and target are taken as one.

An axis of 64 ranks is six atoms of two; where both ends use it as a whole, one atom of 64 will do. Two atoms are
*linked* where, in both ends, the second directly follows the first, or neither cuts anything and both stand alike. Two
neighbouring slots are *joined* where each end fills them with linked atoms or not at all.
"""

from __future__ import annotations

import math
from itertools import pairwise

from attrs import evolve

from shardlang.plan.problem import Problem, State

Slots = tuple[tuple[int, ...], ...]
Made = tuple[tuple[int, ...], ...]
"""What each atom is made of, major to minor."""


def fused(asked: Problem, apart: frozenset[int] = frozenset()) -> tuple[Problem, Made]:
    """The problem in fewer atoms, and what each of them is made of, major to minor.

    Atoms ``apart`` are not taken together with what follows them.
    """
    question = asked.question
    ends = (question.source, question.target)
    links = _links(asked, apart)
    leaders = set(range(len(question.sizes))) - set(links.values())
    made: list[tuple[int, ...]] = []
    for a in sorted(leaders):
        run = [a]
        while run[-1] in links:
            run.append(links[run[-1]])
        made.append(tuple(run))
    name = {a: i for i, run in enumerate(made) for a in run}
    extents: list[int] = []
    slots: tuple[list[tuple[int, ...]], list[tuple[int, ...]]] = ([], [])
    slots_of_dim: list[tuple[int, ...]] = []
    for of_dim in asked.slots_of_dim:
        start = len(extents)
        for n, v in enumerate(of_dim):
            before = of_dim[n - 1] if n else None
            if before is not None and _joined(before, v, ends, links):
                extents[-1] *= question.extents[v]
            else:
                extents.append(question.extents[v])
                for end, state in zip(slots, ends, strict=True):
                    end.append(tuple(dict.fromkeys(name[a] for a in state[0][v])))
        slots_of_dim.append(tuple(range(start, len(extents))))

    def masked(mask: int) -> int:
        return sum(1 << i for i, run in enumerate(made) if mask >> run[0] & 1)

    source, target = ((tuple(end), masked(state[1])) for end, state in zip(slots, ends, strict=True))
    smaller = evolve(
        question,
        sizes=tuple(math.prod(question.sizes[a] for a in run) for run in made),
        classes=tuple(question.classes[run[0]] for run in made),
        extents=tuple(extents),
        source=source,
        target=target,
        kept=masked(question.kept),
    )
    return Problem(smaller, asked.atoms, tuple(slots_of_dim)), tuple(made)


def matched(asked: Problem, made: Made) -> frozenset[int]:
    """Where to part the largest atoms so that their parts fit where smaller ones are; nowhere if all are alike."""

    def size(run: tuple[int, ...]) -> int:
        return math.prod(asked.question.sizes[a] for a in run)

    sizes = sorted({size(run) for run in made})
    largest = sizes[-1]
    parts = [n for n in sizes[:-1] if largest % n == 0]
    fitting = next((n for n in parts if largest // n in parts), parts[0] if parts else None)
    found: set[int] = set()
    for run in made:
        if fitting is not None and size(run) == largest:
            found |= {run[i - 1] for i in range(1, len(run)) if size(run[:i]) == fitting}
    return frozenset(found)


def unfused(small: Problem, made: Made, asked: Problem) -> Problem:
    """The slots of a fused problem, to say its states in the atoms they are made of."""
    question = evolve(
        small.question,
        sizes=asked.question.sizes,
        classes=asked.question.classes,
        source=spread(small.question.source, made),
        target=spread(small.question.target, made),
        kept=asked.question.kept,
    )
    return Problem(question, asked.atoms, small.slots_of_dim)


def spread(state: State, made: Made) -> State:
    """A state in the atoms that fused ones are made of."""
    slots = tuple(tuple(a for i in at for a in made[i]) for at in state[0])
    return slots, sum(1 << a for i, run in enumerate(made) if state[1] >> i & 1 for a in run)


def _links(asked: Problem, apart: frozenset[int]) -> dict[int, int]:
    """Each atom that another directly follows everywhere -> that other."""
    question = asked.question
    ends = (question.source, question.target)
    after: dict[int, int] = {}
    where: tuple[dict[int, int], dict[int, int]] = ({}, {})
    for end, at in zip(ends, where, strict=True):
        for v, atoms in enumerate(end[0]):
            if len(atoms) == 1:
                at[atoms[0]] = v
            else:
                # Several atoms in one slot have no digits in common with the other end: they stay as they are.
                at.update(dict.fromkeys(atoms, -1))
    for of_dim in asked.slots_of_dim:
        for v, w in pairwise(of_dim):
            for end in ends:
                if len(end[0][v]) == len(end[0][w]) == 1:
                    after.setdefault(end[0][v][0], end[0][w][0])
    alike: dict[tuple[int, ...], int] = {}
    for a in range(len(question.sizes)):
        if a not in where[0] and a not in where[1]:
            stands = (*(end[1] >> a & 1 for end in ends), question.kept >> a & 1, question.classes[a])
            if stands in alike:
                after[alike[stands]] = a
            alike[stands] = a
    links = {a: b for a, b in after.items() if a not in apart and _together(a, b, asked, where)}
    while True:
        kept = {a: b for a, b in links.items() if _whole(a, b, asked, where, links)}
        if kept == links:
            return links
        links = kept


def _together(a: int, b: int, asked: Problem, where: tuple[dict[int, int], dict[int, int]]) -> bool:
    """Does ``b`` directly follow ``a``, or do both cut nothing and stand alike, in each end?"""
    question = asked.question
    if question.classes[a] != question.classes[b] or (question.kept >> a & 1) != (question.kept >> b & 1):
        return False
    for end, at in zip((question.source, question.target), where, strict=True):
        if (a in at) != (b in at) or (end[1] >> a & 1) != (end[1] >> b & 1):
            return False
        if a in at and (at[a] < 0 or at[b] != at[a] + 1 or not _neighbours(at[a], asked)):
            return False
    return True


def _neighbours(slot: int, asked: Problem) -> bool:
    """Is the next slot one of the same dim?"""
    return any(slot in of_dim and slot + 1 in of_dim for of_dim in asked.slots_of_dim)


def _whole(a: int, b: int, asked: Problem, where: tuple[dict[int, int], dict[int, int]], links: dict[int, int]) -> bool:
    ends = (asked.question.source, asked.question.target)
    return all(a not in at or _joined(at[a], at[b], ends, links) for at in where)


def _joined(v: int, w: int, ends: tuple[State, State], links: dict[int, int]) -> bool:
    """Are two neighbouring slots filled by linked atoms, or by none, in each end (and by some in one)?"""
    filled = False
    for end in ends:
        a, b = end[0][v], end[0][w]
        if not a and not b:
            continue
        if len(a) != 1 or len(b) != 1 or links.get(a[0]) != b[0]:
            return False
        filled = True
    return filled
