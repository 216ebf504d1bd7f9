"""The law for models that others wrote: those of ``examples/models``, by name, on any mesh."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import torch
from torch import nn

from tests.models.law import Outcome, train_beside

STEPS = 10


def descent(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Linear in the gradient: AdamW makes a full step of any rounding error where the gradient itself is zero, as that
    of a key's bias is."""
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def declaration(name: str, mesh: str | None = None) -> str:
    """The text of a model's ``.shard`` file, with another mesh where one is given."""
    text = Path(f"examples/models/{name}.shard").read_text()
    return text if mesh is None else re.sub(r"(?m)^mesh pod = .*$", f"mesh pod = {mesh}", text)


def train_real(name: str, mesh: str | None = None, steps: int = STEPS) -> Outcome:
    """For bodies: trains the model beside a plain copy. Only here, on the ranks, is transformers imported."""
    home = importlib.import_module(f"examples.models.{name}")
    return train_beside(declaration(name, mesh), home.build, home.batch, home.loss, steps, optimizer=descent)
