"""A local program on ``torch.distributed``: this rank's Python function, with nothing in it but operators on local
blocks and the collectives of its moves.

The function is written out as text from the program's ``fx.Graph`` and compiled by Python, which spares the calls of
modules; ``torch.compile`` takes it whole, since a move is then one opaque operator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, Protocol
from weakref import WeakValueDictionary

import torch
import torch.distributed as dist
import torch.nn.functional as F
from attrs import frozen
from torch import fx

from shardlang.lower import torch_tracing
from shardlang.plan.plan import Plan
from shardlang.runtime import agreement, faults, groups, record, turns
from shardlang.runtime.distributed import ReadyPlan, ready
from shardlang.runtime.groups import Team
from shardlang.runtime.lockstep import drawn
from shardlang.runtime.transfers import AllReduce
from shardlang.trace.call import operator_name
from shardlang.trace.program import Draw, LocalProgram, Move, draw, inner, move, rank_value

FRESH = frozenset(f"aten.{n}" for n in ("matmul", "mm", "bmm", "linear", "addmm", "baddbmm", "sum", "conv2d", "conv1d"))
"""Operators whose result is new storage that their backward does not need: it may be reduced in place."""

FOLD = 1 << 26
"""Bytes: a larger tensor that depends on no argument is made anew in each call."""

DIRECT: dict[str, Callable[..., Any]] = {
    "aten.matmul": torch.matmul,
    "aten.mm": torch.mm,
    "aten.bmm": torch.bmm,
    "aten.linear": F.linear,
    "aten.silu": torch._C._nn.silu,
    "aten.gelu": torch._C._nn.gelu,
    "aten.relu": torch.relu,
    "aten.tanh": torch.tanh,
    "aten.exp": torch.exp,
    "aten.neg": torch.neg,
    "aten.rms_norm": torch.rms_norm,
    "aten.layer_norm": torch.layer_norm,
    "aten.softmax.int": torch.softmax,
    "aten.rsqrt": torch.rsqrt,
    "aten.add.Tensor": torch.add,
    "aten.sub.Tensor": torch.sub,
    "aten.mul.Tensor": torch.mul,
    "aten.div.Tensor": torch.div,
    "aten.view": torch.Tensor.view,
    "aten.reshape": torch.Tensor.reshape,
    "aten.transpose.int": torch.transpose,
    "aten.permute": torch.permute,
    "aten.t": torch.t,
    "aten.unsqueeze": torch.unsqueeze,
    "aten.flatten.using_ints": torch.flatten,
    "aten.cat": torch.cat,
    "aten.scaled_dot_product_attention": F.scaled_dot_product_attention,
}
"""The same operators by Python bindings that cost less to call. Arguments are those of the schema, in its order."""


class Carried(Protocol):
    """A plan that is carried out on this rank's block; ``in_place``: in the block's own storage."""

    @property
    def plan(self) -> Plan: ...

    @property
    def in_place(self) -> bool: ...

    def __call__(self, block: torch.Tensor) -> torch.Tensor: ...

    def shape(self) -> tuple[int, ...]: ...


Carry = Callable[[Plan, bool], Carried]
"""What makes a plan ready; told whether the block may be overwritten."""


class Transfer:
    """A plan that this rank carries out; made ready at the first use, by all ranks alike."""

    def __init__(self, plan: Plan, team: Team, in_place: bool = False) -> None:
        self.plan, self.team = plan, team
        self._alone = [s.kind for s in plan.steps] == ["all_reduce"]
        self.in_place = in_place and self._alone
        self._ready: ReadyPlan | None = None
        self._direct: AllReduce | None = None

    def __call__(self, block: torch.Tensor) -> torch.Tensor:
        found = self._ready
        if found is None or found.token is not groups.token():
            found = self._ready = ready(self.plan, self.team)
            self._direct = None
        if not self._alone or not block.is_contiguous():
            return found.run(block, True)
        if not self.in_place:
            block = block.clone()
        direct = self._direct
        if direct is None or record.recording():
            return self._first(found, block)
        if found.line is not None:
            turns.begin(found.line, found)
        try:
            dist.all_reduce(block, group=direct.cross.group.handle)
        except RuntimeError as error:
            turns.leave()
            raise faults.lost(found, 0, error) from error
        turns.leave()
        return block

    def _first(self, found: ReadyPlan, block: torch.Tensor) -> torch.Tensor:
        """Over the block itself; notes whether the backend's own collective did it, to call that straight next time."""
        result = found.start(block, block, None).wait()
        way = found.steps()[0]
        if isinstance(way, AllReduce) and way.by_backend(block) and agreement.mode() != "always":
            self._direct = way
        return result

    def shape(self) -> tuple[int, ...]:
        """The shape of this rank's block afterwards."""
        return self.plan.target.local_shape(self.team.logical(torch.distributed.get_rank()))


