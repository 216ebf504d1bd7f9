"""Training as ``run`` does it: the same steps on the ranks of a mesh and on one device, and what each measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import torch
from attrs import define, field
from torch import Tensor, nn

from shardlang.runtime.global_view import global_view
from shardlang.runtime.gradients import clip_grad_norm_
from shardlang.runtime.loss import global_mean, whole_value
from shardlang.runtime.memory import Meter
from shardlang.runtime.observe import Observer, Tally, tally
from shardlang.runtime.record import Recorder

Loss = Callable[[nn.Module, Any], tuple[Tensor, Any]]
"""``loss(model, batch) -> (sum, count)`` of the user's module."""

SEED = 0
LEARNING_RATE, WEIGHT_DECAY, MAX_NORM = 1e-3, 0.1, 1.0


@define
class Course:
    """What a training run gave, on one side: of each step the loss and the gradient's norm before clipping."""

    losses: list[float] = field(factory=list)
    grad_norms: list[float] = field(factory=list)
    seconds: list[float] = field(factory=list)
    collectives: tuple[Tally, ...] = ()
    memory: Mapping[str, int] = field(factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            "losses": self.losses,
            "grad_norms": self.grad_norms,
            "seconds": self.seconds,
            "collectives": [t.to_json() for t in self.collectives],
            "memory": dict(self.memory),
        }


def optimizer_of(module: nn.Module) -> torch.optim.Optimizer:
    """AdamW over the trained parameters."""
    trained = [p for p in module.parameters() if p.requires_grad]
    return torch.optim.AdamW(trained, lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)


def training_step(module: nn.Module, batch: Any, loss: Loss) -> tuple[Tensor, Tensor]:
    """Forward, backward, clipping: the loss over the whole batch and the norm of its gradient, equal on every rank."""
    with global_view():
        total, count = loss(module, batch)
        mean = global_mean(total, count)
        mean.backward()
    norm = clip_grad_norm_(module.parameters(), MAX_NORM)
    return whole_value(mean), norm


def plain_step(module: nn.Module, batch: Any, loss: Loss) -> tuple[Tensor, Tensor]:
    """The same on one device, without a word of ours but the norm."""
    total, count = loss(module, batch)
    mean = total / count
    mean.backward()
    norm = clip_grad_norm_(module.parameters(), MAX_NORM)
    return mean.detach(), norm


def train(
    module: nn.Module,
    batches: Callable[[int], Any],
    loss: Loss,
    steps: int,
    *,
    step: Callable[[nn.Module, Any, Loss], tuple[Tensor, Tensor]],
    observe: Callable[[], Observer] | None = None,
    progress: Callable[[int, float], None] = lambda _, __: None,
) -> Course:
    """Trains for some steps. In the second of them (the first, of one) memory is measured, and collectives are
    watched where ``observe`` is given; that step's time does not count."""
    optimizer = optimizer_of(module)
    course = Course()
    probe = min(1, steps - 1)
    for number in range(steps):
        batch = batches(number)
        with ExitStack() as stack:
            if number == probe:
                meter = stack.enter_context(Meter(module, optimizer))
                recorder = stack.enter_context(Recorder())
                observer = stack.enter_context(observe()) if observe is not None else None
            begun = time.perf_counter()
            value, norm = step(module, batch, loss)
            optimizer.step()
            optimizer.zero_grad()
            seconds = time.perf_counter() - begun
        if number == probe:
            course.memory = meter.peak()
            if observer is not None:
                course.collectives = tally(recorder.issued, observer.mesh)
        else:
            course.seconds.append(seconds)
        course.losses.append(float(value))
        course.grad_norms.append(float(norm))
        progress(number, float(value))
    return course
