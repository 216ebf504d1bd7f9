"""The state of a training run: blocks of parameters, buffers and optimizer state under names, and plain objects.

Names are those of ``torch.distributed.checkpoint.state_dict``, flattened: ``model.<name>``,
``optimizer.state.<name>.<what>``, ``optimizer.param_groups.<i>.<option>`` and ``extra.<name>``. Nothing is gathered or
copied: a state holds the tensors themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from attrs import field, frozen
from torch import nn
from torch.distributed.tensor import DTensor

from shardlang.diagnostics import ShardlangError, sl07_runtime, sl07_state
from shardlang.layout import Layout
from shardlang.lower import placements, torch_private
from shardlang.mesh import Axis, Mesh
from shardlang.runtime.handle import ShardTensor

STATE, GROUPS, EXTRA = "optimizer.state.", "optimizer.param_groups.", "extra."
WRAPPERS = ("_checkpoint_wrapped_module.", "_orig_mod.")
"""What activation checkpointing and ``torch.compile`` put into names."""


@frozen(eq=False)
class Block:
    """This rank's block of a tensor. ``rank`` is its number in the layout's mesh."""

    local: torch.Tensor
    layout: Layout
    rank: int


@frozen(eq=False)
class State:
    """Blocks and objects by name. ``ranks`` are torch's ranks that hold the state together, this one among them."""

    blocks: dict[str, Block]
    objects: dict[str, Any]
    ranks: tuple[int, ...]
    paths: dict[str, tuple[Any, ...]]
    """Where each name belongs in nested dicts and lists, as ``torch.distributed.checkpoint`` keeps it."""
    model: nn.Module | None = None
    optimizer: torch.optim.Optimizer | None = None
    parameters: Mapping[str, torch.Tensor] = field(factory=dict)
    """The model's parameters by name; a tied one under its first."""
    aliases: Mapping[str, tuple[str, ...]] = field(factory=dict)
    """All names of each of the model's tensors, by the first; a tied one has several."""
    scopes: tuple[str, ...] = ("",)
    """Beginnings of the names that are the state's own: a checkpoint has no others that begin so."""
    by_value: tuple[str, ...] = ()
    """Beginnings of the names that are not filled in place but taken as they were saved."""


def state_dict(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    extra: Mapping[str, Any] | None = None,
    layouts: Mapping[str, Layout] | None = None,
) -> State:
    """The state of a model, of its optimizer, and of what else a run goes on with (``extra``: the same on all ranks).

    A DTensor says its layout itself, unless ``layouts`` has one under its name (what torch's placements cannot say);
    a plain tensor is whole, the same on every rank. No rank talks to another.

    Raises ShardlangError: SL0703 for a block that its layout does not give this rank, SL0757 for a pending value,
    SL0758 and SL0761 for optimizer state that belongs to nothing, SL0771 on a rank that is not on the mesh.
    """
    layouts = layouts or {}
    tensors, objects, aliases = _entries(model)
    home = _Home([t for t in tensors.values() if isinstance(t, DTensor)])
    parameters = {name: t for name, t in tensors.items() if isinstance(t, nn.Parameter)}
    scopes = ("model.",) if optimizer is None else ("model.", STATE)
    state = State({}, {}, home.ranks, {}, model, optimizer, parameters, aliases, scopes, (GROUPS, EXTRA))
    for name, tensor in tensors.items():
        _add(state, ("model", name), home.block(f"model.{name}", tensor, layouts.get(name)))
    for name, value in objects.items():
        _add(state, ("model", name), value)
    if optimizer is not None:
        _optimizer_state(state, home, layouts)
    for name, value in (extra or {}).items():
        whole = isinstance(value, torch.Tensor | ShardTensor)
        _add(state, ("extra", name), home.block(name, value, None) if whole else value)
    return state


def state_of(tensors: Mapping[str, Any]) -> State:
    """A state of tensors (DTensor, ``ShardTensor``, or plain: whole, the same on every rank) and objects by name."""
    held = [t for t in tensors.values() if isinstance(t, DTensor | ShardTensor)]
    home = _Home(held)
    state = State({}, {}, home.ranks, {})
    for name, value in tensors.items():
        tensor = isinstance(value, torch.Tensor | ShardTensor)
        _add(state, (name,), home.block(name, value, None) if tensor else value)
    return state


def _entries(
    model: nn.Module,
) -> tuple[dict[str, torch.Tensor], dict[str, Any], dict[str, tuple[str, ...]]]:
    """Parameters and persistent buffers, each once; what modules add of their own; all names of each tensor."""
    tensors: dict[str, torch.Tensor] = {}
    objects: dict[str, Any] = {}
    aliases: dict[str, tuple[str, ...]] = {}
    first: dict[int, str] = {}
    for name, value in model.state_dict(keep_vars=True).items():
        for wrapper in WRAPPERS:
            name = name.replace(wrapper, "")
        if not isinstance(value, torch.Tensor):
            objects[name] = value
            continue
        home = first.setdefault(id(value), name)
        tensors[home] = value
        aliases[home] = (*aliases.get(home, ()), name)
    return tensors, objects, aliases


