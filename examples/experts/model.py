"""A decoder whose feed-forward layers are mixtures of experts, none of which drops a token.

Attention, norms and text are those of ``examples/llama``. A router gives each token to the best of its experts;
``mixture`` is the same code on one device, where nothing is sent, and on the ranks of an axis ``ep`` that share the
experts out, where each token goes to those of its experts and comes back by all-to-all.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import shardlang as sl
from examples.llama.model import SEQ, VOCAB, Attention, RMSNorm, batch, loss, rotation_table

DIM, HIDDEN, LAYERS, HEADS, KV_HEADS = 128, 128, 2, 4, 4
EXPERTS, CHOSEN = 8, 2


@sl.local_map("""(
    x: [batch/dp/ep seq d], chosen: [batch/dp/ep seq k], share: [batch/dp/ep seq k],
    gate: [experts/ep d f] grad {+dp}, up: [experts/ep d f] grad {+dp}, down: [experts/ep f d] grad {+dp}
) -> [batch/dp/ep seq d]""")
def mixture(x: Tensor, chosen: Tensor, share: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """What a token's experts make of it, each by its share. Blocks of all tensors are this rank's own."""
    rows = x.flatten(0, 1).repeat_interleave(chosen.shape[-1], dim=0)
    sent = sl.send_rows(rows, chosen.flatten(), here=gate.shape[0], over="ep")
    made = [F.silu(r @ g) * (r @ u) @ d for r, g, u, d in zip(sent.rows.split(sent.sizes), gate, up, down, strict=True)]
    back = sent.back(torch.cat(made)).view(*chosen.shape, -1)
    return (back * share.unsqueeze(-1)).sum(-2)


class Experts(nn.Module):
    """The weights of ``experts`` SwiGLU layers, one after the other."""

    def __init__(self, experts: int, dim: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.empty(experts, dim, hidden))
        self.up = nn.Parameter(torch.empty(experts, dim, hidden))
        self.down = nn.Parameter(torch.empty(experts, hidden, dim))
        for weight in self.parameters():
            nn.init.normal_(weight, std=weight.shape[1] ** -0.5)

    def forward(self, x: Tensor, chosen: Tensor, share: Tensor) -> Tensor:
        return mixture(x, chosen, share, self.gate, self.up, self.down)


class Mixture(nn.Module):
    """Each token goes to its ``chosen`` best experts by a router; their results are averaged by what it gives them."""

    def __init__(self, dim: int = DIM, hidden: int = HIDDEN, experts: int = EXPERTS, chosen: int = CHOSEN) -> None:
        super().__init__()
        self.chosen = chosen
        self.router = nn.Linear(dim, experts, bias=False)
        self.experts = Experts(experts, dim, hidden)

    def forward(self, x: Tensor) -> Tensor:
        best = torch.softmax(self.router(x), dim=-1).topk(self.chosen, dim=-1)
        return self.experts(x, best.indices, best.values / best.values.sum(-1, keepdim=True))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(DIM)
        self.attention = Attention(DIM, HEADS, KV_HEADS)
        self.mixture_norm = RMSNorm(DIM)
        self.mixture = Mixture()

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.mixture(self.mixture_norm(x))


class Decoder(nn.Module):
    """Logits ``[batch, seq, vocab]`` of the next byte at each position of ``tokens [batch, seq]``."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = RMSNorm(DIM)
        self.output = nn.Linear(DIM, VOCAB, bias=False)
        cos, sin = rotation_table(DIM // HEADS, SEQ)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        seq = tokens.shape[1]
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, self.cos[:seq], self.sin[:seq])
        return self.output(self.norm(x))


def build() -> Decoder:
    """The model, its weights drawn from the seed of ``torch.manual_seed`` in force."""
    return Decoder()


__all__ = ["batch", "build", "loss"]
