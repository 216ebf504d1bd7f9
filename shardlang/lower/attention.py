"""Teaches DTensor the operators of attention on a CPU, which it knows for CUDA only.

Attention pairs the batch and the head dims of query, key and value: each may be split as long as all are split alike
(grouped-query attention too, where whole groups go together). Sequence and channels stay whole.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding

_ALIKE = (Replicate(), Shard(0), Shard(1))


@cache
def register() -> None:
    """Registers the rules; once a process."""
    aten: Any = torch.ops.aten

    def forward(query: Any, key: Any, value: Any, *rest: Any, **_: Any) -> Any:
        return [([p] * 2, [p] * 3 + [None] * len(rest)) for p in _ALIKE]

    def backward(*args: Any, **_: Any) -> Any:
        return [([p] * 3, [p] * 6 + [None] * (len(args) - 6)) for p in _ALIKE]

    register_sharding(aten._scaled_dot_product_flash_attention_for_cpu.default)(forward)
    register_sharding(aten._scaled_dot_product_flash_attention_for_cpu_backward.default)(backward)
