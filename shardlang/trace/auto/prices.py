"""Modelled times of changes of layout, of a value and its gradient, in picoseconds.

What a value costs depends on the layout that it is produced in and on those that its uses want: it is brought to each
wanted layout once, its gradient comes back the same way, and parts of gradients are added up where uses vary over axes
on which the value is whole. The same sums are made here as by the program that is built (``local.add_gradients``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations

from attrs import define, field, frozen

from shardlang.diagnostics import ShardlangError
from shardlang.dtypes import DTYPES
from shardlang.layout import Layout
from shardlang.mesh import Mesh
from shardlang.plan.plan import Plan
from shardlang.plan.search import plan_transition
from shardlang.trace.auto.eliminate import NEVER
from shardlang.trace.auto.paths import Paths, every_state, paths
from shardlang.trace.pieces import State, axes_of, layout_of

Axes = frozenset[str]


@frozen(cache_hash=True)
class Want:
    """A use of a value: the layout in which an operator takes it, and over which axes the gradient of that use comes in
    parts; ``None``: no gradient comes back.
    """

    state: State
    parts: Axes | None


@frozen
class Backward:
    """How the gradient of a value that is not made by an operator goes on.

    ``kept``: axes over which it may stay a sum that is owed. ``asked``: the layout it is brought to at last.
    ``through``: the value came in this layout, and a move at the boundary brings it to the one that the body sees.
    """

    kept: Axes = frozenset()
    asked: State | None = None
    through: State | None = None


SOMEWHERE = Backward()


@define(eq=False)
class Prices:
    """Times on one mesh, each worked out once. ``special``: layouts of values beside those that axes make."""

    mesh: Mesh
    special: dict[tuple[int, ...], dict[State, None]] = field(factory=dict)
    tables: dict[tuple[object, ...], Paths] = field(factory=dict)
    grown: dict[tuple[object, ...], int] = field(factory=dict)
    """How many layouts were known when a table was made: with more it is made again."""
    planned: dict[tuple[object, ...], int] = field(factory=dict)
    copies: dict[tuple[object, ...], int] = field(factory=dict)
    layouts: dict[State, Layout | None] = field(factory=dict)
    one: dict[State, State] = field(factory=dict)
    """One object for equal layouts."""
    gradients: dict[tuple[State, Axes], State] = field(factory=dict)

    def gradient(self, state: State, axes: Axes = frozenset()) -> State:
        """The layout of the gradient of a value in this layout: split alike, whole where the value is whole or owed; a
        sum that is owed over ``axes``.
        """
        key = (state, axes)
        found = self.gradients.get(key)
        if found is None:
            made = State(state.pieces, dict.fromkeys(sorted(axes), "sum"))
            found = self.gradients[key] = self.same(made)
        return found

    def same(self, state: State) -> State:
        """The object that stands for all layouts equal to this one, so that they are told apart at once."""
        return self.one.setdefault(state, state)

    def layout(self, state: State) -> Layout | None:
        """The layout of a state; ``None`` where no spec says it."""
        if state not in self.layouts:
            try:
                self.layouts[state] = layout_of(self.mesh, state)
            except ValueError:
                self.layouts[state] = None
            else:
                self._occurs(state)
        return self.layouts[state]

    def _occurs(self, state: State) -> None:
        """Notes a layout, and those of its gradient, for the table of its shape."""
        known = self.special.setdefault(state.shape, {})
        busy = {a for piece in state.pieces for a in axes_of(piece, self.mesh)}
        free = [a.name for a in self.mesh.leaves() if a.size > 1 and a.name not in busy]
        known[self.same(state)] = None
        for count in range(len(free) + 1):
            for axes in combinations(free, count):
                known[self.gradient(state, frozenset(axes))] = None

    def between(self, source: State, target: State, dtype: str) -> int:
        """The time of bringing a value from one layout to another; ``NEVER`` where there is no way."""
        if source == target:
            return 0
        key = (source.shape, DTYPES[dtype].itemsize)
        table = self.tables.get(key)
        if table is None or (
            self._missing(table, source, target) and self.grown[key] < len(self.special[source.shape])
        ):
            self.grown[key] = len(self.special.get(source.shape, ()))
            here = [*map(self.same, every_state(self.mesh, source.shape)), *self.special.get(source.shape, ())]
            table = self.tables[key] = paths(self.mesh, here, DTYPES[dtype].itemsize)
        a, b = table.number.get(source), table.number.get(target)
        if a is not None and b is not None and table.times[a][b] < NEVER:
            return table.times[a][b]
        asked = (source, target, dtype)
        found = self.planned.get(asked)
        if found is None:
            try:
                found = plan_transition(layout_of(self.mesh, source), layout_of(self.mesh, target), dtype).time
            except (ShardlangError, ValueError):
                found = NEVER
            self.planned[asked] = found
        return found

    def _missing(self, table: Paths, source: State, target: State) -> bool:
        return source not in table.number or target not in table.number

    def varied(self, state: State, dtype: str, sets: Iterable[Axes]) -> int:
        """Adding up the parts of a gradient, once for each set of axes, from the smaller sets on."""
        made: list[Axes] = []
        total = 0
        for axes in sorted({s for s in sets if s}, key=lambda s: (len(s), sorted(s))):
            done = max((s for s in made if s <= axes), key=len, default=frozenset[str]())
            total += self.between(self.gradient(state, axes - done), self.gradient(state), dtype)
            made.append(axes)
        return total

    def copy(self, source: State, target: State, dtype: str, flows: bool, parts: tuple[Axes, ...]) -> int:
        """A value brought to another layout for some uses, and the gradient's way back.

        ``flows``: a gradient goes back at all. ``parts``: the axes over which the uses' gradients come in parts.
        """
        key = (source, target, dtype, flows, parts)
        found = self.copies.get(key)
        if found is None:
            found = self.copies[key] = self._copy(source, target, dtype, flows, parts)
        return found

    def _copy(self, source: State, target: State, dtype: str, flows: bool, parts: tuple[Axes, ...]) -> int:
        if self.layout(target) is None:
            return NEVER
        total = self.between(source, target, dtype)
        if not flows:
            return total
        owed = {*source.pending.values(), *target.pending.values()}
        if owed & {"max", "min"}:
            return NEVER
        common = frozenset.intersection(*parts) if parts and owed <= {"sum"} else frozenset[str]()
        total += self.between(self.gradient(target, common), self.gradient(source), dtype)
        return total + self.varied(target, dtype, [p - common for p in parts])

    def in_place(
        self, state: State, dtype: str, parts: Sequence[Axes], moved: bool, back: Backward | None = None
    ) -> int:
        """The gradient's sums for uses of a value as it is produced; ``moved``: other layouts are made of it, too."""
        back = back or SOMEWHERE
        everything = [*parts, frozenset[str]()] if moved else list(parts)
        common = frozenset.intersection(*everything) if everything else frozenset[str]()
        if back.through is not None:
            total = self.between(self.gradient(state, common), self.gradient(back.through), dtype)
            return total + self.varied(state, dtype, [p - common for p in parts])
        kept = common if back.asked is not None else common & back.kept
        total = self.varied(state, dtype, [p - kept for p in parts])
        if back.asked is not None:
            total += self.between(self.gradient(state, kept), back.asked, dtype)
        return total


def seconds_of(plan: Plan | None) -> int:
    """The modelled time of a plan, in picoseconds; 0 for none."""
    return plan.time if plan is not None else 0