@frozen(eq=False)
class _Kept:
    """A plan that works in place, carried out on a copy."""

    there: Carried
    in_place = False

    @property
    def plan(self) -> Plan:
        return self.there.plan

    def __call__(self, block: torch.Tensor) -> torch.Tensor:
        return self.there(block.clone())

    def shape(self) -> tuple[int, ...]:
        return self.there.shape()


class _Carried(torch.autograd.Function):
    """A move: ``forward`` carries the value, ``backward`` its gradient. What comes back through the gradient, in a
    second derivative, changes the value as the value itself would change, and goes the way that the value went."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, there: Carried | None, back: Carried | None) -> torch.Tensor:
        ctx.there, ctx.back = there, back
        if there is None:
            return x.view_as(x)
        if there.in_place:
            ctx.mark_dirty(x)
        return there(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        back: Carried | None = ctx.back
        if torch.is_grad_enabled() and grad.requires_grad:
            there: Carried | None = ctx.there
            again = _Kept(there) if there is not None and there.in_place else there
            return _Carried.apply(grad.contiguous(), back, again), None, None  # type: ignore[no-untyped-call]
        return grad if back is None else back(grad.contiguous()), None, None


_carriers: WeakValueDictionary[int, Carrier] = WeakValueDictionary()
_numbers = count()


class Carrier:
    """A move of a local program, as a function of the block."""

    def __init__(self, made: Move, carry: Carry, in_place: bool) -> None:
        self.there = carry(made.forward, in_place) if made.forward and made.forward.steps else None
        self.back = carry(made.backward, False) if made.backward and made.backward.steps else None
        self.number = next(_numbers)
        _carriers[self.number] = self

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if torch.compiler.is_compiling():
            opaque: torch.Tensor = torch.ops.shardlang.carry(x, self.number)
            return opaque
        if x.requires_grad and torch.is_grad_enabled():
            carried: torch.Tensor = _Carried.apply(x, self.there, self.back)  # type: ignore[no-untyped-call]  # torch leaves apply untyped
            return carried
        return x if self.there is None else self.there(x)


@torch.library.custom_op("shardlang::carry", mutates_args=())
def _carry(x: torch.Tensor, number: int) -> torch.Tensor:
    there = _carriers[number].there
    return x.clone() if there is None else there(x.clone() if there.in_place else x)


@_carry.register_fake
def _(x: torch.Tensor, number: int) -> torch.Tensor:
    there = _carriers[number].there
    return torch.empty_like(x) if there is None else x.new_empty(there.shape())


@torch.library.custom_op("shardlang::carry_back", mutates_args=())
def _carry_back(grad: torch.Tensor, number: int) -> torch.Tensor:
    back = _carriers[number].back
    return grad.clone() if back is None else back(grad.contiguous())


@_carry_back.register_fake
def _(grad: torch.Tensor, number: int) -> torch.Tensor:
    back = _carriers[number].back
    return torch.empty_like(grad) if back is None else grad.new_empty(back.shape())


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.number = inputs[1]


def _backward(ctx: Any, grad: torch.Tensor) -> Any:
    return torch.ops.shardlang.carry_back(grad, ctx.number), None


_carry.register_autograd(_backward, setup_context=_setup)


class Mask:
    """A dropout mask of a local program: this rank's block, by seed and global index."""

    def __init__(self, made: Draw, rank: int, number: int, team: Team) -> None:
        self.made, self.rank, self.place, self.device = made, rank, number, team.device
        self.number = next(_numbers)
        _masks[self.number] = self

    def __call__(self, seed: int | torch.Tensor) -> torch.Tensor:
        if torch.compiler.is_compiling():
            opaque: torch.Tensor = torch.ops.shardlang.mask(seed, self.number)
            return opaque
        return drawn(self.made, self.rank, int(seed) + self.place).to(self.device)


_masks: WeakValueDictionary[int, Mask] = WeakValueDictionary()


@torch.library.custom_op("shardlang::mask", mutates_args=())
def _mask(seed: torch.Tensor, number: int) -> torch.Tensor:
    return _masks[number](seed)


@_mask.register_fake
def _(seed: torch.Tensor, number: int) -> torch.Tensor:
    mask = _masks[number]
    return torch.empty(mask.made.layout.local_shape(mask.rank), dtype=mask.made.dtype, device=mask.device)


