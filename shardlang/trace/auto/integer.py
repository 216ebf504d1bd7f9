"""The core that elimination leaves, as an integer program for a solver library (HiGHS, through scipy).

A variable is a group of zero-one columns of which one is taken; a table is a column for each entry that can be, whose
sums along each dim are the columns of its variables (the local polytope, whose relaxation is tight on trees). No limit
of time: nodes of the branch and bound are counted, so that every process stops at the same one.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from attrs import frozen

from shardlang.diagnostics import ShardlangError, sl05_functions
from shardlang.trace.auto.eliminate import NEVER, Factor

NODES = 10_000
"""Nodes of the branch and bound."""


@frozen
class Found:
    """Values of the core's variables, and by which share of the cost they may miss the least."""

    values: dict[int, int]
    gap: float


def solve_core(sizes: Sequence[int], factors: Sequence[Factor], name: str) -> Found:
    """The values that minimise the sum of the tables. Raises ShardlangError: SL0529 without scipy."""
    try:
        import numpy

        optimize, sparse = import_module("scipy.optimize"), import_module("scipy.sparse")
    except ImportError as error:
        raise ShardlangError(sl05_functions.no_solver(name)) from error
    variables = sorted({v for f in factors for v in f.scope})
    first: dict[int, int] = {}
    columns = 0
    for v in variables:
        first[v] = columns
        columns += sizes[v]
    integral = columns
    costs: list[float] = [0.0] * columns
    rows: list[int] = []
    cols: list[int] = []
    data: list[float] = []
    right: list[float] = []

    def row(members: Sequence[tuple[int, float]], value: float) -> None:
        for column, weight in members:
            rows.append(len(right))
            cols.append(column)
            data.append(weight)
        right.append(value)

    for v in variables:
        row([(first[v] + i, 1.0) for i in range(sizes[v])], 1.0)
    forbidden: set[int] = set()
    for factor in factors:
        table = factor.table
        if len(factor.scope) == 1:
            v = factor.scope[0]
            for i, cost in enumerate(table.tolist()):
                if cost >= NEVER:
                    forbidden.add(first[v] + i)
                else:
                    costs[first[v] + i] += cost
            continue
        entries = (table < NEVER).nonzero().tolist()
        marginal: dict[tuple[int, int], list[int]] = {}
        for entry in entries:
            costs.append(float(table[tuple(entry)]))
            for v, i in zip(factor.scope, entry, strict=True):
                marginal.setdefault((v, i), []).append(columns)
            columns += 1
        for v in factor.scope:
            for i in range(sizes[v]):
                row([(first[v] + i, -1.0), *((c, 1.0) for c in marginal.get((v, i), []))], 0.0)
    scale = max(max(costs, default=0.0), 1.0)
    upper = numpy.ones(columns)
    upper[sorted(forbidden)] = 0.0
    matrix = sparse.csr_array((data, (rows, cols)), shape=(len(right), columns))
    answer: Any = optimize.milp(
        numpy.array(costs) / scale * 1e4,
        integrality=numpy.array([1] * integral + [0] * (columns - integral)),
        bounds=optimize.Bounds(numpy.zeros(columns), upper),
        constraints=optimize.LinearConstraint(matrix, right, right),
        options={"mip_rel_gap": 0.0, "node_limit": NODES},
    )
    if answer.x is None:
        raise ValueError(f"the solver found no layouts: {answer.message}")
    taken = {v: max(range(sizes[v]), key=lambda i: (answer.x[first[v] + i], -i)) for v in variables}
    return Found(taken, float(answer.mip_gap or 0.0))
