"""The global view: plain PyTorch code on DTensors, with the values that it has on one device.

DTensor's dispatch does most of it. Three functions need more than it knows, and are ours while the view is open:
attention (on a CPU, with masks, with fewer key heads than ranks), rows of a table that is split, and cross entropy over
classes that are. They stand where torch's own Python looks them up in each call, so that it makes no difference who
calls; only code that imported ``scaled_dot_product_attention`` by its name keeps torch's, and DTensor's own way. A mode
that listens to all functions would not need that, and costs a tenth of a step's time: each look at a tensor's shape is
a function to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor
from torch.distributed.tensor.experimental import implicit_replication

from shardlang.lower import torch_tracing
from shardlang.runtime import loss
from shardlang.runtime.attention import local_attention
from shardlang.runtime.embedding import embedding, splits_rows


@contextmanager
def global_view() -> Iterator[None]:
    """Inside, a plain tensor that meets a DTensor is the whole value, and cross entropy may have a split vocabulary.

    A model that ``program.apply`` placed opens the view for its own calls. The loss belongs inside it as well, and so
    does ``backward`` where activations are computed again in it.
    """
    with ExitStack() as stack:
        if not _open:
            # Once only: where torch's own context is nested, the inner one ends it for all.
            stack.enter_context(implicit_replication())
            stack.enter_context(torch_tracing.functions_in_place(_attention, _embedding, _entropy))
        _open.append(True)
        stack.callback(_open.pop)
        yield


_open: list[bool] = []
"""One entry for each ``global_view`` that is open."""

_torch_attention, _torch_embedding, _torch_entropy = torch_tracing.functions_of_view()


def _attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, *rest: Any, **options: Any
) -> Any:
    found = local_attention(query, key, value, attn_mask, *rest, **options)
    return _torch_attention(query, key, value, attn_mask, *rest, **options) if found is None else found


def _embedding(
    weight: Tensor, indices: Tensor, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> Any:
    if not splits_rows(weight) or scale_grad_by_freq or sparse:
        return _torch_embedding(weight, indices, padding_idx, scale_grad_by_freq, sparse)
    return embedding(indices, weight, padding_idx if padding_idx >= 0 else None)


def _entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: int = 1,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Any:
    if not loss.splits_classes(input):
        return _torch_entropy(input, target, weight, reduction, ignore_index, label_smoothing)
    kind = ("none", "mean", "sum")[reduction]
    return loss.cross_entropy(
        input, target, weight, ignore_index=ignore_index, reduction=kind, label_smoothing=label_smoothing
    )