def _add(state: State, path: tuple[Any, ...], value: Any) -> None:
    key = ".".join(map(str, path))
    state.paths[key] = path
    if isinstance(value, Block):
        state.blocks[key] = value
    else:
        state.objects[key] = value


class _Home:
    """The ranks of a state, and the mesh on which a plain tensor is whole."""

    def __init__(self, tensors: Sequence[DTensor | ShardTensor]) -> None:
        meshes = {id(t.device_mesh): t.device_mesh for t in tensors}
        teams = {placements.ranks_of(m) for m in meshes.values()}
        launched = dist.is_available() and dist.is_initialized()
        self.me = dist.get_rank() if launched else 0
        if len(teams) == 1:
            torch_mesh = next(iter(meshes.values()))
            self.ranks = teams.pop()
            self._mesh = placements.mesh_of(torch_mesh)
        else:
            self.ranks = tuple(range(dist.get_world_size())) if launched else (0,)
            self._mesh = Mesh("launch", (Axis("rank", len(self.ranks)),))
        self._index(self.ranks)

    def _index(self, ranks: tuple[int, ...]) -> int:
        """This rank's place among some. Raises SL0771 where it has none."""
        if self.me not in ranks:
            raise ShardlangError(sl07_state.not_a_holder(self.me, ranks))
        return ranks.index(self.me)

    def block(self, key: str, tensor: torch.Tensor | ShardTensor, layout: Layout | None) -> Block:
        """A tensor as this rank's block of it."""
        if isinstance(tensor, ShardTensor):
            local, ranks = tensor.block.detach(), placements.ranks_of(tensor.device_mesh)
            layout = tensor.layout
        elif not isinstance(tensor, DTensor):
            local, ranks = tensor.detach(), self.ranks
        else:
            local, ranks = torch_private.block_of(tensor).detach(), placements.ranks_of(tensor.device_mesh)
            if layout is None:
                mesh = placements.mesh_of(tensor.device_mesh)
                layout = placements.layout_of(mesh, tuple(tensor.placements), tuple(tensor.shape))
        layout = layout or Layout.whole(self._mesh, tuple(tensor.shape))
        return checked(key, Block(local, layout, layout.mesh.first_rank + self._index(ranks)))


def checked(key: str, block: Block) -> Block:
    """The block itself. Raises SL0757 where it is pending and SL0703 where its layout gives the rank another shape."""
    if block.layout.owed():
        raise ShardlangError(sl07_state.pending_state(key, str(block.layout)))
    due = block.layout.local_shape(block.rank)
    if tuple(block.local.shape) != due:
        raise ShardlangError(
            sl07_runtime.block_of_wrong_size(str(block.layout), tuple(block.local.shape), due, block.rank)
        )
    return block


def _optimizer_state(state: State, home: _Home, layouts: Mapping[str, Layout]) -> None:
    optimizer = state.optimizer
    assert optimizer is not None
    names = {id(tensor): name for name, tensor in state.parameters.items()}
    for i, group in enumerate(optimizer.param_groups):
        for option, value in group.items():
            path: tuple[Any, ...] = ("optimizer", "param_groups", i, option)
            if option == "params":
                _add(state, path, [_name_of(p, names) for p in value])
            else:
                _add(state, path, home.block(option, value, None) if isinstance(value, torch.Tensor) else value)
    for parameter, name, entries in _per_parameter(optimizer, names):
        for what, value in entries.items():
            path = ("optimizer", "state", name, what)
            if isinstance(value, torch.Tensor):
                _add(state, path, _of_parameter(state, home, name, what, value, parameter, layouts))
            else:
                _add(state, path, value)


def _name_of(parameter: torch.Tensor, names: Mapping[int, str]) -> str:
    name = names.get(id(parameter))
    if name is None:
        raise ShardlangError(sl07_state.foreign_parameter(tuple(parameter.shape)))
    return name


def _per_parameter(
    optimizer: torch.optim.Optimizer, names: Mapping[int, str]
) -> Iterator[tuple[torch.Tensor, str, Mapping[str, Any]]]:
    for parameter, entries in optimizer.state.items():
        yield parameter, _name_of(parameter, names), entries


def _of_parameter(
    state: State,
    home: _Home,
    name: str,
    what: str,
    value: torch.Tensor,
    parameter: torch.Tensor,
    layouts: Mapping[str, Layout],
) -> Block:
    """Optimizer state lies as its parameter does where it has its shape, and is whole where it is a scalar."""
    key = f"optimizer.state.{name}.{what}"
    own = state.blocks[f"model.{name}"]
    if isinstance(value, DTensor):
        return home.block(key, value, own.layout if value.shape == parameter.shape else None)
    if value.shape == own.local.shape and value.dim():
        return checked(key, Block(value.detach(), own.layout, own.rank))
    if value.numel() == 1:
        return home.block(key, value, None)
    raise ShardlangError(sl07_state.unknown_state(name, what, tuple(value.shape), tuple(parameter.shape)))


__all__ = ["EXTRA", "GROUPS", "STATE", "Block", "State", "checked", "state_dict", "state_of"]
