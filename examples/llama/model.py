"""A small decoder of the Llama kind, in plain PyTorch.

RMSNorm, rotary positions, grouped-query attention, SwiGLU, a separate output head. It learns bytes: the text is the
source of Python's own standard library, read where Python is installed.

``build()`` makes the model, ``batch(step)`` the batch of a step (the same on every machine with the same Python), and
``loss(model, batch)`` the sum of the losses of its predictions with their number.
"""

from __future__ import annotations

import sysconfig
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

VOCAB = 256
DIM, HIDDEN, LAYERS = 256, 768, 4
HEADS, KV_HEADS = 8, 4
BATCH, SEQ = 8, 128
SEED = 2026


class RMSNorm(nn.Module):
    """Scales each vector to a root mean square of one, then by a learned weight."""

    def __init__(self, dim: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight


def rotation_table(head_dim: int, length: int, theta: float = 10_000.0) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the angle of each position and pair of channels, ``[length, head_dim]`` each."""
    frequencies = theta ** (-torch.arange(0, head_dim, 2).float() / head_dim)
    angles = torch.outer(torch.arange(length).float(), frequencies).repeat(1, 2)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turns the pairs of channels of ``x [batch, heads, seq, head_dim]`` by the angles of their positions."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class Attention(nn.Module):
    """Causal attention in which ``heads // kv_heads`` query heads share one key and value head."""

    def __init__(self, dim: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.head_dim = dim // heads
        self.wq = nn.Linear(dim, heads * self.head_dim, bias=False)
        self.wk = nn.Linear(dim, kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(dim, kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(heads * self.head_dim, dim, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        q, k, v = (w(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.wo(out.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """SwiGLU: a gated layer of width ``hidden``."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.w1 = nn.Linear(dim, hidden, bias=False)
        self.w2 = nn.Linear(hidden, dim, bias=False)
        self.w3 = nn.Linear(dim, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self, dim: int, hidden: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(dim)
        self.attention = Attention(dim, heads, kv_heads)
        self.ffn_norm = RMSNorm(dim)
        self.feed_forward = FeedForward(dim, hidden)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.feed_forward(self.ffn_norm(x))


class Llama(nn.Module):
    """Logits ``[batch, seq, vocab]`` of the next byte at each position of ``tokens [batch, seq]``."""

    def __init__(
        self,
        vocab: int = VOCAB,
        dim: int = DIM,
        hidden: int = HIDDEN,
        layers: int = LAYERS,
        heads: int = HEADS,
        kv_heads: int = KV_HEADS,
        length: int = SEQ,
    ) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList(Block(dim, hidden, heads, kv_heads) for _ in range(layers))
        self.norm = RMSNorm(dim)
        self.output = nn.Linear(dim, vocab, bias=False)
        cos, sin = rotation_table(dim // heads, length)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        seq = tokens.shape[1]
        x = self.tok_embeddings(tokens)
        for layer in self.layers:
            x = layer(x, self.cos[:seq], self.sin[:seq])
        return self.output(self.norm(x))


def build() -> Llama:
    """The model, its weights drawn from the seed of ``torch.manual_seed`` in force."""
    model = Llama()
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=1.0 if name.startswith("tok_embeddings") else parameter.shape[1] ** -0.5)
    return model


@lru_cache(maxsize=1)
def text() -> Tensor:
    """The sources of the standard library's top-level modules, one after the other, as bytes."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    return torch.frombuffer(bytearray(b"".join(f.read_bytes() for f in files)), dtype=torch.uint8)


def batch(step: int) -> dict[str, Tensor]:
    """The global batch of a step: ``tokens`` and, one byte further on, ``targets``, both ``[BATCH, SEQ]``."""
    generator = torch.Generator().manual_seed(SEED + step)
    starts = torch.randint(len(text()) - SEQ - 1, (BATCH, 1), generator=generator)
    windows = text()[starts + torch.arange(SEQ + 1)].long()
    return {"tokens": windows[:, :-1].contiguous(), "targets": windows[:, 1:].contiguous()}


def loss(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, int]:
    """The sum of the cross entropies over all positions, and how many there are."""
    logits = model(batch["tokens"])
    total = F.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten(), reduction="sum")
    return total, batch["targets"].numel()
