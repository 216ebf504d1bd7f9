"""Builds a local program one operator at a time: types it by its rule, and puts it down on local shapes."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from attrs import define, evolve, field
from torch import fx
from torch.utils import _pytree as pytree

from shardlang.diagnostics import ShardlangError, sl05_functions
from shardlang.layout import Layout
from shardlang.mesh import Mesh
from shardlang.plan.plan import Plan
from shardlang.plan.search import plan_transition
from shardlang.trace import misfits
from shardlang.trace.call import Call, TensorArg, operator_name
from shardlang.trace.capture import Site
from shardlang.trace.fit import Candidate, Fit, candidates, fit
from shardlang.trace.pieces import State, layout_of, normal, state_of
from shardlang.trace.program import Decision, Draw, InnerCall, Move, Reason, move, rank_value
from shardlang.trace.rule import Rule
from shardlang.trace.rules import find, names
from shardlang.trace.values import Value, dtype_name
from shardlang.trace.work import work_of

NO_GRADIENT = frozenset({"aten.detach", "aten.detach_copy", "aten.lift_fresh_copy"})
RANDOM = names(
    "rand randn randint randperm rand_like randn_like randint_like bernoulli normal uniform multinomial random "
    "native_dropout alpha_dropout feature_dropout rrelu rrelu_with_noise exponential cauchy geometric log_normal "
    "poisson binomial _standard_gamma"
)
"""Operators that draw from a generator of the process, whose state may differ between ranks; in place, too."""


def is_random(op: Any) -> bool:
    """Does an operator draw from a generator of the process?"""
    return ".".join(operator_name(op).split(".")[:2]).removesuffix("_") in RANDOM


SHOWN = 4
"""How many ways of a decision are kept."""


@define(eq=False)
class Builder:
    """The local program so far. ``auto``: the cheapest way is taken where an operator does not fit."""

    mesh: Mesh
    fake: Any
    auto: bool = False
    choices: Sequence[int] = ()
    """Which way to take at each decision under ``auto``: 0, the cheapest by itself, where none is given."""
    decisions: list[Decision] = field(factory=list)
    work: int = 0
    """Modelled time of the operators, in picoseconds, on the rank with the most to do."""
    graph: fx.Graph = field(factory=fx.Graph)
    moves: list[Move] = field(factory=list)
    rank_values: list[Callable[[int], Any]] = field(factory=list)
    constants: dict[str, torch.Tensor] = field(factory=dict)
    draws: list[Draw] = field(factory=list)
    inner: list[InnerCall] = field(factory=list)
    inlining: list[Any] = field(factory=list)
    """Operators that are being taken apart: one that is made of itself has no parts."""
    site: Site | None = None
    gradients: bool = True
    rewrite: Callable[[Any, Any, tuple[Any, ...], dict[str, Any]], Any] = field(kw_only=True)
    """Puts an operator down differently; ``None`` where its rule will do."""
    wanted: Mapping[fx.Node, tuple[State, ...]] = field(factory=dict)
    """The layouts in which a node of the trace takes its tensors, where they were chosen beforehand."""
    label: str = ""
    """What an error calls the results of the operator at hand."""

    # -- values ----------------------------------------------------------------------------------------------------

    def argument(self, name: str, layout: Layout, fake: torch.Tensor, origin: Any = None) -> Value:
        """An argument of the function in this layout."""
        node = self.graph.placeholder(name)
        diff = fake.dtype.is_floating_point or fake.dtype.is_complex
        value = Value(node, normal(layout), fake, False, diff, name, origin)
        node.meta["value"] = value
        return value

    def constant(self, tensor: torch.Tensor, fake: torch.Tensor) -> Value:
        """A tensor that the trace made of literals, whole on every rank."""
        name = f"constant{len(self.constants)}"
        self.constants[name] = tensor
        node = self.graph.create_node("get_attr", name)
        value = Value(node, Layout.whole(self.mesh, tuple(fake.shape)), fake, True, False, name)
        node.meta["value"] = value
        return value

    def literal(self, of_rank: Callable[[int], Any]) -> fx.Node:
        """A literal that differs between ranks."""
        self.rank_values.append(of_rank)
        return self.graph.call_function(rank_value, (len(self.rank_values) - 1,))

    # -- moves -----------------------------------------------------------------------------------------------------

    def move(self, value: Value, layout: Layout, reason: Reason) -> Value:
        """The value in another layout; made once for each."""
        layout = normal(layout)
        target = state_of(layout)
        if target == value.state:
            return value
        key = (target, self.gradients)
        if key not in value.moved:
            forward = plan_transition(value.layout, layout, dtype_name(value.dtype))
            # Raises for a pending max or min that a gradient flows into: which part gave the value is not known.
            backward = forward.transpose() if value.differentiable and self.gradients else None
            node = self.add_move(value.node, Move(forward, _unless_empty(backward), reason, value.name, self.site))
            made = Value(node, layout, value.fake, value.constant, value.differentiable, value.name, value.origin)
            made.moved = value.moved
            node.meta["value"] = made
            value.moved[key] = made
        return value.moved[key]

    def add_move(self, node: fx.Node, made: Move) -> fx.Node:
        self.moves.append(made)
        new = self.graph.call_function(move, (node, len(self.moves) - 1))
        new.meta["move"] = made
        new.meta["site"] = made.site
        return new

    def arranged(self, node: fx.Node, args: Any, kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """The arguments of a node in the layouts that are wanted of it."""
        wanted = self.wanted.get(node)
        if wanted is None:
            return args, kwargs
        given, structure = pytree.tree_flatten((args, kwargs))
        states = iter(wanted)
        moved = [self.to_state(a, next(states), "chosen") if isinstance(a, Value) else a for a in given]
        new: tuple[Any, dict[str, Any]] = pytree.tree_unflatten(moved, structure)
        return new

    def to_state(self, value: Value, state: State, reason: Reason) -> Value:
        return self.move(value, layout_of(self.mesh, state), reason)

    def resolved(self, value: Value, reason: Reason = "operator") -> Value:
        """The value with nothing owed."""
        return self.to_state(value, State(value.state.pieces), reason)

    def price(self, value: Value, state: State) -> tuple[int, int]:
        """Bytes and modelled time of bringing a value to a state, its gradient included."""
        if state == value.state or (state, self.gradients) in value.moved:
            return 0, 0
        forward = plan_transition(value.layout, layout_of(self.mesh, state), dtype_name(value.dtype))
        plans = [forward]
        if value.differentiable and self.gradients:
            plans.append(forward.transpose())
        return sum(p.bytes_received for p in plans), sum(p.time for p in plans)

    # -- operators -------------------------------------------------------------------------------------------------

    def call(self, op: Any, *args: Any, **kwargs: Any) -> Any:
        """An operator on values, typed by its rule; returns its value or values."""
        given, structure = pytree.tree_flatten((args, kwargs))
        fakes = pytree.tree_unflatten([a.fake if isinstance(a, Value) else a for a in given], structure)
        with self.fake, torch.no_grad():
            result = op(*fakes[0], **fakes[1])
        rewritten = self.rewrite(self, op, args, kwargs)
        return rewritten if rewritten is not None else self.apply(op, args, kwargs, result)

    def apply(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Any:
        """``call`` with the global result known already, as fake tensors."""
        given, structure = pytree.tree_flatten((args, kwargs))
        values = [a for a in given if isinstance(a, Value)]
        fakes = [t for t in pytree.tree_leaves(result) if isinstance(t, torch.Tensor)]
        name = operator_name(op)
        if is_random(op) and len(self.mesh.ranks) > 1:
            raise ShardlangError(sl05_functions.random_operator(name, self._span()))
        if not any(v.axes() for v in values):
            states = [State(Layout.whole(self.mesh, tuple(t.shape)).canonical()) for t in fakes]
            if not all(v.constant for v in values):
                rule = self._rule(op, given, structure, fakes)
                self.work += self._work(op, rule, frozenset(), values, [v.state for v in values], states, fakes)
            return self.put(op, args, kwargs, result, states)
        rule = self._rule(op, given, structure, fakes)
        if rule is None:
            return self._without_rule(op, args, kwargs, result, values)
        values, fitted = self._fitted(op, rule, values, fakes)
        self.work += self._work(op, rule, fitted.axes, values, [v.state for v in values], fitted.results, fakes)
        values = [
            self._mask(v, axes) if axes else v
            for v, axes in zip(values, fitted.masks or (frozenset(),) * len(values), strict=True)
        ]
        new = iter(values)
        given = [next(new) if isinstance(a, Value) else a for a in given]
        args, kwargs = pytree.tree_unflatten(given, structure)
        if fitted.scalar_axes:
            args = self._owed_by_one(args, rule.scalars, fitted.scalar_axes)
        return self.put(op, args, kwargs, result, fitted.results, rule, values)

    def _rule(
        self, op: Any, given: Sequence[Any], structure: pytree.TreeSpec, fakes: Sequence[torch.Tensor]
    ) -> Rule | None:
        """The rule of a call; ``None`` where it has none."""
        maker = find(operator_name(op))
        if maker is None:
            return None
        shown = pytree.tree_unflatten(
            [TensorArg(a.shape, a.dtype) if isinstance(a, Value) else a for a in given], structure
        )
        return maker(Call(op, shown[0], shown[1], tuple(TensorArg(tuple(t.shape), t.dtype) for t in fakes)))

    def _fitted(
        self, op: Any, rule: Rule, values: list[Value], fakes: Sequence[torch.Tensor]
    ) -> tuple[list[Value], Fit]:
        """The operands as they are where the rule fits; constants adapted; under ``auto`` the cheapest moves."""
        name = operator_name(op)
        states = [v.state for v in values]
        found = fit(rule, states, self.mesh)
        if isinstance(found, Fit):
            return values, found
        ways = list(self._ways(op, rule, values, fakes))
        fixed = [i for i, v in enumerate(values) if not v.constant]
        free = [w for w in ways if w[0] == 0 and all(w[2].operands[i] == states[i] for i in fixed)]
        if not ways:
            self._no_gradient_of_extremes(values)
        if not free and (not self.auto or not ways):
            raise ShardlangError(misfits.describe(name, self._span(), found, rule, values, ways[:4], self.mesh))
        way = free[0][2] if free else self._chosen(name, values, ways)
        moved = [self.to_state(v, s, "chosen") for v, s in zip(values, way.operands, strict=True)]
        return moved, way.fit

    def _no_gradient_of_extremes(self, values: list[Value]) -> None:
        """Raises SL0405 where an operand is a pending max or min that a gradient would have to pass."""
        for value in values:
            if value.differentiable and self.gradients and any(p.op in ("max", "min") for p in value.layout.owed()):
                plan_transition(
                    value.layout, layout_of(self.mesh, State(value.state.pieces)), dtype_name(value.dtype)
                ).transpose()

    def _chosen(self, name: str, values: list[Value], ways: list[tuple[int, int, Candidate]]) -> Candidate:
        """The way that ``choices`` says at this decision; noted, with the others."""
        number = len(self.decisions)
        taken = self.choices[number] if number < len(self.choices) else 0
        shown = tuple((misfits.way_text(w, values, self.mesh), w[0], w[1]) for w in ways[:SHOWN])
        self.decisions.append(Decision(name, self.site, shown, taken))
        return ways[min(taken, len(ways) - 1)][2]

    def _work(
        self,
        op: Any,
        rule: Rule | None,
        axes: frozenset[str],
        values: Sequence[Value],
        states: Sequence[State],
        results: Sequence[State],
        fakes: Sequence[torch.Tensor],
    ) -> int:
        """Modelled time of an operator on a rank; its backward does twice as much."""
        passes = 3 if self.gradients and any(v.differentiable for v in values) else 1
        taken = [(s, v.dtype) for s, v in zip(states, values, strict=True)]
        given = [(s, t.dtype) for s, t in zip(results, fakes, strict=True)]
        return work_of(op, rule, axes, self.mesh, taken, given, passes)

    def _ways(
        self, op: Any, rule: Rule, values: list[Value], fakes: Sequence[torch.Tensor]
    ) -> Iterator[tuple[int, int, Candidate]]:
        """Candidates with (time, bytes), cheapest first; those that no layout can say are left out."""
        priced: list[tuple[int, int, int, Candidate]] = []
        for n, candidate in enumerate(candidates(rule, self.mesh, [v.state for v in values])):
            try:
                prices = [self.price(v, s) for v, s in zip(values, candidate.operands, strict=True)]
            except (ValueError, ShardlangError):
                continue
            found = candidate.fit
            work = (
                self._work(op, rule, found.axes, values, candidate.operands, found.results, fakes) if self.auto else 0
            )
            priced.append((sum(t for _, t in prices) + work, sum(b for b, _ in prices), n, candidate))
        for time, size, _, candidate in sorted(priced, key=lambda p: p[:3]):
            yield time, size, candidate

    def _mask(self, value: Value, axes: frozenset[str]) -> Value:
        return self.to_state(
            value, evolve(value.state, pending={**value.state.pending, **dict.fromkeys(axes, "sum")}), "operator"
        )

    def _owed_by_one(self, args: tuple[Any, ...], positions: Sequence[int], axes: frozenset[str]) -> tuple[Any, ...]:
        """Added literals are zero on all ranks but the first of each group, so that the sum has them once."""
        changed = list(args)
        for position in positions:
            number = args[position]
            if isinstance(number, int | float | complex) and number != 0:

                def of_rank(rank: int, number: Any = number) -> Any:
                    return number if all(self.mesh.coordinate(rank, a) == 0 for a in axes) else type(number)(0)

                changed[position] = self.literal(of_rank)
        return tuple(changed)

    def _without_rule(self, op: Any, args: Any, kwargs: Any, result: Any, values: list[Value]) -> Any:
        """An operator made of others is taken apart; under ``auto`` operands become whole; else an error."""
        inlined = self._decomposed(op, args, kwargs)
        if inlined is not None:
            return inlined
        if not self.auto:
            raise ShardlangError(
                sl05_functions.no_rule(operator_name(op), self._span(), [misfits.operand(v) for v in values])
            )
        given, structure = pytree.tree_flatten((args, kwargs))
        whole = [self.move(a, Layout.whole(self.mesh, a.shape), "chosen") if isinstance(a, Value) else a for a in given]
        new_args, new_kwargs = pytree.tree_unflatten(whole, structure)
        return self.apply(op, new_args, new_kwargs, result)

    def _decomposed(self, op: Any, args: Any, kwargs: Any) -> Any:
        from shardlang.trace.inline import decomposition

        return decomposition(self, op, args, kwargs)

    def put(
        self,
        op: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        states: Sequence[State],
        rule: Rule | None = None,
        operands: Sequence[Value] = (),
    ) -> Any:
        """Puts an operator down whose results are in known states; literals become local by the rule."""
        given, structure = pytree.tree_flatten((args, kwargs))
        values = [a for a in given if isinstance(a, Value)]
        nodes = [a.node if isinstance(a, Value) else a for a in given]
        layouts = [layout_of(self.mesh, s) for s in states]
        local_args, local_kwargs = pytree.tree_unflatten(nodes, structure)
        if rule is not None and rule.literals is not None:
            local_args = self._local(rule, local_args, local_kwargs, [v.layout for v in operands], layouts)
        node = self.graph.call_function(op, tuple(local_args), local_kwargs)
        constant = all(v.constant for v in values)
        flows = self.gradients and any(v.differentiable for v in values) and operator_name(op) not in NO_GRADIENT
        return self.wrap(node, result, layouts, constant=constant, flows=flows)

    def wrap(self, node: fx.Node, result: Any, layouts: Sequence[Layout], *, constant: bool, flows: bool) -> Any:
        """Values for the results of a node."""
        node.meta["site"] = self.site

        def value(n: fx.Node, fake: torch.Tensor, layout: Layout) -> Value:
            diff = flows and (fake.dtype.is_floating_point or fake.dtype.is_complex)
            origin = self._span()
            made = Value(n, layout, fake, constant, diff, self.label or n.name, origin)
            n.meta["value"] = made
            n.meta["site"] = self.site
            return made

        if isinstance(result, torch.Tensor):
            return value(node, result, layouts[0])
        made = []
        for i, (fake, layout) in enumerate(zip(result, layouts, strict=True)):
            made.append(value(self.graph.call_function(operator.getitem, (node, i)), fake, layout))
        node.meta["value"] = tuple(made)
        return tuple(made)

    def _local(
        self, rule: Rule, args: tuple[Any, ...], kwargs: dict[str, Any], inputs: list[Layout], outputs: list[Layout]
    ) -> tuple[Any, ...]:
        """The arguments with literals made local; those that differ between ranks are rank values."""
        assert rule.literals is not None
        rewrite = rule.literals.rewrite

        def of_rank(rank: int) -> tuple[Any, ...]:
            ins = [layout.local_shape(rank) for layout in inputs]
            return rewrite(args, kwargs, ins, [layout.local_shape(rank) for layout in outputs])

        first = of_rank(self.mesh.first_rank)
        if not any(p.flat for layout in (*inputs, *outputs) for p in layout.canonical()):
            return first
        every = [of_rank(rank) for rank in self.mesh.ranks]
        local = list(first)
        for i, argument in enumerate(first):
            if not isinstance(argument, fx.Node) and any(other[i] != argument for other in every):
                local[i] = self.literal(lambda rank, i=i: of_rank(rank)[i])  # type: ignore[misc]  # mypy does not infer a default
        return tuple(local)

    def _span(self) -> Any:
        return self.site.span() if self.site is not None else None


def _unless_empty(plan: Plan | None) -> Plan | None:
    return plan if plan is not None and plan.steps else None
