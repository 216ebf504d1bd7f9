"""Operators with arguments to try them on: what the laws of this room go through."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from tests.trace.oracle import indices, reals


@dataclass(frozen=True)
class Example:
    """A function of one operator (or few), and tensors to call it with."""

    name: str
    function: Callable[..., Any]
    tensors: tuple[torch.Tensor, ...]

    def __str__(self) -> str:
        return self.name


def _e(name: str, function: Callable[..., Any], *tensors: torch.Tensor) -> Example:
    return Example(name, function, tensors)


X = reals(4, 6)
Y = reals(4, 6, seed=1)
CUBE = reals(4, 2, 6)
WIDE = reals(4, 12)
P = X.abs() + 1

POINTWISE = [
    _e(n, getattr(torch, n), P if n in ("log", "sqrt", "rsqrt", "reciprocal", "log1p") else X)
    for n in "exp log sqrt rsqrt tanh sigmoid relu abs neg sin cos erf square reciprocal floor round sign log1p".split()  # noqa: SIM905  # a list of forty words reads better as text
] + [
    _e("negative", torch.negative, X),
    _e("logit", torch.logit, X.sigmoid()),
    _e("add", lambda x, y: x + y, X, Y),
    _e("add broadcast", lambda x, y: x + y, X, reals(6)),
    _e("add column", lambda x, y: x + y, X, reals(4, 1)),
    _e("add number", lambda x: x + 3, X),
    _e("sub scaled", lambda x, y: torch.sub(x, y, alpha=2), X, Y),
    _e("number minus", lambda x: 3 - x, X),
    _e("mul", lambda x, y: x * y, X, Y),
    _e("mul itself", lambda x: x * x, X),
    _e("div", lambda x, y: x / y, X, P),
    _e("pow", lambda x: x.pow(2) + x**3, X),
    _e("maximum", torch.maximum, X, Y),
    _e("clamp", lambda x: x.clamp(-0.5, 0.5), X),
    _e("where", lambda x, y: torch.where(x > 0, x, y), X, Y),
    _e("where number", lambda x: torch.where(x > 0, x, 5.0), X),
    _e("masked_fill", lambda x, y: x.masked_fill(y > 0, 2.0), X, Y),
    _e("compare", lambda x, y: (x == y) | (x < y) & ~(x >= y), X, Y),
    _e("gelu", lambda x: F.gelu(x) + F.gelu(x, approximate="tanh"), X),
    _e("silu", F.silu, X),
    _e("softplus", F.softplus, X),
    _e("leaky", lambda x: F.leaky_relu(x, 0.1), X),
    _e("cast", lambda x: x.to(torch.float32).double().long().double(), X * 4),
    _e("in place", lambda x: (x * 2).add_(3).mul_(2).relu_(), X),
    _e("detach", lambda x: x * x.detach(), X),
    _e("lerp", lambda x, y: torch.lerp(x, y, 0.3), X, Y),
    _e("addcmul", lambda x, y: torch.addcmul(x, y, y, value=2), X, Y),
    _e("like", lambda x: torch.zeros_like(x) + torch.ones_like(x) * x, X),
    _e("complex", lambda x: torch.view_as_real(torch.view_as_complex(x.view(4, 3, 2)) * 1j).flatten(1), X),
    _e("polar", lambda x, y: torch.view_as_real(torch.polar(x, y)), P, Y),
    _e("steep", lambda x: F.leaky_relu(x, -0.5), X),
    _e("elu", lambda x: F.elu(x, 0.5), X),
    _e("cast to bool", lambda x: x.round().bool(), X),
    _e("cast to byte", lambda x: x.long().to(torch.uint8), X * 99),
]

VIEWS = [
    _e("view split", lambda x: x.view(4, 3, 4), WIDE),
    _e("view join", lambda x: x.view(8, 6), CUBE),
    _e("view all", lambda x: x.view(-1), CUBE),
    _e("view regroup", lambda x: x.view(2, 24), CUBE),
    _e("view odd", lambda x: x.view(6, 4), X),
    _e("reshape heads", lambda x: x.view(4, 3, 2, 2).transpose(1, 2).reshape(4, 12), WIDE),
    _e("flatten", lambda x: x.flatten(1), CUBE),
    _e("unflatten", lambda x: x.unflatten(1, (2, 3)), X),
    _e("unsqueeze", lambda x: x.unsqueeze(1).squeeze(1).unsqueeze(-1), X),
    _e("transpose", lambda x: x.t() @ x, X),
    _e("permute", lambda x: x.permute(2, 0, 1), CUBE),
    _e("movedim", lambda x: x.movedim(0, 2), CUBE),
    _e("mT", lambda x: x.mT, CUBE),
    _e("expand", lambda x: x[:, None].expand(-1, 3, -1), X),
    _e("expand_as", lambda x, y: x.expand_as(y), reals(4, 1), X),
    _e("repeat", lambda x: x.repeat(2, 1, 3), X),
    _e("repeat_interleave", lambda x: x.repeat_interleave(3, 1), X),
    _e("slice", lambda x: x[1:3, ::2], X),
    _e("slice all", lambda x: x[:, :], X),
    _e("select", lambda x: x[1] + x[:, 0].sum(), X),
    _e("chunk", lambda x: [c * 2 for c in x.chunk(3, -1)], X),
    _e("split", lambda x: [c * 2 for c in x.split(4, -1)], X),
    _e("split sizes", lambda x: list(x.split([1, 5], -1)), X),
    _e("unbind", lambda x: x.unbind(1)[1] * 2, CUBE),
    _e("cat", lambda x, y: torch.cat([x, y], 1), X, Y),
    _e("stack", lambda x, y: torch.stack([x, y], 1), X, Y),
    _e("flip", lambda x: x.flip(1), X),
    _e("roll", lambda x: x.roll(1, 0), X),
    _e("tril", lambda x: x.tril(), X),
    _e("rotate", lambda x: torch.cat([-x[..., 3:], x[..., :3]], -1), X),
    _e("contiguous", lambda x: x.t().contiguous().clone(), X),
]

REDUCTIONS = [
    _e("sum", lambda x: x.sum(), X),
    _e("sum dim", lambda x: x.sum(1), CUBE),
    _e("sum keep", lambda x: x.sum((0, 2), keepdim=True), CUBE),
    _e("mean", lambda x: x.mean(), X),
    _e("mean dim", lambda x: x.mean(-1, keepdim=True), X),
    _e("amax", lambda x: x.amax(1), X),
    _e("max", lambda x: x.max(), X),
    _e("min tie", lambda x: x.round().amin(0), X),
    _e("max dim", lambda x: x.max(1).values, X),
    _e("argmax", lambda x: x.argmax(1), X),
    _e("var", lambda x: x.var(1, unbiased=False), X),
    _e("std", lambda x: x.std(0), X),
    _e("norm", lambda x: torch.linalg.vector_norm(x, dim=1), X),
    _e("prod", lambda x: x.prod(1), X),
    _e("logsumexp", lambda x: x.logsumexp(1), X),
    _e("any", lambda x: (x > 0).any(1), X),
    _e("softmax", lambda x: torch.softmax(x, -1), X),
    _e("log_softmax", lambda x: F.log_softmax(x, 0), X),
    _e("cumsum", lambda x: x.cumsum(1), X),
    _e("sort", lambda x: x.sort(1).values, X),
    _e("topk", lambda x: x.topk(2).values, X),
]

PRODUCTS = [
    _e("matmul", lambda x, w: x @ w, X, reals(6, 8)),
    _e("matmul batch", lambda x, w: x @ w, CUBE, reals(6, 8)),
    _e("matmul both", lambda x, w: x @ w, CUBE, reals(4, 6, 2)),
    _e("matmul vector", lambda x, w: x @ w, X, reals(6)),
    _e("mm", torch.mm, X, reals(6, 8)),
    _e("bmm", torch.bmm, CUBE, reals(4, 6, 2)),
    _e("mv", torch.mv, X, reals(6)),
    _e("dot", torch.dot, reals(8), reals(8, seed=1)),
    _e("outer", torch.outer, reals(8), reals(6)),
    _e("addmm", torch.addmm, reals(8), X, reals(6, 8)),
    _e("baddbmm", torch.baddbmm, reals(4, 2, 2), CUBE, reals(4, 6, 2)),
    _e("linear", F.linear, CUBE, reals(8, 6)),
    _e("linear bias", F.linear, CUBE, reals(8, 6), reals(8)),
    _e("einsum", lambda x, w: torch.einsum("bij,jk->bik", x, w), CUBE, reals(6, 2)),
    _e("einsum three", lambda x, y, w: torch.einsum("bi,bj,ij->b", x, y, w), X, Y, reals(6, 6)),
]

LAYERS = [
    _e("layer_norm", lambda x, w, b: F.layer_norm(x, (6,), w, b), CUBE, reals(6), reals(6, seed=1)),
    _e("rms_norm", lambda x, w: F.rms_norm(x, (6,), w, 1e-6), CUBE, reals(6)),
    _e("group_norm", lambda x, w, b: F.group_norm(x, 2, w, b), reals(4, 4, 3), reals(4), reals(4, seed=1)),
    _e("native_group_norm", lambda x, w, b: torch.native_group_norm(x, w, b, 4, 4, 3, 2, 1e-5)[0],
       reals(4, 4, 3), reals(4), reals(4, seed=1)),
    _e("group_norm many", lambda x, w, b: F.group_norm(x, 6, w, b), reals(2, 12, 2, 3), reals(12), reals(12, seed=1)),
    _e("embedding_bag", lambda w, i, o: F.embedding_bag(i, w, o, mode="sum"), reals(8, 6), indices(8, 10),
       torch.tensor([0, 3, 3, 7])),
    _e("embedding_bag weights", lambda w, i, s: F.embedding_bag(i, w, mode="sum", per_sample_weights=s),
       reals(8, 6), indices(8, 4, 3), reals(4, 3)),
    _e("embedding_bag mean", lambda w, i: F.embedding_bag(i, w) * F.embedding_bag(i, w, mode="max"),
       reals(8, 6), indices(8, 4, 3)),
    _e("attention", lambda q, k, v: F.scaled_dot_product_attention(q, k, v),
       *(reals(2, 4, 3, 5, seed=i) for i in range(3))),
    _e("attention causal", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
       *(reals(2, 4, 3, 5, seed=i) for i in range(3))),
    _e("attention groups", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True),
       reals(2, 4, 3, 6), reals(2, 2, 3, 6), reals(2, 2, 3, 6, seed=1)),
    _e("attention mask", lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m),
       *(reals(2, 4, 3, 5, seed=i) for i in range(3)), reals(2, 1, 3, 3)),
    _e("conv1d", lambda x, w, b: F.conv1d(x, w, b, padding=1), reals(4, 4, 5), reals(6, 4, 3), reals(6)),
    _e("conv2d", lambda x, w: F.conv2d(x, w, stride=2), reals(4, 4, 5, 5), reals(6, 4, 3, 3)),
    _e("pool", lambda x: F.max_pool2d(x, 2) + F.avg_pool2d(x, 2), reals(4, 4, 4, 4)),
    _e("embedding", lambda w, i: F.embedding(i, w), reals(8, 6), indices(8, 4, 2)),
    _e("embedding padding", lambda w, i: F.embedding(i, w, padding_idx=3), reals(8, 6), indices(8, 4, 2)),
    _e("embedding uneven", lambda w, i: F.embedding(i, w), reals(5, 6), indices(5, 4, 2)),
    _e("gather", lambda x, i: x.gather(1, i), X, indices(6, 4, 3)),
    _e("index", lambda x: x[:, torch.tensor([1, 0, 1])], CUBE),
    _e("index tensor", lambda x, i: x[i], X, indices(4, 3)),
    _e("index_select", lambda x, i: x.index_select(1, i), X, indices(6, 4)),
    _e("glu", F.glu, X),
    _e("cross entropy", lambda x, t: F.cross_entropy(x, t), reals(6, 8), indices(8, 6)),
    _e("cross entropy smooth", lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1, ignore_index=2),
       reals(6, 8), indices(8, 6)),
    _e("cross entropy rows", lambda x, t: F.cross_entropy(x, t, reduction="none"), reals(6, 8), indices(8, 6)),
    _e("cross entropy sum", lambda x, t: F.cross_entropy(x, t, reduction="sum"), reals(6, 7), indices(7, 6)),
    _e("cross entropy weight", lambda x, t, w: F.cross_entropy(x, t, w.detach(), label_smoothing=0.1),
       reals(6, 8), indices(8, 6),
       reals(8).abs()),
    _e("mse", F.mse_loss, X, Y),
    _e("one hot", lambda i: F.one_hot(i, 5).double(), indices(5, 4, 2)),
    _e("made inside", lambda x: x + torch.arange(6) * torch.full((4, 1), 2.0) + torch.eye(4, 6), X),
    _e("without gradient", lambda x: x * _without(x), X),
]  # fmt: skip

PLACES = [
    _e("scatter", lambda x, i, y: x.scatter(1, i, y), X, indices(6, 4, 6).sort(1).indices, Y),
    _e("scatter number", lambda x, i: x.scatter(1, i, 2.5), X, indices(6, 4, 3)),
    _e("scatter_add", lambda x, i, y: x.scatter_add(0, i, y), X, indices(4, 4, 6), Y),
    _e("scatter_reduce", lambda x, i, y: x.scatter_reduce(1, i, y, "amax"), X, indices(6, 4, 6).sort(1).indices, Y),
    _e("select_scatter", lambda x, y: torch.select_scatter(x, y, 1, 2), X, reals(4)),
    _e("slice_scatter", lambda x, y: torch.slice_scatter(x, y, 1, 1, 3), X, reals(4, 2)),
    _e("index_put", lambda x, i, y: torch.index_put(x, (i,), y), X, torch.tensor([2, 0]), reals(2, 6)),
    _e("index_add", lambda x, i, y: x.index_add(0, i, y), X, torch.tensor([2, 0, 2]), reals(3, 6)),
    _e("index_copy", lambda x, i, y: x.index_copy(1, i, y), X, torch.tensor([2, 0]), reals(4, 2)),
    _e("index_fill", lambda x, i: x.index_fill(1, i, 3.0), X, torch.tensor([2, 0])),
    _e("masked_scatter", lambda x, y: x.masked_scatter(x > 0, y), X, Y),
    _e("pad", lambda x: F.pad(x, (1, 2)) + F.pad(x, (1, 2), value=3.0), X),
    _e("pad reflect", lambda x: F.pad(x, (2, 1), mode="reflect") + F.pad(x, (2, 1), mode="replicate"), CUBE),
    _e("diagonal", lambda x: x.diagonal(0, 0, 2) * 2, CUBE),
    _e("bucketize", lambda x, b: torch.bucketize(x, b).double(), X, torch.tensor([-1.0, 0.0, 1.0]).double()),
    _e("isin", lambda i, j: torch.isin(i, j), indices(9, 4, 6), indices(9, 5)),
]

IMAGES = [
    _e("adaptive", lambda x: F.adaptive_avg_pool2d(x, 2) + F.adaptive_max_pool2d(x, 2), reals(4, 2, 4, 4)),
    _e("pool average", lambda x: F.avg_pool2d(x, 2), reals(4, 4, 4, 4)),
    _e("pool 3d average", lambda x: F.avg_pool3d(x, 2), reals(2, 2, 4, 4, 4)),
    _e("pool 3d", lambda x: F.avg_pool3d(x, 2) + F.max_pool3d(x, 2), reals(2, 2, 4, 4, 4)),
    _e("upsample", lambda x: F.interpolate(x, scale_factor=2) + F.interpolate(x, scale_factor=2, mode="bilinear"),
       reals(4, 2, 3, 3)),
    _e("im2col", lambda x: F.unfold(x, 2), reals(4, 2, 3, 3)),
    _e("col2im", lambda x: F.fold(x, (3, 3), 2), reals(4, 8, 4)),
    _e("unfold", lambda x: x.unfold(1, 3, 2), X),
    _e("fft", lambda x: torch.view_as_real(torch.fft.rfft(x, dim=1)), X),
    _e("batch_norm", lambda x, m, v, w, b: F.batch_norm(x, m.detach(), v.detach().abs() + 1, w, b), reals(4, 6, 3),
       *(reals(6, seed=i) for i in range(4))),
    _e("batch_norm training", lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True), reals(4, 6, 3),
       reals(6), reals(6, seed=1)),
    _e("batch_norm bare", lambda x: F.batch_norm(x, None, None, training=True), X),
    _e("instance_norm", lambda x: F.instance_norm(x), reals(4, 2, 6)),
    _e("cdist", lambda x, y: torch.cdist(x, y) + torch.cdist(x, y, p=1.0), CUBE, reals(4, 3, 6)),
    _e("cdist many", lambda x, y: torch.cdist(x, y), reals(30, 4), reals(26, 4)),
    _e("pdist", lambda x: F.pdist(x), X),
    _e("as_strided", lambda x: torch.as_strided(x * 2, (5, 4), (4, 2)), X),
    _e("grid_sample", lambda x, g: F.grid_sample(x, g.tanh(), align_corners=False), reals(2, 4, 3, 3),
       reals(2, 4, 4, 2)),
    _e("cross", lambda x, y: torch.linalg.cross(x, y, dim=1), reals(4, 3), reals(4, 3, seed=1)),
    _e("trace", torch.trace, X),
]  # fmt: skip

LOSSES = [
    _e("bce", lambda x, y: F.binary_cross_entropy_with_logits(x, y.sigmoid()), X, Y),
    _e("bce sum", lambda x, y: F.binary_cross_entropy(x.sigmoid(), y.sigmoid(), reduction="sum"), X, Y),
    _e("kl", lambda x, y: F.kl_div(F.log_softmax(x, 1), F.softmax(y, 1), reduction="batchmean"), X, Y),
    _e("smooth l1", lambda x, y: F.smooth_l1_loss(x, y) + F.huber_loss(x, y, reduction="sum"), X, Y),
]

EXAMPLES = [*POINTWISE, *VIEWS, *REDUCTIONS, *PRODUCTS, *LAYERS, *PLACES, *IMAGES, *LOSSES]


def _without(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return x.sum(0, keepdim=True)
