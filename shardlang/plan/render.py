"""From the search's states back to steps between layouts, with axes by name."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction

from attrs import evolve, frozen

from shardlang.layout import Cut, Dim, Factor, Layout, Pending, ReduceOp
from shardlang.mesh import Axis, Mesh
from shardlang.plan.cost import Edge
from shardlang.plan.problem import SHIFT, Atom, Problem, State
from shardlang.plan.steps import Kind, Step

Ops = dict[int, ReduceOp]
"""The operator of each pending atom."""


OPS: tuple[ReduceOp, ...] = ("sum", "avg", "max", "min")


@frozen
class _Names:
    """The atoms of every axis of a mesh that has all of its own, declared axes first."""

    mesh: Mesh
    runs: tuple[tuple[str, tuple[int, ...]], ...]


class _Unnamed(Exception):
    """Some atom is a part of an axis that has no name of its own."""

    def __init__(self, atom: int) -> None:
        super().__init__(atom)
        self.atom = atom


def steps_of(problem: Problem, source: Layout, target: Layout, path: Sequence[tuple[State, Edge]]) -> tuple[Step, ...]:
    """The steps of a path. Layouts are on the source's mesh, or on one that names the parts of its axes."""
    mesh = source.mesh
    while True:
        try:
            return _steps(problem, _names(problem.atoms, mesh), source, target, path)
        except _Unnamed as unnamed:
            mesh = _refined(mesh, problem.atoms, unnamed.atom)


def _names(atoms: tuple[Atom, ...], mesh: Mesh) -> _Names:
    runs: list[tuple[str, tuple[int, ...]]] = []
    for axis in [*mesh.axes, *(p for parts in mesh.splits.values() for p in parts)]:
        if axis.size > 1:
            low = mesh.stride(axis.name)
            run = tuple(i for i, a in enumerate(atoms) if low <= a.stride < low * axis.size)
            if math.prod(atoms[i].size for i in run) == axis.size:  # a part may be left out, which cuts a dim unevenly
                runs.append((axis.name, run))
    return _Names(mesh, tuple(runs))


def _refined(mesh: Mesh, atoms: tuple[Atom, ...], atom: int) -> Mesh:
    """The mesh with the leaf axis that an atom is a part of split into atoms."""
    taken = {a.name for a in mesh.all_axes()}
    stride = atoms[atom].stride
    for axis in mesh.axes:
        parts = []
        hit = False
        for leaf in mesh.splits.get(axis.name, (axis,)):
            low = mesh.stride(leaf.name)
            inside = [a for a in atoms if low <= a.stride < low * leaf.size]
            if low <= stride < low * leaf.size and len(inside) > 1:
                hit = True
                for i, a in enumerate(inside):
                    name = f"{leaf.name}{i}"
                    while name in taken:
                        name += "_"
                    taken.add(name)
                    parts.append(Axis(name, a.size, leaf.link))
            else:
                parts.append(leaf)
        if hit:
            return evolve(mesh, splits={**mesh.splits, axis.name: tuple(parts)})
    raise AssertionError("an atom without an axis")


def _spell(names: _Names, atoms: Sequence[int]) -> tuple[str, ...]:
    """Axes that cut by these atoms in this order. Raises ``_Unnamed``."""
    spelled: list[str] = []
    at = 0
    while at < len(atoms):
        for name, run in names.runs:
            if run and tuple(atoms[at : at + len(run)]) == run:
                spelled.append(name)
                at += len(run)
                break
        else:
            raise _Unnamed(atoms[at])
    return tuple(spelled)


def _dim(names: _Names, problem: Problem, slots: Sequence[int], state: State) -> Dim:
    """One dim: its slots as factors, joined where one list of cuts says the same."""
    factors: list[tuple[int, list[int]]] = []
    sizes = problem.question.sizes
    for v in slots:
        extent, cuts = problem.question.extents[v], list(state[0][v])
        if factors:
            size, before = factors[-1]
            if size == math.prod(sizes[a] for a in before) or not cuts:
                factors[-1] = (size * extent, before + cuts)
                continue
        if factors and extent == 1:
            continue
        factors.append((extent, cuts))
    return Dim(tuple(Factor(size, _spell(names, cuts)) for size, cuts in factors))


def _layout(names: _Names, problem: Problem, source: Layout, state: State, ops: Ops) -> Layout:
    dims = []
    for dim, slots in zip(source.dims, problem.slots_of_dim, strict=True):
        dims.append(_dim(names, problem, slots, state) if slots else _respell(names, source.mesh, problem, dim))
    pending: list[Pending] = []
    for op in OPS:
        owed = [a for a in sorted(ops) if ops[a] == op]
        pending += [Pending(axis, op) for axis in _spell_set(names, owed)]
    return Layout(names.mesh, tuple(dims), tuple(pending))


