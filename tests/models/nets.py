"""Small models that each have one thing that tools trip over."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from examples.llama.model import Llama

BATCH, SEQ, VOCAB, DIM = 8, 8, 16, 16


def llama(vocab: int = VOCAB, heads: int = 4, kv_heads: int = 2, dim: int = DIM) -> nn.Module:
    return Llama(vocab=vocab, dim=dim, hidden=32, layers=2, heads=heads, kv_heads=kv_heads, length=SEQ)


def uneven_llama() -> nn.Module:
    return llama(vocab=13)


def three_heads() -> nn.Module:
    return llama(heads=3, kv_heads=3, dim=12)


def four_kv_heads() -> nn.Module:
    return llama(heads=4, kv_heads=4)


def tokens(step: int, vocab: int = VOCAB, batch: int = BATCH) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(step)
    both = torch.randint(vocab, (batch, SEQ + 1), generator=generator)
    return {"tokens": both[:, :-1].contiguous(), "targets": both[:, 1:].contiguous()}


def few_tokens(step: int) -> dict[str, Tensor]:
    return tokens(step, vocab=12)


def one_sentence(step: int) -> dict[str, Tensor]:
    return tokens(step, batch=1)


def padded_tokens(step: int) -> dict[str, Tensor]:
    """Rows of very different length: what counts is the number of tokens, not of rows."""
    batch = tokens(step)
    for row, length in enumerate((8, 1, 5, 2, 8, 8, 3, 1)):
        batch["targets"][row, length:] = -100
    return batch


def next_token(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, Any]:
    logits = model(batch["tokens"])
    total = F.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten(), reduction="sum")
    return total, (batch["targets"] != -100).sum()


class Perceptron(nn.Module):
    """Two layers, the second ``down``; with a buffer, a scalar, a frozen integer table and a layer of another dtype."""

    def __init__(self, hidden: int = 24, mixed: bool = False) -> None:
        super().__init__()
        self.up = nn.Linear(DIM, hidden)
        self.down = nn.Linear(hidden, DIM)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.table = nn.Parameter(torch.arange(DIM, dtype=torch.uint8), requires_grad=False)
        self.gate = nn.Linear(DIM, DIM, dtype=torch.float64) if mixed else None
        self.register_buffer("mask", (torch.arange(DIM) % 3 > 0).float())

    def forward(self, x: Tensor, note: str | None = None) -> Tensor:
        y = self.down(F.silu(self.up(x * self.mask))) * self.scale
        y = y + self.table.float() / DIM + torch.ones(DIM)
        return y if self.gate is None else y * torch.sigmoid(self.gate(x.double())).float()


class Tied(nn.Module):
    """One weight at both ends."""

    def __init__(self, vocab: int = 7) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, DIM)
        self.middle = nn.Linear(DIM, DIM)
        self.output = nn.Linear(DIM, vocab, bias=False)
        self.output.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.output(torch.tanh(self.middle(self.embed(tokens))))


def tied_tokens(step: int) -> dict[str, Tensor]:
    return tokens(step, vocab=7)


def perceptron() -> nn.Module:
    return Perceptron()


def mixed_perceptron() -> nn.Module:
    return Perceptron(mixed=True)


def vectors(step: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(step)
    return {"x": torch.randn(BATCH, DIM, generator=generator), "y": torch.randn(BATCH, DIM, generator=generator)}


def squares(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, int]:
    return (model(batch["x"]) - batch["y"]).square().sum(), batch["x"].shape[0]


class Encoder(nn.Module):
    """Torch's own encoder: its attention has one fused input projection; with a padding mask."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(DIM, 4, 32, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.embed = nn.Embedding(VOCAB, DIM)
        self.output = nn.Linear(DIM, VOCAB)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.output(self.encoder(self.embed(tokens), src_key_padding_mask=tokens == 0))


class Fused(nn.Module):
    """Attention whose query, key and value are one weight, kept as ``[in, out]`` or as ``[out, in]``, with a bias."""

    def __init__(self, turned: bool = False, heads: int = 4) -> None:
        super().__init__()
        self.turned, self.heads = turned, heads
        self.weight = nn.Parameter(torch.randn(DIM, 3 * DIM) * DIM**-0.5)
        if turned:
            self.weight = nn.Parameter(self.weight.detach().t().contiguous())
        self.bias = nn.Parameter(torch.randn(3 * DIM) * 0.1)
        self.out = nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight if self.turned else self.weight.t()
        q, k, v = F.linear(x, weight, self.bias).split(DIM, dim=2)
        q, k, v = (t.view(*t.shape[:-1], self.heads, -1).transpose(1, 2) for t in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Gpt(nn.Module):
    """Two blocks of fused attention between an embedding and its transpose."""

    def __init__(self, turned: bool = False, heads: int = 4) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.layers = nn.ModuleList(Fused(turned, heads) for _ in range(2))
        self.output = nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = x + layer(x)
        return self.output(x)


def gpt() -> nn.Module:
    return Gpt()


def turned_gpt() -> nn.Module:
    return Gpt(turned=True)


def gpt_of_two_heads() -> nn.Module:
    return Gpt(turned=True, heads=2)


class Uneven(nn.Module):
    """Sizes that divide nothing: weights of 5 by 16 and 16 by 5, and one that is empty."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(DIM, 5, bias=False)
        self.down = nn.Linear(5, DIM, bias=False)
        self.nothing = nn.Parameter(torch.zeros(0, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.tanh(self.up(x))) + self.nothing.sum()


class Experts(nn.Module):
    """A mixture of experts: every token goes to all of them, and its two best count."""

    def __init__(self, experts: int = 4, hidden: int = 12) -> None:
        super().__init__()
        self.router = nn.Linear(DIM, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, DIM, hidden) * DIM**-0.5)
        self.down = nn.Parameter(torch.randn(experts, hidden, DIM) * hidden**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        gates = torch.softmax(self.router(x), dim=-1)
        least = gates.topk(2, dim=-1).values[:, -1:]
        gates = gates * (gates >= least)
        each = torch.matmul(F.silu(torch.matmul(x, self.up)), self.down)
        return (each * gates.t().unsqueeze(-1)).sum(0)


def experts() -> nn.Module:
    return Experts()
