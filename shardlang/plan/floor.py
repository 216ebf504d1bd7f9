"""What any plan of a question costs at least: ``bounds`` from the source on, once, and as tight as can be said at once.

A plan goes one of several *ways*: atoms that are pending at both ends stay so or are reduced and masked again; where
such an atom cuts what another is to cut, either makes room; and it may take a place that another is to leave. On each
way it holds, for every link class, with the ranks that agree on atoms of that class and slower ones as an *island*:

- what an island lacks crosses those links, a share for each member (``_crossed``);
- an island's members none of which holds what they need get it over those links, or from those few members that have
  it or pass it on over faster ones; and what a rank's block grows to after the last crossing, it receives
  (``_trades``);
- groups multiply up to what a rank, and an island, must hear of; a rank hears of an island more, after one step over
  the slow links, for each member that it then hears from (``_latency``);
- a value that is reduced over ``p`` parts by ranks that hear of ``p * g`` only is received ``1 + (p - 2) / (p * g)``
  times, since what grows by ``g`` after that pays for it in groups (an all-reduce grows by ``p`` for nothing).

The least over those is sought at the corners of what they leave open.
"""

from __future__ import annotations

import math
from itertools import product

from attrs import frozen

from shardlang.plan.bounds import astray, bound, rounds
from shardlang.plan.cost import Costs, log2
from shardlang.plan.moves import bits
from shardlang.plan.problem import SHIFT

ONE = 1 << SHIFT
"""log2 of two."""
WAYS = 64
"""Of more ways than these only the common bound is said."""
TRUST = 1e-12
"""What sums of floats may be wrong by, relatively."""


@frozen
class _Way:
    """What becomes of each atom: masks, and the pairs of which one comes where the other has cut."""

    swapped: tuple[tuple[int, int], ...]
    left: int
    """Cut what the target leaves whole."""
    reduced: int
    kept: int
    """Pending all along."""
    cut: int
    """Cut in the end, before a mask makes some of them pending."""
    filling: int
    """May take places of those that left."""
    astray: int
    moving: int
    """Leave the place that they cut."""


@frozen
class _Class:
    """What holds for the islands of one link class."""

    crossed: int
    """Bytes that some rank receives over links of this class or slower ones."""
    heard: int
    """The least log2 of the groups on those."""
    islands: int
    """Of how many of them some rank hears, its own included."""
    reducing: int
    """log2 of what is reduced on this class alone."""
    spread: int
    """One of so many members holds what all need; 1 where this is not so."""
    trades: tuple[tuple[int, int, int], ...]
    """(a, b, e): ``a`` times what crosses these links and ``b`` times all that is received are ``e`` or more."""


def floor(costs: Costs) -> tuple[int, int]:
    """Time (units of 2^-SHIFT ps) and bytes received by some rank, of any plan of the question."""
    question = costs.question
    least = bound(costs, question.source, question.target)
    ways = _ways(costs)
    if ways is None:
        return least
    found = [_least(costs, way) for way in ways]
    return max(least[0], min(t for t, _ in found)), max(least[1], min(b for _, b in found))


def _ways(costs: Costs) -> list[_Way] | None:
    """The ways to go; ``None`` where they are too many, or digits of different sizes meet."""
    source, target = costs.question.source, costs.question.target
    left, swapped = 0, []
    for x, y in zip(source[0], target[0], strict=True):
        for i, p in enumerate(x):
            if i >= len(y):
                left |= 1 << p
            elif p != y[i]:
                if costs.size[p] != costs.size[y[i]]:
                    return None
                swapped.append((p, y[i]))
    late, kept = target[1], source[1] & costs.question.kept
    leaving = left & ~late
    moved = astray(source, target) if source[1] else 0
    forced = tuple(pair for pair in swapped if not late >> pair[0] & 1)
    alike: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    for a in bits(kept):
        alike.setdefault((costs.classes[a], costs.size[a]), []).append((a,))
    for p, q in swapped:
        if late >> p & 1:
            stands = (leaving >> q & 1, moved >> q & 1, costs.classes[p], costs.classes[q], costs.size[p])
            alike.setdefault(stands, []).append((p, q))
    if math.prod(len(some) + 1 for some in alike.values()) > WAYS:
        return None
    found = []
    for counts in product(*(range(len(some) + 1) for some in alike.values())):
        again = whole = filling = 0
        pairs = forced
        for some, n in zip(alike.values(), counts, strict=True):
            for i, atoms in enumerate(some):
                if len(atoms) == 1:
                    again |= (i < n) << atoms[0]
                elif i < n:
                    filling |= 1 << atoms[0]
                    whole |= 1 << atoms[1]
                else:
                    pairs = (*pairs, (atoms[0], atoms[1]))
        stays = kept & ~again
        cut = costs.mask_of(target[0]) & ~whole | late & ~stays
        filling = late & ~stays & ~left & ~filling
        for fills in {0, filling} if leaving else {0}:
            moving = leaving | sum(1 << p for p, _ in pairs)
            found.append(_Way(pairs, leaving, source[1] & ~kept | again, stays, cut, fills, moved & ~whole, moving))
    return found