def _respell(names: _Names, mesh: Mesh, problem: Problem, dim: Dim) -> Dim:
    """A dim that stays as it is, on the refined mesh: its axes are not refined, unless as parts of others."""
    known = {a.name for a in names.mesh.all_axes()}
    if all(a in known for a in dim.axes()):
        return dim
    runs = dict(_names(problem.atoms, mesh).runs)
    factors = tuple(
        Factor(f.size, tuple(n for c in f.cuts for n in (_spell(names, runs[c]) if c not in known else (c,))))
        for f in dim.factors
    )
    flat = tuple(
        Cut(n, c.uneven) for c in dim.flat for n in (_spell(names, runs[c.axis]) if c.axis not in known else (c.axis,))
    )
    return Dim(factors, flat)


def _spell_set(names: _Names, atoms: Iterable[int]) -> tuple[str, ...]:
    """Axes, major to minor, that these atoms make up."""
    left = sorted(atoms)
    spelled: list[tuple[int, str]] = []
    for name, run in names.runs:
        if run and set(run) <= set(left):
            spelled.append((run[0], name))
            left = [a for a in left if a not in run]
    if left:
        raise _Unnamed(left[0])
    return tuple(name for _, name in sorted(spelled))


def _labels(problem: Problem, layout: Layout) -> Ops:
    """The operator of each pending atom of one end."""
    ops: Ops = {}
    for p in layout.owed():
        low, size = layout.mesh.stride(p.axis), layout.mesh.axis(p.axis).size
        for i, a in enumerate(problem.atoms):
            if low <= a.stride < low * size:
                ops[i] = p.op
    return ops


def _steps(
    problem: Problem, names: _Names, source: Layout, target: Layout, path: Sequence[tuple[State, Edge]]
) -> tuple[Step, ...]:
    question = problem.question
    sizes = question.sizes
    same_mesh = names.mesh == source.mesh
    ops, due = _labels(problem, source), _labels(problem, target)
    start, goal = question.source, question.target
    now = source if same_mesh else _layout(names, problem, source, start, ops)
    state = start
    steps: list[Step] = []
    last = [a for a in due if a not in ops or (path and not path[-1][0][1] >> a & 1)]
    """The atoms that a mask at the end makes pending."""

    def at(after: State, labels: Ops) -> Layout:
        if same_mesh and target.mesh == source.mesh and after == goal and labels == due:
            return target
        return _layout(names, problem, source, after, labels)

    def relabel(new: Ops) -> None:
        """A scale step where averages become sums or sums become averages."""
        nonlocal now, ops
        factor = Fraction(1)
        for a, op in new.items():
            if ops[a] != op:
                factor *= Fraction(1, sizes[a]) if op == "sum" else sizes[a]
        if new != ops:
            after = at(state, new)
            axes = _spell_set(names, [a for a in new if ops[a] != new[a]])
            steps.append(Step("scale", axes, now, after, scale=factor))
            now, ops = after, new

    for i, (after, (_, kind, received, sent, time)) in enumerate(path):
        reduced = [a for a in ops if not after[1] >> a & 1]
        op: ReduceOp | None = None
        if reduced:
            found = {ops[a] for a in reduced}
            if len(found) > 1:
                relabel({a: "sum" if a in reduced else o for a, o in ops.items()})
            op = ops[reduced[0]]
        ops = {a: o for a, o in ops.items() if a not in reduced}
        if kind == "slice" and (path[i + 1][1][1] == "slice" if i + 1 < len(path) else not last and after != goal):
            continue
        arrived = at(after, ops)
        axes = _spell_set(names, _involved(kind, state, after))
        steps.append(Step(kind, axes, now, arrived, received, sent, time >> SHIFT, op))
        now, state = arrived, after
    fresh = [a for a in due if a not in ops]
    if not fresh and state != goal:
        arrived = at(goal, ops)
        steps.append(Step("slice", _spell_set(names, _involved("slice", state, goal)), now, arrived))
        now, state = arrived, goal
    if fresh:
        found = {due[a] for a in fresh}
        op = due[fresh[0]] if len(found) == 1 else "sum"
        ops = {**ops, **dict.fromkeys(fresh, op)}
        state = goal
        arrived = at(goal, ops)
        steps.append(Step("mask", _spell_set(names, fresh), now, arrived, op=op))
        now = arrived
    relabel({a: due[a] for a in ops})
    return tuple(steps)


def _involved(kind: Kind, before: State, after: State) -> set[int]:
    """The atoms of a step's group."""
    moved = _where(before)
    now = _where(after)
    changed = {a for a in {*moved, *now} if moved.get(a) != now.get(a)}
    return changed | {a for a in range((before[1] ^ after[1]).bit_length()) if (before[1] ^ after[1]) >> a & 1}


def _where(state: State) -> dict[int, tuple[int, int]]:
    return {a: (v, i) for v, at in enumerate(state[0]) for i, a in enumerate(at)}
