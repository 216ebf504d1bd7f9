"""transformers' T5, small: an encoder and a decoder; one table is both embeddings and the head."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import T5Config, T5ForConditionalGeneration

from examples.models.sequences import counting

BATCH, SOURCE, TARGET, VOCAB = 8, 16, 8, 64
PAD, FIRST = 0, 1  # the number of padding, with which targets begin, and of the first word


def build() -> T5ForConditionalGeneration:
    config = T5Config(
        vocab_size=VOCAB,
        d_model=48,
        d_kv=12,
        d_ff=96,
        num_heads=4,
        num_layers=2,
        relative_attention_num_buckets=8,
        relative_attention_max_distance=SOURCE,
        dropout_rate=0.0,
        decoder_start_token_id=PAD,
        use_cache=False,
    )
    return T5ForConditionalGeneration(config)


def batch(step: int) -> dict[str, Tensor]:
    """``input_ids`` and ``attention_mask`` ``[BATCH, SOURCE]``; ``targets`` ``[BATCH, TARGET]`` go on counting, and
    ``decoder_input_ids`` are the same one place later."""
    words = FIRST + counting(step, BATCH, SOURCE + TARGET, VOCAB - FIRST)
    first = torch.randint(SOURCE // 2, (BATCH, 1), generator=torch.Generator().manual_seed(step))
    there = torch.arange(SOURCE) >= first
    targets = words[:, SOURCE:].contiguous()
    start = torch.full((BATCH, 1), PAD)
    return {
        "input_ids": words[:, :SOURCE].masked_fill(~there, PAD),
        "attention_mask": there.long(),
        "decoder_input_ids": torch.cat((start, targets[:, :-1]), dim=1),
        "targets": targets,
    }


def loss(model: T5ForConditionalGeneration, batch: dict[str, Tensor]) -> tuple[Tensor, int]:
    """The sum of the cross entropies over all positions of the targets, and how many there are."""
    inputs = {name: value for name, value in batch.items() if name != "targets"}
    logits = model(**inputs).logits
    total = F.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten(), reduction="sum")
    return total, batch["targets"].numel()
