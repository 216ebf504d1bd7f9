"""transformers' BERT, small, as it is pretrained: masked words, padded rows."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import BertConfig, BertForMaskedLM

from examples.models.sequences import counting

BATCH, SEQ, VOCAB = 8, 16, 64
MASK, PAD, FIRST = 1, 0, 2  # the numbers of the mask and of padding, and of the first word


def build() -> BertForMaskedLM:
    config = BertConfig(
        vocab_size=VOCAB,
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=SEQ,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return BertForMaskedLM(config)


def batch(step: int) -> dict[str, Tensor]:
    """``input_ids``, ``attention_mask`` and ``targets``, each ``[BATCH, SEQ]``.

    ``targets`` are the words that the mask hides, and -100 elsewhere.
    """
    words = FIRST + counting(step, BATCH, SEQ, VOCAB - FIRST)
    generator = torch.Generator().manual_seed(step)
    length = torch.randint(SEQ // 2, SEQ + 1, (BATCH, 1), generator=generator)
    there = torch.arange(SEQ) < length
    hidden = (torch.rand(BATCH, SEQ, generator=generator) < 0.3) & there
    return {
        "input_ids": words.masked_fill(hidden, MASK).masked_fill(~there, PAD),
        "attention_mask": there.long(),
        "targets": words.masked_fill(~hidden, -100),
    }


def loss(model: BertForMaskedLM, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The sum of the cross entropies of the hidden words, and how many there are."""
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    total = F.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten(), reduction="sum")
    return total, (batch["targets"] != -100).sum()
