"""torch's own encoder, small: ``nn.TransformerEncoder``, whose layers fuse queries, keys and values in one weight."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH, SEQ, DIM = 8, 16, 48


def build() -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(DIM, nhead=4, dim_feedforward=96, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)


def batch(step: int) -> dict[str, Tensor]:
    """``src`` ``[BATCH, SEQ, DIM]``, which of it is ``padding`` ``[BATCH, SEQ]``, and ``targets``: what stood one place
    before."""
    generator = torch.Generator().manual_seed(step)
    src = torch.randn(BATCH, SEQ, DIM, generator=generator)
    length = torch.randint(SEQ // 2, SEQ + 1, (BATCH, 1), generator=generator)
    return {"src": src, "padding": torch.arange(SEQ) >= length, "targets": src.roll(1, dims=1)}


def loss(model: nn.TransformerEncoder, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The sum of squares by which the results differ where there is no padding, and of how many."""
    there = ~batch["padding"]
    made = model(batch["src"], src_key_padding_mask=batch["padding"])
    each = F.mse_loss(made, batch["targets"], reduction="none").sum(-1)
    return (each * there).sum(), there.sum() * DIM