def function_for(
    program: LocalProgram,
    rank: int,
    team: Team,
    carry: Carry | None = None,
    calls: Sequence[Callable[..., tuple[torch.Tensor, ...]]] = (),
    moved: Callable[[Move], Callable[[torch.Tensor], torch.Tensor] | None] = lambda _: None,
) -> Callable[..., tuple[torch.Tensor, ...]]:
    """The program of the mesh's ``rank``: local blocks of the arguments (and a seed, if it draws) in, results' out.

    ``carry`` makes its plans ready; by default they run on ``team``'s process groups. ``calls`` make its inner calls.
    ``moved`` gives a function for a move where it has one.
    """
    make: Carry = carry or (lambda plan, in_place: Transfer(plan, team, in_place))
    space: dict[str, Any] = {}
    names: dict[fx.Node, str] = {}
    lines: list[str] = []
    parameters = [n.name for n in program.graph.nodes if n.op == "placeholder"]

    def text(argument: Any) -> str:
        if isinstance(argument, fx.Node):
            return names[argument]
        if isinstance(argument, list | tuple):
            inside = ", ".join(map(text, argument))
            return f"[{inside}]" if isinstance(argument, list) else f"({inside},)"
        if argument is None or type(argument) in (int, bool, str):
            return repr(argument)
        name = f"_c{len(space)}"
        space[name] = argument
        return name

    last = _last_uses(program.graph)
    known = _folded(program, rank, team)
    for node in program.graph.nodes:
        names[node] = node.name
        if node.op == "placeholder":
            continue
        if node in known:
            names[node] = text(known[node])
            continue
        if node.op == "output":
            blocks = [f"{text(n)}.clone()" if n in known else text(n) for n in node.args[0]]
            lines.append(f"return ({''.join(f'{b}, ' for b in blocks)})")
            continue
        called = f"_f_{node.name}"
        arguments = [text(a) for a in node.args] + [f"{k}={text(v)}" for k, v in node.kwargs.items()]
        if node.target is move:
            one = program.moves[node.args[1]]
            space[called] = moved(one) or Carrier(one, make, _fresh(node.args[0]))
            arguments = arguments[:1]
        elif node.target is draw:
            space[called] = Mask(program.draws[node.args[0]], rank, node.args[0], team)
            arguments = ["_seed"]
        elif node.target is inner:
            space[called] = calls[node.args[0]]
            arguments = arguments[1:]
        else:
            space[called] = _callable(node)
        freed = [names[n] for n in last.get(node, ()) if n.op == "call_function" and names[n] == n.name]
        lines.append(f"{node.name} = {called}({', '.join(arguments)})" + (f"; del {', '.join(freed)}" if freed else ""))
    if program.draws:
        parameters.append("_seed")
    body = "\n    ".join(lines)
    name = program.name if program.name.isidentifier() else "function"  # a lambda has none
    exec(compile(f"def {name}({', '.join(parameters)}):\n    {body}\n", f"<local {program.name}>", "exec"), space)
    made: Callable[..., tuple[torch.Tensor, ...]] = space[name]
    return made


def _folded(program: LocalProgram, rank: int, team: Team) -> dict[fx.Node, Any]:
    """The values of nodes that depend on no argument: worked out once, unless they are large."""
    known: dict[fx.Node, Any] = {}
    # Not inference tensors, whatever the first call is made under: a later one may save them for its backward.
    with torch.inference_mode(False), torch_tracing.without_modes(), torch.no_grad():
        for node in program.graph.nodes:
            if node.op == "get_attr":
                known[node] = program.constants[str(node.target)].to(team.device)
            elif node.target is rank_value:
                known[node] = program.rank_values[node.args[0]](rank)
            elif isinstance(node.target, torch._ops.OpOverload) and all(n in known for n in node.all_input_nodes):
                if node.target._schema.is_mutable:
                    continue
                args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda n: known[n])
                value = node.target(*args, **kwargs)
                if isinstance(value, torch.Tensor) and value.nbytes <= FOLD:
                    known[node] = value
    return known


def _callable(node: fx.Node) -> Callable[..., Any]:
    target: Any = node.target
    if isinstance(target, torch._ops.OpOverload) and not node.kwargs:
        return DIRECT.get(operator_name(target), target)
    found: Callable[..., Any] = target
    return found


def _fresh(node: Any) -> bool:
    """Is the value new storage that only the move reads?"""
    if not isinstance(node, fx.Node) or len(node.users) != 1 or not isinstance(node.target, torch._ops.OpOverload):
        return False
    return ".".join(operator_name(node.target).split(".")[:2]) in FRESH


def _last_uses(graph: fx.Graph) -> dict[fx.Node, list[fx.Node]]:
    """After which node a value is no more needed."""
    seen: set[fx.Node] = set()
    last: dict[fx.Node, list[fx.Node]] = {}
    for node in reversed(graph.nodes):
        for used in node.all_input_nodes:
            if used not in seen:
                seen.add(used)
                last.setdefault(node, []).append(used)
    return last
