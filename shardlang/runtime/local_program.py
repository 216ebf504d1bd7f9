"""A local program on ``torch.distributed``: one ``fx.GraphModule`` for this rank, with nothing in it but operators on
local blocks and the collectives of its moves."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx, nn

from shardlang.plan.plan import Plan
from shardlang.runtime.distributed import ReadyPlan, ready
from shardlang.runtime.groups import Team
from shardlang.runtime.lockstep import drawn
from shardlang.trace.program import Draw, LocalProgram, Move, draw, move, rank_value


class _Carried(torch.autograd.Function):
    """A move with its plans made ready: ``forward`` carries the value, ``backward`` its gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, there: ReadyPlan | None, back: ReadyPlan | None) -> torch.Tensor:
        ctx.back = back
        return x.view_as(x) if there is None else there.start(x, None, None).wait()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        back: ReadyPlan | None = ctx.back
        return grad if back is None else back.start(grad.contiguous(), None, None).wait(), None, None


class MoveModule(nn.Module):
    """A move of a local program. Its plans are made ready at the first use, by all ranks alike."""

    def __init__(self, made: Move, team: Team) -> None:
        super().__init__()
        self.made, self.team = made, team
        self._ready: tuple[ReadyPlan | None, ReadyPlan | None] | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The block after the move."""
        if self._ready is None:
            self._ready = (self._make(self.made.forward), self._make(self.made.backward))
        moved: torch.Tensor = _Carried.apply(x, *self._ready)  # type: ignore[no-untyped-call]  # torch leaves apply untyped
        return moved

    def _make(self, plan: Plan | None) -> ReadyPlan | None:
        return ready(plan, self.team) if plan is not None and plan.steps else None


class DrawModule(nn.Module):
    """A dropout mask of a local program: this rank's block, by seed and global index."""

    def __init__(self, made: Draw, rank: int, number: int, team: Team) -> None:
        super().__init__()
        self.made, self.rank, self.number, self.team = made, rank, number, team

    def forward(self, seed: int) -> torch.Tensor:
        """The mask of one call."""
        return drawn(self.made, self.rank, seed + self.number).to(self.team.device)


def module_for(program: LocalProgram, rank: int, team: Team) -> fx.GraphModule:
    """The program of the mesh's ``rank`` as a module: local blocks of the arguments in, those of the results out."""
    root = nn.Module()
    graph = fx.Graph()
    known: dict[fx.Node, Any] = {}
    seed: fx.Node | None = None
    for node in program.graph.nodes:
        if program.draws and seed is None and node.op != "placeholder":
            seed = graph.placeholder("seed")
        if node.target is move:
            name = f"move_{node.args[1]}"
            if not hasattr(root, name):
                root.add_module(name, MoveModule(program.moves[node.args[1]], team))
            known[node] = graph.call_module(name, (known[node.args[0]],))
        elif node.target is draw:
            number = node.args[0]
            root.add_module(f"draw_{number}", DrawModule(program.draws[number], rank, number, team))
            known[node] = graph.call_module(f"draw_{number}", (seed,))
        elif node.target is rank_value:
            known[node] = program.rank_values[node.args[0]](rank)
        elif node.op == "get_attr":
            root.register_buffer(node.target, program.constants[node.target].to(team.device), persistent=False)
            known[node] = graph.get_attr(node.target)
        elif node.op == "output":
            graph.output(fx.node.map_arg(node.args[0], lambda n: known[n]))
        else:
            known[node] = graph.node_copy(node, lambda n: known[n])
            known[node].meta.clear()
    return fx.GraphModule(root, graph, class_name=program.name)
