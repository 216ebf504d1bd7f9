"""Optimizer state that a checkpoint has and an optimizer has not yet, and the options of its parameter groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from attrs import frozen
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.tensor import DTensor

from shardlang.diagnostics import ShardlangError, sl07_state
from shardlang.layout import Layout
from shardlang.lower import torch_private
from shardlang.runtime.state import GROUPS, STATE, Block, State


@frozen(eq=False)
class Made:
    """State made for a parameter: ``value`` is what the optimizer gets; ``block`` this rank's block of a tensor."""

    parameter: str
    what: str
    value: Any
    block: Block | None


def missing_state(state: State, metadata: Metadata) -> dict[str, Made]:
    """Zeros for each entry of the checkpoint that a parameter of the optimizer has no state for yet.

    Raises SL0758 where a tensor is neither like its parameter nor a scalar.
    """
    made: dict[str, Made] = {}
    if state.optimizer is None:
        return made
    owners = {id(p): group for group in state.optimizer.param_groups for p in group["params"]}
    for key, entry in metadata.state_dict_metadata.items():
        if not key.startswith(STATE) or key in state.blocks or key in state.objects:
            continue
        name, _, what = key.removeprefix(STATE).rpartition(".")
        parameter = state.parameters.get(name)
        if parameter is None or id(parameter) not in owners:
            continue
        if not isinstance(entry, TensorStorageMetadata):
            made[key] = Made(name, what, None, None)
            continue
        made[key] = _tensor(state, name, what, entry, owners[id(parameter)])
    return made


def _tensor(state: State, name: str, what: str, entry: TensorStorageMetadata, group: Mapping[str, Any]) -> Made:
    parameter, own = state.parameters[name], state.blocks[f"model.{name}"]
    dtype, shape = entry.properties.dtype, tuple(entry.size)
    if shape == own.layout.shape and what != "step":  # a step count may look like a scalar parameter
        value = torch.zeros_like(parameter, dtype=dtype, requires_grad=False)
        local = torch_private.block_of(value) if isinstance(value, DTensor) else value
        return Made(name, what, value, Block(local, own.layout, own.rank))
    if entry.size.numel() != 1:
        raise ShardlangError(sl07_state.unknown_state(name, what, shape, own.layout.shape))
    # Torch keeps step counts on the host unless the step runs in a captured graph or a fused kernel.
    device = own.local.device if group.get("capturable") or group.get("fused") else torch.device("cpu")
    scalar = torch.zeros(shape, dtype=dtype, device=device)
    return Made(name, what, scalar, Block(scalar, Layout.whole(own.layout.mesh, shape), own.rank))


def put_state(state: State, made: Mapping[str, Made], objects: Mapping[str, Any]) -> None:
    """Gives the optimizer what was made for it, and the objects of ``optimizer.state``, by name."""
    if state.optimizer is None:
        return
    for key, one in made.items():
        value = one.value if one.block is not None else objects[key]
        state.optimizer.state[state.parameters[one.parameter]][one.what] = value
    for key in state.objects:
        if key.startswith(STATE) and key in objects:
            name, _, what = key.removeprefix(STATE).rpartition(".")
            state.optimizer.state[state.parameters[name]][what] = objects[key]


def options_for(state: State, saved: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The options of each of the optimizer's groups, from entries ``optimizer.param_groups.<i>.<option>``.

    Groups are matched by the names of their parameters, so that they may be divided otherwise than when they were
    saved. Options that only one side has stay as they are. Raises SL0762 where the saved groups of a group's parameters
    differ, or there are none.
    """
    if state.optimizer is None:
        return []
    groups: dict[str, dict[str, Any]] = {}
    for key, value in saved.items():
        index, _, option = key.removeprefix(GROUPS).partition(".")
        groups.setdefault(index, {})[option] = value
    home = {name: group for group in groups.values() for name in group.get("params", ())}
    found: list[dict[str, Any]] = []
    for i, group in enumerate(state.optimizer.param_groups):
        names: list[str] = state.objects[f"{GROUPS}{i}.params"]
        theirs = [home[n] for n in names if n in home]
        if len(theirs) != len(names):
            raise ShardlangError(sl07_state.groups_differ([n for n in names if n not in home], "lr"))
        options: dict[str, Any] = {}
        for option in group:
            values = [g[option] for g in theirs if option in g]
            if option == "params" or not values:
                continue
            if any(not _same(v, values[0]) for v in values):
                raise ShardlangError(sl07_state.groups_differ(names, option))
            options[option] = values[0]
        found.append(options)
    return found


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor) or isinstance(right, torch.Tensor):
        return bool(torch.equal(torch.as_tensor(left), torch.as_tensor(right)))
    return bool(left == right)


def put_options(state: State, options: list[dict[str, Any]]) -> None:
    """Sets the options; one that is a tensor keeps its identity, as a captured step needs it."""
    if state.optimizer is None:
        return
    for group, values in zip(state.optimizer.param_groups, options, strict=True):
        for option, value in values.items():
            if isinstance(group[option], torch.Tensor):
                group[option].copy_(torch.as_tensor(value))
            else:
                group[option] = value


__all__ = ["Made", "missing_state", "options_for", "put_options", "put_state"]
