"""Data for the models beside: rows of numbers that count, each in steps of its own, so that there is what to learn."""

from __future__ import annotations

import torch
from torch import Tensor


def counting(step: int, rows: int, length: int, vocab: int) -> Tensor:
    """``[rows, length]`` numbers below ``vocab``: each row counts up from its own start by its own stride."""
    generator = torch.Generator().manual_seed(step)
    start = torch.randint(vocab, (rows, 1), generator=generator)
    stride = torch.randint(1, 4, (rows, 1), generator=generator)
    return (start + stride * torch.arange(length)) % vocab
