"""Small models of the transformers library, as they are, with files that say how they are split."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCAB, WIDTH, HIDDEN, BATCH, LENGTH = 64, 32, 48, 4, 8

LLAMA = """
mesh pod = {mesh}
let kv = 4, g = 2, k = 4
model llama on pod {{
  param model.embed_tokens.weight                            : [vocab/tp d]
  param model.layers.*.self_attn.q_proj.weight               : [(kv/tp g k) d]
  param model.layers.*.self_attn.{{k_proj,v_proj}}.weight      : [(kv/tp k) d]
  param model.layers.*.self_attn.o_proj.weight               : [d (kv/tp g k)]
  param model.layers.*.mlp.{{gate_proj,up_proj}}.weight        : [f/tp d]
  param model.layers.*.mlp.down_proj.weight                  : [d f/tp]
  param lm_head.weight                                       : [vocab/tp d]
  param otherwise                                            : whole
  call root (input_ids: [batch{dp} seq]) -> (logits: [batch{dp} seq vocab/tp])
  call model.embed_tokens () -> [batch{dp} seq{sp} d]
  call model.layers.*.self_attn (hidden_states: [batch{dp} seq d]) -> ([batch{dp} seq{sp} d], _)
  call model.layers.*.mlp (x: [batch{dp} seq d]) -> [batch{dp} seq{sp} d]
  call lm_head (input: [batch{dp} seq d]) -> [batch{dp} seq vocab/tp]
{lines}
}}
"""

BERT = """
mesh pod = {mesh}
model bert on pod {{
  param embeddings.word_embeddings.weight                              : [vocab/tp d]
  param encoder.layer.*.attention.self.{{query,key,value}}.weight        : [(heads/tp 8) d]
  param encoder.layer.*.attention.self.{{query,key,value}}.bias          : [(heads/tp 8)]
  param encoder.layer.*.attention.output.dense.weight                  : [d (heads/tp 8)]
  param encoder.layer.*.intermediate.dense.weight                      : [f/tp d]
  param encoder.layer.*.intermediate.dense.bias                        : [f/tp]
  param encoder.layer.*.output.dense.weight                            : [d f/tp]
  param otherwise                                                      : whole
  call root (input_ids: [batch{dp} seq], attention_mask: [batch{dp} seq])
    -> (last_hidden_state: [batch{dp} seq d], pooler_output: [batch{dp} d])
  call embeddings () -> [batch{dp} seq{sp} d]
  call encoder.layer.*.attention.self (hidden_states: [batch{dp} seq d]) -> ([batch{dp} seq d/tp], _)
  call encoder.layer.*.attention.output.dense () -> [batch{dp} seq{sp} d]
  call encoder.layer.*.attention.output (input_tensor: [batch{dp} seq{sp} d]) -> [batch{dp} seq{sp} d]
  call encoder.layer.*.intermediate (hidden_states: [batch{dp} seq d]) -> [batch{dp} seq f/tp]
  call encoder.layer.*.output.dense () -> [batch{dp} seq{sp} d]
  call encoder.layer.*.output (input_tensor: [batch{dp} seq{sp} d]) -> [batch{dp} seq{sp} d]
{lines}
}}
"""


def llama_text(mesh: str, sequence: bool, lines: str = "") -> str:
    """The file of the llama; ``sequence``: the residual stream is split along the sequence."""
    return LLAMA.format(mesh=mesh, dp="/dp" if "dp" in mesh else "", sp="/tp" if sequence else "", lines=lines)


def bert_text(mesh: str, sequence: bool, lines: str = "") -> str:
    """The file of the encoder, likewise."""
    return BERT.format(mesh=mesh, dp="/dp" if "dp" in mesh else "", sp="/tp" if sequence else "", lines=lines)


def library() -> Any:
    """transformers, which talks of optional parts that are not there while it is imported."""
    logging.disable(logging.WARNING)
    try:
        import transformers
    finally:
        logging.disable(logging.NOTSET)
    return transformers


def in_double(build: Callable[[], nn.Module]) -> nn.Module:
    """The model in double precision, in which orders of summation make no difference worth the name."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return build()
    finally:
        torch.set_default_dtype(before)


def build_llama(use_cache: bool = True) -> nn.Module:
    hf = library()
    config = hf.LlamaConfig(
        vocab_size=VOCAB, hidden_size=WIDTH, intermediate_size=HIDDEN, num_hidden_layers=2, num_attention_heads=8,
        num_key_value_heads=4, use_cache=use_cache,
    )  # fmt: skip
    return in_double(lambda: hf.LlamaForCausalLM(config))


def build_llama_without_cache() -> nn.Module:
    return build_llama(use_cache=False)


def build_bert() -> nn.Module:
    hf = library()
    config = hf.BertConfig(
        vocab_size=VOCAB, hidden_size=WIDTH, intermediate_size=HIDDEN, num_hidden_layers=2, num_attention_heads=4,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, max_position_embeddings=LENGTH,
    )  # fmt: skip
    return in_double(lambda: hf.BertModel(config))


def tokens(step: int) -> dict[str, Tensor]:
    """Sentences and what follows each word."""
    both = torch.randint(VOCAB, (BATCH, LENGTH + 1), generator=torch.Generator().manual_seed(step))
    return {"input_ids": both[:, :-1].contiguous(), "targets": both[:, 1:].contiguous()}


def padded(step: int) -> dict[str, Tensor]:
    """Sentences of different lengths, with the mask that says so."""
    batch = tokens(step)
    mask = torch.ones(BATCH, LENGTH, dtype=torch.int64)
    for row, length in enumerate((LENGTH, 3, 5, LENGTH)):
        mask[row, length:] = 0
    return {"input_ids": batch["input_ids"], "attention_mask": mask}


def next_token(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, int]:
    logits = model(input_ids=batch["input_ids"]).logits
    return F.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten(), reduction="sum"), batch["targets"].numel()


def both_results(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, int]:
    given = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
    weights = torch.arange(WIDTH) / WIDTH - 0.4
    total = (given.last_hidden_state * weights).square().sum() + (given.pooler_output * weights).sum()
    return total, batch["input_ids"].numel()
