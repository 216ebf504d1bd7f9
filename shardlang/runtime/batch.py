"""The global batch cut to the ranks, as the call of the model itself declares."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from shardlang.check.bind import Operand, bind_all
from shardlang.diagnostics import ShardlangError, sl06_calls
from shardlang.layout import Dim, Factor, Layout
from shardlang.lower import torch_private
from shardlang.lower.model import LoweredModel, layout_on_leaves
from shardlang.lower.placements import placements_of
from shardlang.runtime.applied import applied_to
from shardlang.runtime.apply import own_block


def place(model: nn.Module, batch: Any) -> Any:
    """The global batch of a step, placed for a model that ``program.apply`` placed; see ``place_batch``."""
    applied = applied_to(model)
    if applied is None:
        raise ShardlangError(sl06_calls.not_applied(type(model).__name__))
    return place_batch(applied.lowered, batch, applied.mesh)


def place_batch(lowered: LoweredModel, batch: Any, mesh: DeviceMesh) -> Any:
    """The batch with a DTensor in the place of each tensor. Every rank gives the whole batch; nothing is sent.

    A tensor that is named like an argument of the model's call, or stands in its position, is placed as that. Another
    of the same shape as one of those is placed alike; one whose first dim is as long as the first argument's is split
    over the same axes there; any other is whole.
    """
    names = _named(batch)
    line = next((line for path, line in lowered.calls if path == ""), None)
    args = {a.name: a for a in line.args if a.spec is not None} if line is not None else {}
    positions = list(args)
    operands: list[Operand] = []
    for i, (name, value) in enumerate(names.items()):
        key = name if isinstance(name, str) else positions[i] if i < len(positions) else None
        if key in args and isinstance(value, Tensor):
            spec = args[key].spec
            assert spec is not None
            operands.append(Operand(key, spec, tuple(value.shape), lowered.declared))
    layouts = [layout_on_leaves(layout, lowered.mesh) for layout in bind_all(operands, dict(lowered.sizes))]
    known = {layout.shape: layout for layout in reversed(layouts)}
    first = layouts[0] if layouts else None

    def placed(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        layout = known.get(tuple(value.shape)) or _alike(first, tuple(value.shape), lowered)
        placements = placements_of(layout)
        if placements is None:
            span = line.span if line is not None else None
            raise ShardlangError(sl06_calls.no_placement(span, "the batch", "", str(layout)))
        stride = torch_private.contiguous_stride(layout.shape)
        spec = torch_private.dtensor_spec(mesh, placements, layout.shape, stride, value.dtype)
        return torch_private.dtensor_of(own_block(value, layout, mesh), spec, requires_grad=False)

    return _rebuilt(batch, {name: placed(value) for name, value in names.items()})


def _alike(first: Layout | None, shape: tuple[int, ...], lowered: LoweredModel) -> Layout:
    whole = Layout.whole(lowered.mesh, shape)
    if first is None or not shape or not first.shape or shape[0] != first.shape[0]:
        return whole
    return Layout(lowered.mesh, (first.dims[0], *(Dim((Factor(n),)) for n in shape[1:])))


def _named(batch: Any) -> dict[Any, Any]:
    """The parts of a batch by name or position; a single tensor is at position 0."""
    if isinstance(batch, Mapping):
        return dict(batch)
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        return {f.name: getattr(batch, f.name) for f in dataclasses.fields(batch)}
    if isinstance(batch, tuple | list):
        return dict(enumerate(batch))
    return {0: batch}


def _rebuilt(batch: Any, parts: dict[Any, Any]) -> Any:
    if isinstance(batch, Mapping):
        return type(batch)(parts)  # type: ignore[call-arg]  # mappings of batches are dicts
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        return dataclasses.replace(batch, **parts)
    if isinstance(batch, tuple | list):
        values = list(parts.values())
        return type(batch)(*values) if hasattr(batch, "_fields") else type(batch)(values)
    return parts[0]
