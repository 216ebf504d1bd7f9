"""The law for a model: one training step on the ranks of its mesh, every gradient held to one device's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from attrs import frozen
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from shardlang.runtime.applied import applied_to
from shardlang.runtime.batch import place
from shardlang.runtime.loss import whole_value
from shardlang.runtime.observe import Observer, tally
from shardlang.runtime.record import Recorder
from shardlang.runtime.train import Loss, plain_step, training_step

FLOOR = 1e-3
"""A gradient smaller than this share of the model's greatest is held to this share: what rounding leaves of a gradient
that cancels is not a difference."""


@frozen
class Beside:
    """A step on both sides. ``worst`` is the tensor that differs most, ``difference`` by how much, relative to its
    greatest right value; ``gradients`` were compared; ``collectives`` were sent, as a tally in JSON."""

    worst: str
    difference: float
    gradients: int
    shapes: Mapping[str, tuple[int, ...]]
    collectives: tuple[Mapping[str, Any], ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "worst": self.worst,
            "difference": self.difference,
            "gradients": self.gradients,
            "shapes": {name: list(shape) for name, shape in self.shapes.items()},
            "collectives": list(self.collectives),
        }


def step_beside(placed: nn.Module, plain: nn.Module, batch: Any, loss: Loss) -> Beside:
    """A training step of a placed model, without the optimizer, and of the same model on one device.

    Every rank of the model's mesh calls this, with the global batch. Loss, norm and every gradient are compared.
    """
    applied = applied_to(placed)
    assert applied is not None
    with Recorder() as recorder, Observer(applied.lowered.mesh, dist.get_rank()):
        got = training_step(placed, place(placed, batch), loss)
    due = plain_step(plain, batch, loss)
    theirs = dict(plain.named_parameters())
    rights = [p.grad for p in theirs.values() if p.grad is not None and p.numel()]
    greatest = max((float(g.abs().max()) for g in rights), default=0.0)
    found = {
        "the loss": _difference(got[0], due[0], 0.0),
        "the gradient's norm": _difference(whole_value(got[1]), due[1], 0.0),
    }
    gradients = 0
    for name, parameter in placed.named_parameters():
        right = theirs[name]
        if (parameter.grad is None) != (right.grad is None):
            found[f"the gradient of {name}"] = float("inf")
        elif parameter.grad is not None and right.grad is not None and right.numel():
            gradients += 1
            found[f"the gradient of {name}"] = _difference(whole_value(parameter.grad), right.grad, FLOOR * greatest)
    worst = max(found, key=lambda name: found[name])
    return Beside(
        worst,
        found[worst],
        gradients,
        _shapes(batch),
        tuple(t.to_json() for t in tally(recorder.issued, applied.lowered.mesh)),
    )


def _difference(got: Tensor, due: Tensor, floor: float) -> float:
    """The greatest difference over the greatest right value; infinite where something is no number on one side only."""
    got, due = got.detach().double(), due.detach().double()
    apart = torch.where((got == due) | (got.isnan() & due.isnan()), 0.0, (got - due).abs())
    scale = max(float(torch.nan_to_num(due).abs().max()), floor, 1e-30)
    return float(torch.nan_to_num(apart, nan=float("inf")).max()) / scale


def _shapes(batch: Any) -> dict[str, tuple[int, ...]]:
    """The shapes of a batch's tensors, by the way to each."""
    leaves, _ = pytree.tree_flatten_with_path(batch)
    return {
        pytree.keystr(path).strip("[]'") or "batch": tuple(leaf.shape)
        for path, leaf in leaves
        if isinstance(leaf, Tensor)
    }
