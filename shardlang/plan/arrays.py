"""What steps between many states cost, as arrays of floats: the formulas of ``cost.between``.

Where a price is hard to say for many at once it is taken too low, never too high, so that an array only tells which
steps are worth an exact look, and rounding decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from shardlang.plan.cost import Costs

Masks = NDArray[np.int64]
Floats = NDArray[np.float64]
SLACK = 1e-9
"""What floats may be wrong by, relatively; prices are lowered by it."""
UNIT = 2.0**40
TRIFLE = 2.0**-14
"""Of a picosecond or a byte, for each collective 16 times, one more for a permutation and two for an exchange: between
equal costs fewer collectives are better, then kinds that back ends know by name."""


@frozen
class Steps:
    """Steps from states to states: masks of atoms, an array or one for all, as ``cost.between`` tells them apart."""

    left: Masks
    came: Masks
    gone: Masks
    """Cut where ``taken`` do after."""
    taken: Masks
    odd: Masks
    """Not 0 where two of those differ in size: no step leads there."""
    cut: Masks | int
    owed: Masks | int
    cut_after: Masks | int
    stays: Masks | int
    block: Floats | float
    forced: Callable[[Masks, int, int], NDArray[np.bool_] | None] | None = None
    """As ``cost.forced``, of some of the steps, for slower atoms and for those that cut; ``None`` if unknown."""


@lru_cache(maxsize=64)
def products(sizes: tuple[int, ...]) -> Floats:
    """The number of coordinates on the atoms of each mask."""
    table = np.ones(1)
    for n in sizes:
        table = np.concatenate([table, table * n])
    return table


class Prices:
    """The tables of one question: prices of named steps by kind and group, products by mask and link class."""

    __slots__ = ("costs", "even", "fast", "named", "product", "slow")

    def __init__(self, costs: Costs) -> None:
        self.costs = costs
        self.product = products(costs.size)
        self.named = _group_prices(costs.size, costs.classes, costs.question.links, costs.by_bytes)
        self.slow, self.fast = _by_class(costs.size, costs.through)
        self.even = len(set(costs.size)) == 1

    def __call__(self, steps: Steps) -> tuple[Floats, NDArray[np.bool_]]:
        """What each step costs at least, in the objective's unit, with a trifle for each collective; infinite where
        there is none. And which prices may be too low."""
        left, came, gone = steps.left, steps.came, steps.gone
        constant, rate = self.named
        found, rough = self._exchanges(steps)
        found += 18 * constant[-1, 0]
        still, free = left == 0, gone == 0
        owing = self.costs.question.source[1] != 0
        reduced = np.asarray(steps.owed) & ~np.asarray(steps.stays) if owing else np.int64(0)
        # Kinds by number: 0 for what stays an exchange, then those of ``KINDS``.
        bare = came == 0
        kind = np.where(free, np.where(bare, 1, 2 * (came == left)), 5 * (still & bare))
        kind = np.where(still & free, 6, kind)
        if owing:
            merging = np.where(still & free, np.where(bare, 4, 3 * (came == reduced)), 0)
            kind = np.where(reduced == 0, kind, merging)
        group = left | gone | steps.taken | reduced
        named = constant[kind, group] + steps.block * rate[kind, group]
        found = np.where(kind == 0, found, named)
        if not self.even:
            found = np.where(steps.odd != 0, np.inf, found)
        if owing:
            found = np.where(np.asarray(steps.stays) & ~np.asarray(steps.owed) != 0, np.inf, found)
        return found, rough

    def _exchanges(self, steps: Steps) -> tuple[Floats, NDArray[np.bool_]]:
        costs, product = self.costs, self.product
        came, gone = steps.came, steps.gone
        ending = np.asarray(steps.owed) & ~np.asarray(steps.stays)
        left = steps.left | ending
        cut, cut_after = np.asarray(steps.cut) | steps.owed, np.asarray(steps.cut_after) | steps.stays
        total = float(costs.numel * costs.element) * product[steps.owed]
        wanted = total / product[cut_after]
        piece = total / (product[cut] * product[came])
        free, whole = costs.all_atoms & ~cut_after, costs.all_atoms & ~cut
        missing, blocks = wanted, product[left]
        received: Floats = np.zeros(len(left))
        time: Floats = np.zeros(len(left))
        rough = np.zeros(len(left), dtype=np.bool_)
        single = len(costs.rate) == 1
        for c in costs.order:
            through, slower, links = costs.through[c], costs.slower[c], costs.class_masks[c]
            fast = self.fast[c]
            together = (gone == 0) if single else (gone & through == 0)
            near = np.where(together, wanted / self.slow[c][left], 0.0)
            here, missing = missing - near, near
            near_blocks = together * fast[left]
            sources, blocks = blocks - near_blocks, near_blocks
            here_cut = cut & links
            before = self.fast[c - 1] if c else product
            demands = before[came] * before[free]
            forced = steps.taken & here_cut == 0
            if slower:
                # Swaps into slower atoms may force those into these to be between equals.
                doubtful = ~forced & (steps.taken & slower != 0) & (steps.taken & here_cut & ~gone == 0)
                at = np.nonzero(doubtful)[0]
                if len(at):
                    known = steps.forced(at, slower, int(here_cut)) if steps.forced is not None else None
                    if known is None:
                        rough |= doubtful
                    forced[at] = True if known is None else known
            at_home = before[came & ~here_cut] * before[free & ~here_cut]
            served = np.ceil((demands - forced * at_home) / before[whole] - SLACK)
            received = received + here
            peers = logs(1 + np.maximum(sources, served)) * ((here > 0.5) | (served > 0.5))
            time += peers * costs.latency[c] + np.maximum(here, served * piece) * costs.rate[c]
        found = received if costs.by_bytes else time
        if costs.limit is not None and costs.question.source[1]:
            over = (ending != 0) & (received > np.maximum(costs.limit, wanted) * (1 + SLACK))
            found = np.where(over, np.inf, found)
        return found, rough


KINDS = ("exchange", "all_gather", "all_to_all", "reduce_scatter", "all_reduce", "permute", "slice")


@lru_cache(maxsize=64)
def _by_class(sizes: tuple[int, ...], through: tuple[int, ...]) -> tuple[tuple[Floats, ...], tuple[Floats, ...]]:
    """By class and mask: the coordinates on the atoms of it and slower ones, and on those of faster ones."""
    masks, product = np.arange(1 << len(sizes)), products(sizes)
    return tuple(product[masks & t] for t in through), tuple(product[masks & ~t] for t in through)


def logs(n: Floats) -> Floats:
    """log2 in units of 2^-SHIFT. Rounding makes it the same on every machine."""
    rounded: Floats = np.rint(np.log2(n) * UNIT)
    return rounded


@lru_cache(maxsize=64)
def _group_prices(
    sizes: tuple[int, ...], classes: tuple[int, ...], links: tuple[tuple[int, int], ...], by_bytes: bool
) -> tuple[Floats, Floats]:
    """By kind (of ``KINDS``) and group: a constant, and what is paid for each byte of the block.

    A slice costs nothing; one row more of constants has the trifle.
    """
    n = len(sizes)
    masks, product = np.arange(1 << n), products(sizes)
    ways = [product[masks & sum(1 << i for i, c in enumerate(classes) if c == link)] for link in range(len(links))]
    unit = [(0.0, 1.0) if by_bytes else (float(latency), float(rate)) for latency, rate in links]
    trifle = TRIFLE if by_bytes else TRIFLE * UNIT
    constants, rates = np.zeros((len(KINDS), 1 << n)), np.zeros((len(KINDS), 1 << n))
    slow_first = list(range(len(links)))
    for kind, order, twice in (
        (1, slow_first, 1.0), (2, slow_first, 1.0), (3, slow_first[::-1], 1.0), (4, slow_first[::-1], 2.0),
    ):  # fmt: skip
        size = np.ones(1 << n)
        constants[kind] = 16 * trifle
        for c in order:
            constants[kind] += unit[c][0] * logs(ways[c])
            if kind > 1:
                size = size / ways[c]
            rates[kind] += twice * size * (ways[c] - 1) * unit[c][1]
            if kind == 1:
                size = size * ways[c]
    for c in reversed(slow_first):
        constants[5] = np.where(ways[c] > 1, unit[c][0] * (1 if by_bytes else UNIT), constants[5])
        rates[5] = np.where(ways[c] > 1, unit[c][1], rates[5])
    constants[5] += 17 * trifle
    return np.concatenate([constants, np.full((1, 1 << n), trifle)]), rates


def rounds(hears: Floats, members: float) -> Floats:
    """As ``bounds.rounds``: the least sum of log2 of groups, in units of one, for many islands at once."""
    least = logs(1 + np.ceil((hears - 1) / members - SLACK)) / UNIT
    if members > 1:
        turns, reach = 1, 1 + members
        doubling = np.full(len(hears), 2.0)
        while (beyond := hears > reach).any():
            turns, reach = turns + 1, reach * (1 + members)
            doubling = np.where(beyond, max(2, turns), doubling)
        least = np.minimum(least, doubling)
    return np.where(hears > 1, least, 0.0)