def _least(costs: Costs, way: _Way) -> tuple[int, int]:
    classes = []
    crossed = 0
    for c in costs.order:
        one = _class(costs, way, c, crossed)
        crossed = one.crossed
        classes.append(one)
    received = [one.crossed for one in classes]
    heard = [one.heard for one in classes]
    least = _price(costs, received) + _latency(costs, classes, heard)
    least = max(least, _grown(costs, way, classes))
    for c in costs.order[:-1]:
        least = max(least, _traded(costs, classes, c))
    return least, crossed


def _class(costs: Costs, way: _Way, c: int, crossed: int) -> _Class:
    size, through = costs.product, costs.through[c]
    fast = costs.all_atoms & ~through & ~way.kept
    apart = through & ~way.kept
    members, islands = size(fast), size(apart)
    total = costs.numel * costs.element
    needed, block = total // size(way.cut & through), total // size(way.cut)
    parts, leaving = size(way.reduced & through), size(way.left & through)
    conflict = strange = False
    """Does some island, some rank, hold nothing that it needs?"""
    came = spread = fresh = 1
    whole = False
    for p, q in way.swapped:
        if through >> p & 1:
            strange = True
            if through >> q & 1:
                conflict = True
            else:
                came *= costs.size[p]
                fresh *= costs.size[q]
        elif through >> q & 1:
            spread *= costs.size[p]
            whole = whole or not way.cut >> p & 1
    last = c == costs.order[-1]
    if parts == 1:
        nothing = conflict or (last and way.filling != 0 and leaving > 1)
        lacking = needed if nothing else needed - needed // (leaving * came)
        here = lacking // members
    else:
        copies = size(apart & ~way.cut)
        moved = total - total // size(way.astray & through) if way.astray & through else 0
        here = max((total * (parts + copies - 2) + moved) // (islands * members), needed // members)
        if conflict:
            # Reduced where little is held, and all of it comes from afar as well.
            here = max(here, (needed + needed * (2 * parts - 2) // (parts * copies)) // members)
    filled, taken = size(way.filling & through), size(way.filling)
    hears = parts * max(1, -(-leaving // filled)) * came + (conflict or (leaving > 1 < filled))
    ranks = parts * max(1, -(-leaving // taken)) + (strange or (leaving > 1 < taken))
    trades = []
    if not last:
        for some, share in (
            (spread, needed if whole else needed - needed // spread),
            (fresh, needed - needed // fresh),
        ):
            if some > 1:
                few = members // some
                trades.append((members - 2 * few, few, share))
        moving = way.moving & fast
        if parts == 1 and moving:
            # What is at home in the island goes from those that hold it to those that need it, or comes from afar.
            near = needed - lacking
            goes = near if moving & ~way.cut else near - near // size(moving)
            trades += [(members - members // n, members // n, lacking + goes) for n in {spread, fresh}]
        if leaving * parts > 1 and not strange:
            trades.append((1, leaving * parts - 1, (leaving * parts - 1) * block))
    return _Class(
        max(crossed, here),
        rounds(hears, members),
        ranks,
        log2(size(way.reduced & costs.class_masks[c])),
        spread,
        tuple(trades),
    )


def _price(costs: Costs, received: list[int]) -> int:
    rates = (*costs.rate, 0)
    return sum(n * (rates[c] - rates[c + 1]) for c, n in enumerate(received))


def _groups(costs: Costs, classes: list[_Class], heard: list[int]) -> tuple[int, list[int]]:
    """What groups cost that come to ``heard``, on each class and slower ones; and what they then come to."""
    cost = before = 0
    least: int | None = None
    reached = []
    for c, one in enumerate(classes):
        least = costs.latency[c] if least is None else min(least, costs.latency[c])
        so_far = max(before + one.reducing, heard[c])
        cost += least * (so_far - before)
        reached.append(so_far)
        before = so_far
    return cost, reached


def _latency(costs: Costs, classes: list[_Class], heard: list[int]) -> int:
    least, reached = _groups(costs, classes, heard)
    slowest = [min(costs.latency[: c + 1]) for c in costs.order]
    for c, one in enumerate(classes[:-1]):
        if one.spread > 1 and not reached[c]:
            # Those that hold it tell all others on fast links, or a slow one is crossed.
            near, far = list(heard), list(heard)
            near[-1] = max(near[-1], log2(one.spread))
            far[c] = ONE
            least = max(least, min(_groups(costs, classes, near)[0], _groups(costs, classes, far)[0]))
        if one.islands > 1:
            head = before = 0
            for k in range(c + 1):
                head += slowest[k] * (reached[k] - before)
                before = reached[k]
            best: int | None = None
            for group in range(max(2, math.ceil(2 ** (reached[c] / ONE) - 1e-9)), one.islands + 1):
                more = max(log2(group) - reached[c], 0) * slowest[c]
                if best is not None and more >= best:
                    break
                more += slowest[-1] * log2(-(-(one.islands - 1) // (group - 1)))
                best = more if best is None else min(best, more)
            least = max(least, head + (best or 0))
    return least


def _grown(costs: Costs, way: _Way, classes: list[_Class]) -> int:
    """The least over how much a block grows on the way, beyond what an all-reduce gives for nothing."""
    parts, again = costs.product(way.reduced), costs.product(way.reduced & ~way.cut)
    if parts == 1:
        return 0
    block = costs.numel * costs.element // costs.product(way.cut)
    copies = costs.product(costs.all_atoms & ~way.kept & ~way.cut)
    received, heard = [one.crossed for one in classes], [one.heard for one in classes]
    most, known = received[-1], heard[-1]
    strange = way.swapped or (way.filling and way.left)
    # Of all parts some are reduced first, ``late`` ones together with what must come from elsewhere.
    lates = {1}
    for a in bits(way.reduced):
        lates |= {n * costs.size[a] for n in lates}
    # Growth is by products of primes; where these are not all two it is told to a factor of two.
    finer = 1 if all(n & (n - 1) == 0 for n in costs.size) else 2
    growth = 1
    best: int | None = None
    while best is None or growth <= copies:
        size = growth * finer
        tries = []
        for late in lates:
            more = 2 * (parts - late) + (late - 1) * parts
            tries.append((block * more // (parts * size), log2(parts // late) + log2(1 + late * growth)))
        if not strange:
            tries.append((block * (parts - 2) // (again * size), log2(parts * growth)))
        for more, groups in tries:
            received[-1], heard[-1] = max(most, block + more), max(known, groups)
            cost = _price(costs, received) + _latency(costs, classes, heard)
            best = cost if best is None else min(best, cost)
        if all(block + more <= most for more, _ in tries):
            break
        growth *= 2
    return best or 0


def _traded(costs: Costs, classes: list[_Class], c: int) -> int:
    """The least over what crosses the links of a class, and what is received in all."""
    received, heard = [one.crossed for one in classes], [one.heard for one in classes]
    trades = [(a, b, e) for a, b, e in classes[c].trades if a * received[c] + b * received[-1] < e]
    if not trades:
        return 0
    corners = {float(n) for n in received[c:]}
    for i, (a, b, e) in enumerate(trades):
        corners.add(e / (a + b))
        if a:
            corners.add((e - b * received[-1]) / a)
        corners |= {(e * d - f * b) / (a * d - g * b) for g, d, f in trades[:i] if a * d != g * b}
    _, reached = _groups(costs, classes, heard)
    once = [*heard[:-1], max(heard[-1], reached[c] + ONE)]
    quiet, loud = _latency(costs, classes, heard), _latency(costs, classes, once)
    rates = (*costs.rate, 0)
    best = math.inf
    for n in corners:
        if n < received[c]:
            continue
        much = [float(m) if k < c else max(float(m), n) for k, m in enumerate(received)]
        much[-1] = max(much[-1], *((e - a * n) / b for a, b, e in trades))
        cost = sum(m * (rates[k] - rates[k + 1]) for k, m in enumerate(much))
        best = min(best, cost + (loud if much[-1] > n * (1 + 1e-9) else quiet))
    return int(best * (1 - TRUST))


__all__ = ["floor"]
