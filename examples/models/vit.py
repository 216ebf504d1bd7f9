"""transformers' ViT, small: patches by a convolution, a token for the class."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import ViTConfig, ViTForImageClassification

BATCH, SIZE, LABELS = 8, 16, 8


def build() -> ViTForImageClassification:
    config = ViTConfig(
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        image_size=SIZE,
        patch_size=4,
        num_labels=LABELS,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return ViTForImageClassification(config)


def batch(step: int) -> dict[str, Tensor]:
    """``pixel_values`` ``[BATCH, 3, SIZE, SIZE]``, brighter the greater the class, and the classes, ``targets``."""
    generator = torch.Generator().manual_seed(step)
    targets = torch.randint(LABELS, (BATCH,), generator=generator)
    noise = torch.randn(BATCH, 3, SIZE, SIZE, generator=generator)
    return {"pixel_values": noise + targets[:, None, None, None], "targets": targets}


def loss(model: ViTForImageClassification, batch: dict[str, Tensor]) -> tuple[Tensor, int]:
    """The sum of the cross entropies of all images, and how many there are."""
    logits = model(pixel_values=batch["pixel_values"]).logits
    return F.cross_entropy(logits, batch["targets"], reduction="sum"), batch["targets"].numel()
