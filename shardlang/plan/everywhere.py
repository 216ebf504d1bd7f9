"""The cheapest plan over all states of a field: A* whose steps are taken all at once, as arrays.

From each state that is taken up, one array says what a step to every other state costs, and another what the way from
there costs at least; the next state taken up is the one that promises most. Prices are floats until a state is taken
up, then exact. The search is bounded by the states taken up, never by time, and all that floats are made of (sums,
products, and logarithms rounded to 2^-40) is the same on every machine.
"""

from __future__ import annotations

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from shardlang.plan.arrays import SLACK, TRIFLE, UNIT, Floats
from shardlang.plan.astar import NAMED, Answer
from shardlang.plan.bounds import bound
from shardlang.plan.cost import Costs, Edge, between
from shardlang.plan.field import Field
from shardlang.plan.moves import is_goal
from shardlang.plan.problem import State

GOALS = 3
"""To so many states that a mask makes the target the last step is known from everywhere, those nearest first."""


@frozen
class Within:
    """Bytes that a path may receive at most, and the prices in bytes of steps between the same states."""

    field: Field
    most: int


@frozen
class _Node:
    """A state taken up, and the step that led there (none to the source)."""

    state: State
    cost: int
    about: float
    """The cost in the objective's unit, with the trifles of ``arrays``."""
    before: _Node | None = None
    edge: Edge | None = None
    received: int = 0

    @property
    def named(self) -> bool:
        """Do back ends know all steps by name?"""
        plain = self.edge is None or self.edge[1] in NAMED
        return plain and (self.before is None or self.before.named)


def search_everywhere(
    costs: Costs,
    field: Field,
    most: int,
    *,
    ceiling: int | None = None,
    least: int = 0,
    within: Within | None = None,
) -> Answer:
    """The best path over all states of a field, taking up at most ``most`` of them.

    ``least`` is what a path costs at least, in the objective's unit, where more is known than the common bound.
    ``ceiling`` is what a path costs that is at hand already, in the objective's unit: the answer has no path, and this
    as its cost, where none cheaper is found. ``within`` (with a ceiling) leaves out paths that receive more.
    """
    question = costs.question
    start = question.source
    if is_goal(costs, start):
        return Answer((), 0, 0, True)
    floor = max(least, costs.primary(costs.weigh(*bound(costs, start, question.target))))
    # The least, but for the trifles of a few collectives.
    enough = floor * (1 + SLACK) + 64 * TRIFLE * (1 if costs.by_bytes else UNIT)
    shown = np.inf
    ahead = field.bounds()
    spare = ahead if within is None else within.field.bounds()
    goals = field.goals()
    most_goals = GOALS if question.target[1] & ~question.kept else 1
    home = np.full(len(field), np.inf)
    nearest = np.zeros(len(field), dtype=np.int64)
    at = field.find(start)
    reached: Floats = np.full(len(field), np.inf)
    reached[at] = 0.0
    promise: Floats = np.full(len(field), np.inf)
    parent = np.zeros(len(field), dtype=np.int64)
    nodes: list[_Node] = []
    best = np.inf if ceiling is None else float(ceiling)
    through: tuple[int, int] | None = None
    node = _Node(start, 0, 0.0)
    kinds = field.kinds()
    all_states = np.arange(len(field))
    while True:
        nodes.append(node)
        near = all_states if best == np.inf else np.nonzero((ahead < best - node.about) & (reached > node.about))[0]
        row, doubt = field.prices_from(node.state, near)
        row += node.about
        row[near == at] = np.inf
        if within is not None:
            bytes_row = within.field.prices_from(node.state, near)[0] + node.received
            row[bytes_row + spare[near] > within.most + 0.5] = np.inf
        beyond, so_far = ahead[near], reached[near]
        better = (row < so_far * (1 - SLACK / 1000)) & (row + beyond < best)
        for i in np.nonzero(doubt & better)[0].tolist():
            row[i] = _exactly(costs, field, node, int(near[i]))
            better[i] = row[i] < so_far[i] and row[i] + beyond[i] < best
        if len(nodes) == 1:
            there = near[goals[near]]
            for goal in there[np.argsort(row[goals[near]], kind="stable")[:most_goals]].tolist():
                price = field.prices_to(field.state(goal))
                nearest = np.where(price < home, goal, nearest)
                home = np.minimum(price, home)
            home[goals] = 0.0
        onward = row + home[near]
        if within is not None:
            # A last step is taken only where it adds nothing: how much it does is not told for all at once.
            onward[~goals[near]] = np.inf
        if len(near):
            via = int(onward.argmin())
            if onward[via] < best:
                best, through = float(onward[via]), (len(nodes) - 1, int(near[via]))
        found = near[better]
        promise[found] = row[better] + beyond[better]
        reached[found] = row[better]
        parent[found] = len(nodes) - 1
        at = int(promise.argmin())
        next_best = float(promise[at])
        done = next_best >= best * (1 - SLACK)
        if not done and through is not None and best <= min(enough, shown):
            # None is cheaper; one of as many steps that back ends know by name is as good as any.
            shown = best * (1 - SLACK)
            node = _home(costs, field, nodes, through, best, nearest)
            if node.named:
                return _answer(costs, node, len(nodes))
        if done or len(nodes) >= most:
            # The best path is at hand: by way of a state whose step home is known.
            shortest = None if done else max(floor, int(next_best * (1 - SLACK)))
            if through is None:
                assert ceiling is not None, "every target can be reached"
                said = ceiling if shortest is None else min(shortest, ceiling)
                return Answer((), ceiling, said, said == ceiling, len(nodes))
            return _answer(costs, _home(costs, field, nodes, through, best, nearest), len(nodes), shortest)
        # What differs in atoms that are all one to the target has the same way to go.
        alike = np.nonzero((kinds == kinds[at]) & (reached >= reached[at]))[0]
        reached[alike] = reached[at]
        promise[alike] = np.inf
        node = _arrived(costs, field, nodes[parent[at]], at, float(reached[at]))
        if is_goal(costs, node.state):
            return _answer(costs, node, len(nodes))


