"""A trainer's weights into a server's model: other layouts, another mesh, other ranks, in one launch.

The plan is made first and is the same on every rank; what runs is the plan, round by round, through flat buffers of
bounded size. No tensor is gathered, and values arrive to the bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from attrs import evolve, frozen
from torch import nn

from shardlang.check.model import ModelLayouts
from shardlang.check.program import Model
from shardlang.diagnostics import Diagnostic, ShardlangError, sl06_calls, sl07_state
from shardlang.dtypes import DTYPES
from shardlang.layout import Layout, Runs
from shardlang.lower.model import on_leaves
from shardlang.mesh import Mesh
from shardlang.runtime import blocks, collectives
from shardlang.runtime.checkpoint import spec_name
from shardlang.runtime.control import Council, Failure
from shardlang.runtime.faults import told_apart
from shardlang.runtime.groups import Group, group_of
from shardlang.runtime.state import Block, State, state_dict
from shardlang.runtime.stored_layouts import stored_layouts
from shardlang.runtime.transfer_plan import Part, Piece, TransferPlan, kept, plan_transfer, receives, sends

STAGING = 64 << 20
"""Bytes that a rank packs and receives at once, unless a caller says otherwise."""

Facts = dict[str, tuple[str, Layout]]
"""For each tensor of one side: its dtype and layout."""


@frozen
class _Side:
    facts: Facts
    ranks: tuple[int, ...]


def transfer(
    source: nn.Module | State | None,
    target: nn.Module | State | None,
    *,
    staging: int = STAGING,
    show: Callable[[str], Any] | None = None,
    declared: tuple[Model, Model] | None = None,
) -> TransferPlan:
    """Copies the parameters and buffers of one placed model into another, whose names and shapes are the same.

    Every rank of the launch calls it, a rank that is not in the mesh of a side with ``None`` for it. ``staging`` bounds
    in bytes what a rank packs and receives at once. ``show`` gets the plan as text on the first rank before anything
    moves. ``declared`` are the models that the sides are to be, as ``program.transfer`` knows them. Returns the plan.

    Raises ShardlangError, the same on every rank: SL0767 where names, shapes or dtypes differ, SL0768 where a side is
    nowhere, SL0763 and SL0702 where a rank does not come.
    """
    council = Council(tuple(range(dist.get_world_size())) if dist.is_initialized() else (0,), "planning a transfer")
    states: list[State | None] = []
    report: Any
    try:
        for side in (source, target):
            states.append(side if side is None or isinstance(side, State) else state_dict(side))
        report = tuple(
            None if s is None else _side(s, m) for s, m in zip(states, declared or (None, None), strict=True)
        )
    except ShardlangError as error:
        report = Failure(error.diagnostics)
    give, take = council.decide(report, _agreed)
    itemsize = {name: getattr(torch, _torch_name(dtype)).itemsize for name, (dtype, _) in give.items()}
    plan = plan_transfer({n: (itemsize[n], layout, take[n][1]) for n, (_, layout) in give.items()}, staging)
    if show is not None and council.index == 0:
        show(str(plan))
    run_transfer(plan, *(_blocks(s) for s in states))
    return plan


def _torch_name(dtype: str) -> str:
    return DTYPES[dtype].torch_name if dtype in DTYPES else dtype


def _blocks(state: State | None) -> dict[str, Block]:
    """The tensors of a model by name; of a state without a model, all."""
    if state is None:
        return {}
    if state.model is None:
        return state.blocks
    return {k: b for k, b in state.blocks.items() if k.startswith("model.")}


def _side(state: State, declared: Model | None = None) -> _Side:
    """What a rank knows of a side. A mesh that does not number its ranks as the launch does is told in its numbers.

    Raises SL0635 where the side is not on the mesh that is declared for it, SL0769 for scattered ranks.
    """
    facts: Facts = {}
    for name, block in _blocks(state).items():
        mesh = block.layout.mesh
        first = state.ranks[0]
        if tuple(range(first, first + mesh.size)) != state.ranks:
            raise ShardlangError(sl07_state.scattered_mesh(mesh.name, state.ranks))
        placed = block.layout if mesh.first_rank == first else evolve(block.layout, mesh=evolve(mesh, first_rank=first))
        if declared is not None and not _same_mesh(placed.mesh, on_leaves(declared.mesh)):
            raise ShardlangError(sl06_calls.mesh_differs(declared.name, str(declared.mesh), str(placed.mesh)))
        facts[name] = (spec_name(block.local.dtype), placed)
    return _Side(facts, state.ranks)


def _same_mesh(one: Mesh, other: Mesh) -> bool:
    axes = [[(a.name, a.size) for a in m.leaves()] for m in (one, other)]
    return axes[0] == axes[1] and one.first_rank == other.first_rank


def declared_plan(source: ModelLayouts, target: ModelLayouts, module: nn.Module | None, staging: int) -> TransferPlan:
    """The plan of a declared transfer, before there are ranks; from ``module``, if there is one, the buffers as well.

    ``module`` is the plain model, on the meta device.
    """
    sides = [stored_layouts(one) for one in (source, target)]
    meshes = [on_leaves(one.mesh) for one in (source, target)]
    aliases = {n: names[0] for names in source.tied for n in names}
    tensors: dict[str, tuple[int, Layout, Layout]] = {}
    for name, parameter in source.parameters.items():
        if aliases.get(name, name) == name:
            dtype: torch.dtype = getattr(torch, _torch_name(parameter.dtype))
            tensors[f"model.{name}"] = (dtype.itemsize, sides[0][name], sides[1][name])
    if module is not None:
        for name, value in module.state_dict().items():
            if isinstance(value, torch.Tensor) and name not in source.parameters:
                whole = [Layout.whole(m, tuple(value.shape)) for m in meshes]
                tensors[f"model.{name}"] = (value.itemsize, whole[0], whole[1])
    return plan_transfer(tensors, staging)


def _agreed(reports: list[tuple[_Side | None, _Side | None]]) -> tuple[Facts, Facts]:
    """Both sides, as all of their ranks see them. Raises SL0767, SL0768 and SL0760."""
    found: list[Facts] = []
    for index, word in enumerate(("source", "target")):
        sides = {rank: r[index] for rank, r in enumerate(reports) if r[index] is not None}
        if not sides:
            raise ShardlangError(sl07_state.no_side(word))
        first = next(iter(sides.values()))
        assert first is not None
        for rank, side in sides.items():
            if side != first:
                raise ShardlangError(sl07_state.states_disagree(word, f"rank {rank} has another one"))
        absent = [r for r in first.ranks if r not in sides]
        if absent:
            raise ShardlangError(sl07_state.states_disagree(word, f"rank {absent[0]} of its mesh has none"))
        found.append(first.facts)
    give, take = found
    faults: list[Diagnostic] = []
    for name in sorted({*give, *take}):
        one, other = give.get(name), take.get(name)
        if one is None or other is None or (one[0], one[1].shape) != (other[0], other[1].shape):
            told = [None if f is None else (f[0], f[1].shape) for f in (one, other)]
            faults.append(sl07_state.models_differ(name.removeprefix("model."), *told))
    if faults:
        raise ShardlangError(faults[:8])
    return give, take


def run_transfer(plan: TransferPlan, source: dict[str, Block], target: dict[str, Block]) -> None:
    """Carries out a plan on this rank, which has the blocks of the sides that it is in."""
    rank = dist.get_rank() if dist.is_initialized() else 0
    with torch.no_grad():
        for tensor in plan.tensors:
            for piece in kept(tensor, rank):
                _write(target[tensor.name], piece, _read(source[tensor.name], piece))
        if not plan.rounds or rank not in plan.ranks:
            return
        device = next(iter({**source, **target}.values())).local.device
        for number, parts in enumerate(plan.rounds, 1):
            with told_apart(plan.ranks, f"round {number} of {len(plan.rounds)} of a transfer of weights"):
                _run_round(group_of(plan.ranks, device.type), parts, rank, source, target, device)


def _run_round(
    group: Group,
    parts: tuple[Part, ...],
    rank: int,
    source: dict[str, Block],
    target: dict[str, Block],
    device: torch.device,
) -> None:
    given, gotten = sends(parts, rank), receives(parts, rank)
    packed = pack(given, source, device)
    arrived = torch.empty(sum(p.nbytes for p in gotten), dtype=torch.uint8, device=device)
    send_sizes = [sum(p.nbytes for p in given if p.receiver == r) for r in group.ranks]
    receive_sizes = [sum(p.nbytes for p in gotten if p.sender == r) for r in group.ranks]
    label = collectives.Label("exchange", ("transfer",))
    collectives.all_to_all(group, label, arrived, packed, receive_sizes, send_sizes).wait()
    unpack(gotten, arrived, target)


def pack(pieces: list[Piece], source: dict[str, Block], device: torch.device) -> torch.Tensor:
    """The bytes of pieces, one after the other."""
    packed = torch.empty(sum(p.nbytes for p in pieces), dtype=torch.uint8, device=device)
    at = 0
    for piece in pieces:
        values = _read(source[piece.tensor.name], piece).contiguous()
        packed[at : at + piece.nbytes].copy_(values.reshape(-1).view(torch.uint8))
        at += piece.nbytes
    return packed


def unpack(pieces: list[Piece], arrived: torch.Tensor, target: dict[str, Block]) -> None:
    """Puts the bytes of pieces in their places."""
    at = 0
    for piece in pieces:
        block = target[piece.tensor.name]
        held = arrived[at : at + piece.nbytes]
        if held.storage_offset() % block.local.itemsize:
            held = held.clone()
        _write(block, piece, held.view(block.local.dtype).reshape(blocks.shape_of(piece.runs)))
        at += piece.nbytes


def _selection(block: Block, runs: tuple[Runs, ...]) -> blocks.Selection:
    have = block.layout.runs(block.rank)
    return blocks.select(tuple(block.local.shape), blocks.window(have, runs))


def _read(block: Block, piece: Piece) -> torch.Tensor:
    return blocks.read(block.local, _selection(block, piece.runs))


def _write(block: Block, piece: Piece, values: torch.Tensor) -> None:
    blocks.write(block.local, _selection(block, piece.runs), values)


__all__ = ["STAGING", "declared_plan", "pack", "run_transfer", "transfer", "unpack"]
