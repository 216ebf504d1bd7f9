"""What a step costs, on the search's states: the latency-bandwidth model of ``spec/cost.md``, in integers.

A step's time is the sum over link classes of ``latency * log2(group)`` and of the greater of bytes received and sent
over the link's bandwidth. A gather over several classes crosses the slowest first, while its block is small, a scatter
the slowest last. An exchange's group on a class is one more than the ranks that some rank hears from, or sends to,
over it. All formulas are closed: none loops over the ranks.
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import zip_longest

from shardlang.plan.problem import SHIFT, Question, Slots, State, primes
from shardlang.plan.steps import Kind

Edge = tuple[int, Kind, int, int, int]
"""Cost in the search's order, kind, bytes received and sent by the worst rank, time in units of 2^-SHIFT ps."""

_TIME_BITS, _BYTES_BITS, _TIE_BITS = 104, 64, 12
_COLLECTIVE = 16
_AWKWARD: dict[str, int] = {"permute": 1, "exchange": 2}
"""Between equal costs fewer collectives are better, then kinds that back ends know by name."""


@lru_cache(maxsize=1 << 14)
def log2(n: int) -> int:
    """log2 in units of 2^-SHIFT, additive over products."""
    return sum(round(math.log2(p) * (1 << SHIFT)) for p in primes(n))


