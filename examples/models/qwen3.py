"""transformers' Qwen3, small: normed queries and keys; the head is the embedding."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F
from transformers import Qwen3Config, Qwen3ForCausalLM

from examples.models.sequences import counting

BATCH, SEQ, VOCAB = 8, 16, 64


def build() -> Qwen3ForCausalLM:
    config = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=8,
        max_position_embeddings=SEQ,
        tie_word_embeddings=True,
        use_cache=False,
    )
    return Qwen3ForCausalLM(config)


def batch(step: int) -> dict[str, Tensor]:
    """``input_ids`` and, one token further on, ``targets``: ``[BATCH, SEQ]`` each."""
    tokens = counting(step, BATCH, SEQ + 1, VOCAB)
    return {"input_ids": tokens[:, :-1].contiguous(), "targets": tokens[:, 1:].contiguous()}


def loss(model: Qwen3ForCausalLM, batch: dict[str, Tensor]) -> tuple[Tensor, int]:
    """The sum of the cross entropies over all positions, and how many there are."""
    logits = model(input_ids=batch["input_ids"]).logits
    total = F.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten(), reduction="sum")
    return total, batch["targets"].numel()
