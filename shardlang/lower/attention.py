"""Teaches DTensor the operators of attention on a CPU, which it knows for CUDA only.

Attention pairs the batch and the head dims of query, key and value: each may be split as long as all are split alike
(grouped-query attention too, where whole groups go together). Sequence and channels stay whole.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch.distributed.tensor import Placement, Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding

_ALIKE = (Replicate(), Shard(0), Shard(1))


@cache
def register() -> None:
    """Registers the rules; once a process."""
    aten: Any = torch.ops.aten

    def forward(query: Any, key: Any, value: Any, *rest: Any, attn_mask: Any = None, **_: Any) -> Any:
        return [([p] * 2, [p] * 3 + [None] * len(rest) + _mask(attn_mask, p)) for p in _ALIKE]

    def backward(*args: Any, attn_mask: Any = None, **_: Any) -> Any:
        return [([p] * 3, [p] * 6 + [None] * (len(args) - 6) + _mask(attn_mask, p)) for p in _ALIKE]

    register_sharding(aten._scaled_dot_product_flash_attention_for_cpu.default)(forward)
    register_sharding(aten._scaled_dot_product_flash_attention_for_cpu_backward.default)(backward)


def _mask(mask: Any, placement: Placement) -> list[Placement]:
    """The placement of a mask ``[batch or 1, heads or 1, seq, seq]`` beside queries that are split by ``placement``."""
    if mask is None:
        return []
    if isinstance(placement, Shard) and len(mask.shape) == 4 and mask.shape[placement.dim] > 1:
        return [placement]
    return [Replicate()]
