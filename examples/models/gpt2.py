"""transformers' GPT-2, small: queries, keys and values by one layer, ``Conv1D``, whose weight lies the other way."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F
from transformers import GPT2Config, GPT2LMHeadModel

from examples.models.sequences import counting

BATCH, SEQ, VOCAB = 8, 16, 64


def build() -> GPT2LMHeadModel:
    config = GPT2Config(
        vocab_size=VOCAB,
        n_embd=48,
        n_layer=2,
        n_head=4,
        n_positions=SEQ,
        embd_pdrop=0.0,
        resid_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
        bos_token_id=0,
        eos_token_id=0,
    )
    return GPT2LMHeadModel(config)


def batch(step: int) -> dict[str, Tensor]:
    """``input_ids`` and, one token further on, ``targets``: ``[BATCH, SEQ]`` each."""
    tokens = counting(step, BATCH, SEQ + 1, VOCAB)
    return {"input_ids": tokens[:, :-1].contiguous(), "targets": tokens[:, 1:].contiguous()}


def loss(model: GPT2LMHeadModel, batch: dict[str, Tensor]) -> tuple[Tensor, int]:
    """The sum of the cross entropies over all positions, and how many there are."""
    logits = model(input_ids=batch["input_ids"]).logits
    total = F.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten(), reduction="sum")
    return total, batch["targets"].numel()
