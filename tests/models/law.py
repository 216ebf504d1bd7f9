"""The law for models: placed as declared on the ranks of a mesh, a model trains as it does on one device.

``train_beside`` runs on every rank of the tests' world. It trains the placed model and a plain copy of it on the same
batches and returns what differs, with what was sent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from attrs import frozen
from torch import Tensor, nn

import shardlang as sl
from shardlang.check.model import check_model
from shardlang.lower.facts import facts_of
from shardlang.lower.model import lower_model
from shardlang.lower.placements import device_mesh
from shardlang.runtime.batch import place_batch
from shardlang.runtime.global_view import global_view
from shardlang.runtime.gradients import clip_grad_norm_, grad_norm
from shardlang.runtime.loss import global_mean, whole_value
from shardlang.runtime.observe import Observer, Tally, tally
from shardlang.runtime.record import Recorder


@frozen
class Outcome:
    """Of each step the loss and the gradient's norm, on both sides; the worst gradient of the first and the last step,
    the worst weight in the end; what the second step sent; names, placements and meshes of the parameters."""

    losses: list[float]
    plain_losses: list[float]
    norms: list[float]
    plain_norms: list[float]
    worst_gradient: float
    worst_weight: float
    sent: tuple[Tally, ...]
    placements: dict[str, str]
    meshes: int
    parameters: int

    def holds(self, tolerance: float = 1e-5) -> bool:
        """Is everything equal, up to the order of summation?"""
        pairs = [*zip(self.losses, self.plain_losses, strict=True), *zip(self.norms, self.plain_norms, strict=True)]
        near = all(abs(a - b) <= tolerance * abs(b) for a, b in pairs)
        return near and self.worst_gradient <= 10 * tolerance


def adamw(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-2)


def train_beside(
    text: str,
    build: Callable[[], nn.Module],
    batches: Callable[[int], Any],
    loss: Callable[[nn.Module, Any], tuple[Tensor, Any]],
    steps: int = 3,
    micro: int = 1,
    clip: float = 1.0,
    optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer] = adamw,
) -> Outcome:
    """Trains both; ``micro`` batches are accumulated a step, each a share of its mean."""
    program = sl.loads(text)
    declared = program.declared_model()
    torch.manual_seed(0)
    plain = build()
    torch.manual_seed(0)
    module = build()
    layouts = check_model(declared, facts_of(module))
    for parameter in layouts.parameters.values():
        if parameter.frozen:
            plain.get_parameter(parameter.name).requires_grad_(False)
    mesh = program.mesh(declared.mesh.name).device_mesh("cpu")
    lowered = lower_model(layouts)
    placed = program.apply(module, mesh)
    on = device_mesh(lowered.mesh, "cpu")
    optimizers = [optimizer([p for p in m.parameters() if p.requires_grad]) for m in (placed, plain)]
    found: dict[str, list[float]] = {k: [] for k in ("losses", "plain_losses", "norms", "plain_norms")}
    worst = 0.0
    sent: tuple[Tally, ...] = ()
    for step in range(steps):
        with Recorder() as recorder, Observer(lowered.mesh, dist.get_rank()):
            total = 0.0
            for part in range(micro):
                batch = place_batch(lowered, batches(step * micro + part), on)
                with global_view():
                    mean = global_mean(*loss(placed, batch)) / micro
                    mean.backward()
                total += float(whole_value(mean))
        found["losses"].append(total)
        found["norms"].append(float(grad_norm(placed.parameters())))
        if step == min(1, steps - 1):
            sent = tally(recorder.issued, lowered.mesh)
        total = 0.0
        for part in range(micro):
            value, count = loss(plain, batches(step * micro + part))
            (value / count / micro).backward()
            total += float((value / count / micro).detach())
        found["plain_losses"].append(total)
        found["plain_norms"].append(float(grad_norm(plain.parameters())))
        if step in (0, steps - 1):
            worst = max(worst, _worst(placed, plain, lambda p: p.grad))
        for m, own in zip((placed, plain), optimizers, strict=True):
            clip_grad_norm_(m.parameters(), clip)
            own.step()
            own.zero_grad()
    names = dict(placed.named_parameters(remove_duplicate=False))
    return Outcome(
        **found,
        worst_gradient=worst,
        worst_weight=_worst(placed, plain, lambda p: p.detach()),
        sent=sent,
        placements={n: str(getattr(p, "placements", None)) for n, p in names.items()},
        meshes=len({getattr(p, "device_mesh", None) for p in names.values()}),
        parameters=len({id(p) for p in names.values()}),
    )


def _worst(placed: nn.Module, plain: nn.Module, of: Callable[[Tensor], Tensor | None]) -> float:
    """The worst difference, relative to the greatest element of its tensor, or to a thousandth of the greatest of all:
    what is zero but for rounding, as the gradient of a key's bias, has no digits to compare."""
    theirs = {name: of(parameter) for name, parameter in plain.named_parameters()}
    least = 1e-3 * max((float(t.abs().max()) for t in theirs.values() if t is not None and t.numel()), default=0.0)
    worst = 0.0
    for name, parameter in placed.named_parameters():
        ours, right = of(parameter), theirs[name]
        assert (ours is None) == (right is None), name
        if ours is None or right is None or right.numel() == 0:
            continue
        whole = whole_value(ours).double()
        scale = right.double().abs().max().clamp(min=max(least, 1e-30))
        worst = max(worst, float((whole - right.double()).abs().max() / scale))
    return worst


__all__ = ["Outcome", "train_beside"]