def _home(
    costs: Costs, field: Field, nodes: list[_Node], through: tuple[int, int], best: float, nearest: NDArray[np.int64]
) -> _Node:
    """The end of the best path so far: by way of a state whose step home is known."""
    node = _arrived(costs, field, nodes[through[0]], through[1], best)
    if is_goal(costs, node.state):
        return node
    return _arrived(costs, field, node, int(nearest[through[1]]), best)


def _arrived(costs: Costs, field: Field, node: _Node, i: int, about: float) -> _Node:
    """The state of an index as the cheapest step from a node leads there."""
    found: _Node | None = None
    for after in field.reached(node.state, i):
        edge = between(costs, node.state, after)
        if edge is not None and (found is None or node.cost + edge[0] < found.cost):
            found = _Node(after, node.cost + edge[0], about, node, edge, node.received + edge[2])
    assert found is not None, "a step that was priced leads there"
    return found


def _exactly(costs: Costs, field: Field, node: _Node, i: int) -> float:
    """What a state is reached at from a node."""
    edges = [between(costs, node.state, after) for after in field.reached(node.state, i)]
    return node.about + min((float(costs.primary(e[0])) for e in edges if e is not None), default=np.inf)


def _answer(costs: Costs, node: _Node, rows: int, bound: int | None = None) -> Answer:
    path: list[tuple[State, Edge]] = []
    cost = node.cost
    while node.before is not None and node.edge is not None:
        path.append((node.state, node.edge))
        node = node.before
    exact = costs.primary(cost)
    least = exact if bound is None else min(bound, exact)
    return Answer(tuple(reversed(path)), cost, least, least == exact, rows)