class _Products(dict[int, int]):
    """The number of coordinates on the atoms of a mask, computed when first asked for."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        super().__init__({0: 1})
        self.sizes = sizes

    def __missing__(self, mask: int) -> int:
        low = mask & -mask
        found = self[mask] = self.sizes[low.bit_length() - 1] * self[mask ^ low]
        return found


class _Masks(dict[Slots, int]):
    """The atoms that cut any slot."""

    def __missing__(self, slots: Slots) -> int:
        mask = 0
        for atoms in slots:
            for a in atoms:
                mask |= 1 << a
        self[slots] = mask
        return mask


class Costs:
    """The tables of one question, and the prices of its steps."""

    __slots__ = (
        "all_atoms", "by_bytes", "class_masks", "classes", "element", "extents", "homes", "homing", "latency", "limit",
        "mask_of", "numel", "order", "product", "question", "rate", "size", "slower", "through",
    )  # fmt: skip

    def __init__(self, question: Question) -> None:
        self.question = question
        self.size = question.sizes
        self.classes = question.classes
        self.extents = question.extents
        self.numel = math.prod(question.extents)
        self.element = question.frozen
        self.limit = question.limit
        self.by_bytes = question.by_bytes
        # Latencies times a logarithm and rates times bytes are both in units of 2^-SHIFT ps.
        self.latency = tuple(latency for latency, _ in question.links)
        self.rate = tuple(rate for _, rate in question.links)
        self.order = range(len(question.links))
        self.class_masks = tuple(
            sum(1 << i for i, c in enumerate(question.classes) if c == link) for link in self.order
        )
        through, masks = 0, []
        for mask in self.class_masks:
            through |= mask
            masks.append(through)
        self.through = tuple(masks)
        """For each class the atoms of it and of slower ones."""
        self.slower = (0, *self.through[:-1])
        self.all_atoms = through
        target = question.target[0]
        self.homes = tuple((a, v, i) for v, at in enumerate(target) for i, a in enumerate(at))
        """(atom, slot, place in it) of every atom that cuts in the target."""
        self.homing = sum(1 << a for a, _, _ in self.homes)
        self.product = _Products(question.sizes).__getitem__
        """The number of coordinates on the atoms of a mask."""
        self.mask_of = _Masks().__getitem__
        """The atoms that cut any slot."""

    def block(self, state: State) -> int:
        """Bytes of a block."""
        return self.numel * self.element // self.product(self.mask_of(state[0]))

    def edge(self, kind: Kind, received: int, sent: int, time: int) -> Edge:
        tie = _COLLECTIVE + _AWKWARD.get(kind, 0)
        if self.by_bytes:
            cost = (((received << _TIME_BITS) + time) << _TIE_BITS) + tie
        else:
            cost = (((time << _BYTES_BITS) + received) << _TIE_BITS) + tie
        return cost, kind, received, sent, time

    def weigh(self, time: int, received: int) -> int:
        """A cost with no step in it, to bound others from below."""
        if self.by_bytes:
            return ((received << _TIME_BITS) + time) << _TIE_BITS
        return ((time << _BYTES_BITS) + received) << _TIE_BITS

    def at_most(self, cost: int, low: int) -> bool:
        """Is a cost no more than a bound, of bytes and then of time where the objective is bytes?"""
        if self.by_bytes:
            return cost >> _TIE_BITS <= low >> _TIE_BITS
        return self.primary(cost) <= self.primary(low)

    def secondary(self, cost: int) -> int:
        """The other part: bytes where the objective is time, units of time where it is bytes."""
        return cost >> _TIE_BITS & (1 << (_TIME_BITS if self.by_bytes else _BYTES_BITS)) - 1

    def primary(self, cost: int) -> int:
        """The part of a cost that the objective names: units of time, or bytes."""
        return cost >> (_TIE_BITS + (_TIME_BITS if self.by_bytes else _BYTES_BITS))


def between(costs: Costs, x: State, y: State) -> Edge | None:
    """The cheapest single step from one state to another; ``None`` where none leads there under the cap.

    There is none either between digits that do not match in size (2 and 3 crosswise): those have no closed formula.
    """
    if y[1] & ~x[1]:
        return None
    came, left = 0, 0
    swapped: list[tuple[int, int]] = []
    aligned = True
    size = costs.size
    for a, b in zip(x[0], y[0]):  # noqa: B905  # the innermost loop; both have a tuple a slot
        if a == b:
            continue
        if not a and len(b) == 1:
            came |= 1 << b[0]
        elif not b and len(a) == 1:
            left |= 1 << a[0]
        else:
            even = True
            for p, q in zip_longest(a, b, fillvalue=-1):
                if p == q:
                    continue
                if q < 0:
                    left |= 1 << p
                elif p < 0:
                    came |= 1 << q
                else:
                    swapped.append((p, q))
                    even = even and size[p] == size[q]
            aligned = aligned and (even or not a or not b)
    reduced = x[1] & ~y[1]
    if not swapped:
        if not left and not reduced:
            return _FREE
        if not reduced:
            if not came:
                return _gather(costs, costs.block(x), left)
            if came == left:
                return _all_to_all(costs, costs.block(x), left)
        elif not left:
            if came == reduced:
                return _scatter(costs, costs.block(x), reduced)
            if not came:
                return _all_reduce(costs, costs.block(x), reduced)
    if not aligned:
        return None
    if not left and not came and not reduced:
        return _permute(costs, costs.block(x), swapped)
    return _exchange(costs, costs.mask_of(x[0]) | x[1], costs.mask_of(y[0]) | y[1], x[1], y[1], came, left, swapped)


_FREE: Edge = (0, "slice", 0, 0, 0)


def _gather(costs: Costs, block: int, group: int) -> Edge:
    received = time = 0
    for c in costs.order:
        ways = costs.product(group & costs.class_masks[c])
        if ways > 1:
            arriving = block * (ways - 1)
            time += costs.latency[c] * log2(ways) + arriving * costs.rate[c]
            received += arriving
            block *= ways
    return costs.edge("all_gather", received, received, time)


def _split(costs: Costs, block: int, group: int, twice: int = 1) -> tuple[int, int]:
    """Bytes and time of cutting a block over a group, fast links first; ``twice`` 2 for the way back as well."""
    received = time = 0
    cut = 1
    for c in reversed(costs.order):
        ways = costs.product(group & costs.class_masks[c])
        if ways > 1:
            cut *= ways
            arriving = -(-twice * block * (ways - 1) // cut)
            time += costs.latency[c] * log2(ways) + arriving * costs.rate[c]
            received += arriving
    return received, time


def _scatter(costs: Costs, block: int, group: int) -> Edge:
    received, time = _split(costs, block, group)
    return costs.edge("reduce_scatter", received, received, time)


def _all_reduce(costs: Costs, block: int, group: int) -> Edge:
    received, time = _split(costs, block, group, 2)
    return costs.edge("all_reduce", received, received, time)


def _all_to_all(costs: Costs, block: int, group: int) -> Edge:
    received = time = 0
    cut = 1
    for c in costs.order:
        ways = costs.product(group & costs.class_masks[c])
        if ways > 1:
            cut *= ways
            arriving = block * (ways - 1) // cut
            time += costs.latency[c] * log2(ways) + arriving * costs.rate[c]
            received += arriving
    return costs.edge("all_to_all", received, received, time)


def _permute(costs: Costs, block: int, swapped: list[tuple[int, int]]) -> Edge:
    slowest = min(min(costs.classes[a], costs.classes[b]) for a, b in swapped)
    time = costs.latency[slowest] * log2(2) + block * costs.rate[slowest]
    return costs.edge("permute", block, block, time)


def _exchange(
    costs: Costs,
    cut_x: int,
    cut_y: int,
    owed: int,
    stays: int,
    came: int,
    left: int,
    swapped: list[tuple[int, int]],
) -> Edge | None:
    """Every rank receives what it lacks, from the nearest holders, who share the demands evenly (``exchange``).

    ``cut_x`` and ``cut_y`` are the atoms that cut or are pending before and after, ``owed`` and ``stays`` the pending
    ones; ``came`` and ``left`` cut a free digit in one state only; ``swapped`` are the digits that one atom cuts before
    and another after. Elements are counted with their pending parts.
    """
    product = costs.product
    from_atoms = to_atoms = 0
    for a, b in swapped:
        from_atoms |= 1 << a
        to_atoms |= 1 << b
    left |= owed & ~stays
    total = costs.numel * costs.element * product(owed)
    wanted = total // product(cut_y)
    piece = total // (product(cut_x) * product(came))
    free = costs.all_atoms & ~cut_y
    whole = costs.all_atoms & ~cut_x
    missing = wanted
    """What the worst rank still lacks after what it can find among ranks that agree on slower atoms."""
    blocks = product(left)
    received = sent = time = 0
    for c in costs.order:
        through, slower, links = costs.through[c], costs.slower[c], costs.class_masks[c]
        apart = bool(from_atoms & through)
        near = 0 if apart else wanted // product(left & through)
        here = missing - near
        missing = near
        near_blocks = 0 if apart else product(left & ~through)
        sources = blocks - near_blocks
        blocks = near_blocks
        # The demands on the holders of one part in a neighbourhood, and how many holders share them.
        demands = product(came & ~slower) * product(free & ~slower)
        cut = cut_x & links
        if not to_atoms & cut or forced(swapped, slower, cut):
            demands -= product(came & ~slower & ~cut) * product(free & ~slower & ~cut)
        holders = product(whole & ~slower)
        served = -(-demands // holders) if demands else 0
        if not here and not served:
            continue
        leaving = served * piece
        received += here
        sent += leaving
        time += costs.latency[c] * log2(1 + max(sources, served)) + max(here, leaving) * costs.rate[c]
    if costs.limit is not None and owed & ~stays and received > max(costs.limit, wanted):
        return None
    return costs.edge("exchange", received, sent, time)


def forced(swapped: list[tuple[int, int]], slower: int, cut: int) -> bool:
    """Do holders that serve ranks of their own neighbourhood have equal coordinates on all swaps into ``cut``?"""
    leader: dict[int, int] = {}

    def find(a: int) -> int:
        while leader.get(a, a) != a:
            a = leader[a]
        return a

    for a, b in swapped:
        if slower >> b & 1:
            leader[find(a)] = find(b)
    return all(find(a) == find(b) for a, b in swapped if cut >> b & 1)
