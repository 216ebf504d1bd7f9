"""A model small enough to train in a moment, and what can befall a rank that trains it.

``TINY_FAULT`` says what happens in the third step: ``raise`` or ``die``, on the rank ``TINY_RANK``, or ``hang``.
"""

from __future__ import annotations

import os
import signal
import time

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from examples.llama.model import Llama

VOCAB, BATCH, SEQ = 64, 8, 16


def build() -> nn.Module:
    return Llama(vocab=VOCAB, dim=32, hidden=64, layers=2, heads=4, kv_heads=2, length=SEQ)


def batch(step: int) -> dict[str, Tensor]:
    if step == 2:
        _befall()
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(VOCAB, (BATCH, SEQ + 1), generator=generator)
    return {"tokens": tokens[:, :-1].contiguous(), "targets": tokens[:, 1:].contiguous()}


def loss(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, int]:
    logits = model(batch["tokens"])
    total = F.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten(), reduction="sum")
    return total, batch["targets"].numel()


def _befall() -> None:
    fault, rank = os.environ.get("TINY_FAULT"), os.environ.get("RANK")
    if fault == "hang":
        time.sleep(600)
    if rank is None or rank != os.environ.get("TINY_RANK", "1"):
        return
    if fault == "raise":
        raise ValueError("the third batch is spoilt")
    if fault == "die":
        os.kill(os.getpid(), signal.SIGKILL)
