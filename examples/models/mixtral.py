"""transformers' Mixtral, small: two of four experts for each token.

Of the ways that transformers has to run experts, ``batched_mm`` treats each token by itself: what a rank does depends
on its own tokens alone, and nothing of it on values.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F
from transformers import MixtralConfig, MixtralForCausalLM

from examples.models.sequences import counting

BATCH, SEQ, VOCAB = 8, 16, 64


def build() -> MixtralForCausalLM:
    config = MixtralConfig(
        vocab_size=VOCAB,
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=8,
        num_local_experts=4,
        num_experts_per_tok=2,
        max_position_embeddings=SEQ,
        use_cache=False,
        experts_implementation="batched_mm",
    )
    return MixtralForCausalLM(config)


def batch(step: int) -> dict[str, Tensor]:
    """``input_ids`` and, one token further on, ``targets``: ``[BATCH, SEQ]`` each."""
    tokens = counting(step, BATCH, SEQ + 1, VOCAB)
    return {"input_ids": tokens[:, :-1].contiguous(), "targets": tokens[:, 1:].contiguous()}


def loss(model: MixtralForCausalLM, batch: dict[str, Tensor]) -> tuple[Tensor, int]:
    """The sum of the cross entropies over all positions, and how many there are."""
    logits = model(input_ids=batch["input_ids"]).logits
    total = F.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten(), reduction="sum")
    return total, batch["targets"].numel()
