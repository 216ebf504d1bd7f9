"""Blocks of networks as functions of global tensors, as people write them."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F


def rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotates pairs of features, the second half against the first."""
    half = x.shape[-1] // 2
    turned = torch.cat([-x[..., half:], x[..., :half]], dim=-1)
    return x * cos + turned * sin


def positions(length: int, width: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines of the rotation, made inside the function."""
    inverse = 1.0 / (10000 ** (torch.arange(0, width, 2, dtype=torch.float64) / width))
    angles = torch.outer(torch.arange(length, dtype=torch.float64), inverse)
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def attention(x, wq, wk, wv, wo, heads: int, kv: int):
    """Grouped-query attention with rotary positions; weights are [out, in]."""
    batch, length, _ = x.shape
    width = wq.shape[0] // heads
    q = F.linear(x, wq).view(batch, length, heads, width).transpose(1, 2)
    k = F.linear(x, wk).view(batch, length, kv, width).transpose(1, 2)
    v = F.linear(x, wv).view(batch, length, kv, width).transpose(1, 2)
    cos, sin = positions(length, width, x.dtype)
    q, k = rotary(q, cos, sin), rotary(k, cos, sin)
    o = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=heads != kv)
    return F.linear(o.transpose(1, 2).reshape(batch, length, heads * width), wo)


def feed_forward(x, w1, w2, w3):
    """SwiGLU."""
    return F.linear(F.silu(F.linear(x, w1)) * F.linear(x, w3), w2)


def llama(
    tokens, targets, table, n1, wq, wk, wv, wo, n2, w1, w2, w3, n3, head, reshard=lambda x, spec: x, stay="", use=""
):
    """One layer between embedding and loss. ``stay`` is the layout of the residual, ``use`` that of its readers."""
    x = reshard(F.embedding(tokens, table), stay)
    h = reshard(F.rms_norm(x, (x.shape[-1],), n1, 1e-5), use)
    x = x + reshard(attention(h, wq, wk, wv, wo, heads=4, kv=2), stay)
    h = reshard(F.rms_norm(x, (x.shape[-1],), n2, 1e-5), use)
    x = x + reshard(feed_forward(h, w1, w2, w3), stay)
    x = reshard(F.rms_norm(x, (x.shape[-1],), n3, 1e-5), use)
    logits = F.linear(x, head)
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=1)


def llama_tensors(seed: int = 0, batch: int = 4, length: int = 6, width: int = 16, vocab: int = 32, hidden: int = 24):
    """Arguments of ``llama``, in float64."""
    draw = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64) / math.sqrt(shape[-1])

    tokens = torch.randint(0, vocab, (batch, length), generator=draw)
    targets = torch.randint(0, vocab, (batch, length), generator=draw)
    ones = [1 + normal(width) / 4 for _ in range(3)]
    return [
        tokens, targets, normal(vocab, width), ones[0], normal(width, width), normal(width // 2, width),
        normal(width // 2, width), normal(width, width), ones[1], normal(hidden, width), normal(width, hidden),
        normal(hidden, width), ones[2], normal(vocab, width),
    ]  # fmt: skip


LLAMA = [
    "[b/dp s]", "[b/dp s]", "[v/tp d]", "[d]", "[q/tp d]", "[k/tp d]", "[k/tp d]", "[d q/tp]", "[d]", "[f/tp d]",
    "[d f/tp]", "[f/tp d]", "[d]", "[v/tp d]",
]  # fmt: skip


def bert(x, mask, wqkv, bqkv, wo, bo, g1, b1, w1, c1, w2, c2, g2, b2, reshard=lambda x, spec: x, stay="", use=""):
    """A post-norm encoder layer with biases, a fused input projection and a padding mask."""
    batch, length, width = x.shape
    heads = 4
    qkv = F.linear(x, wqkv, bqkv).view(batch, length, 3, heads, width // heads)
    q, k, v = (t.transpose(1, 2) for t in qkv.unbind(2))
    scores = q @ k.transpose(-2, -1) / math.sqrt(width // heads)
    scores = scores.masked_fill(mask[:, None, None, :] == 0, -1e9)
    o = torch.softmax(scores, dim=-1) @ v
    o = F.linear(o.permute(0, 2, 1, 3).reshape(batch, length, width), wo, bo)
    x = F.layer_norm(x + reshard(o, stay), (width,), g1, b1)
    h = F.linear(F.gelu(F.linear(x, w1, c1)), w2, c2)
    return F.layer_norm(x + reshard(h, stay), (width,), g2, b2)


def bert_tensors(seed: int = 0, batch: int = 4, length: int = 6, width: int = 16, hidden: int = 24):
    """Arguments of ``bert``, in float64."""
    draw = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64) / math.sqrt(shape[-1])

    mask = (torch.rand(batch, length, generator=draw) > 0.3).long()
    mask[:, 0] = 1
    return [
        normal(batch, length, width), mask, normal(3 * width, width), normal(3 * width), normal(width, width),
        normal(width), 1 + normal(width), normal(width), normal(hidden, width), normal(hidden), normal(width, hidden),
        normal(width), 1 + normal(width), normal(width),
    ]  # fmt: skip


BERT = [
    "[b/dp s d]", "[b/dp s]", "[(3 4/tp 4) d]", "[(3 4/tp 4)]", "[d o/tp]", "[d]", "[d]", "[d]", "[f/tp d]",
    "[f/tp]", "[d f/tp]", "[d]", "[d]", "[d]",
]  # fmt: skip
