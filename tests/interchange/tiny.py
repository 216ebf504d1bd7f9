"""A model as transformers' plans have them: Linears in a stack, one call after the other."""

from __future__ import annotations

import torch
from torch import nn


class Block(nn.Module):
    """A residual feed-forward of two Linears with biases."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(8, 16)
        self.down = nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


class Tiny(nn.Module):
    """Tokens in, logits out; nothing in it knows of ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(32, 8)
        self.layers = nn.ModuleList([Block(), Block()])
        self.lm_head = nn.Linear(8, 32)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(x)


PLAN = {
    "embed_tokens": "embedding_rowwise",
    "layers.*.up": "colwise",
    "layers.*.down": "rowwise",
    "lm_head": "colwise_gather_output",
}


def build() -> Tiny:
    torch.manual_seed(0)
    return Tiny()


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and targets [4, 6], the same on every rank."""
    seeded = torch.Generator().manual_seed(step)
    tokens = torch.randint(0, 32, (2, 4, 6), generator=seeded)
    return tokens[0], tokens[1]


def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Summed cross entropy, and the number of tokens."""
    tokens, targets = batch
    logits = model(tokens).flatten(0, 1)
    summed = nn.functional.cross_entropy(logits, targets.flatten(), reduction="sum")
    return summed, torch.tensor(float(targets.numel()))
