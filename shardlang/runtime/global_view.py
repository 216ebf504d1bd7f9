"""The global view: plain PyTorch code on DTensors, with the values that it has on one device.

DTensor's dispatch does most of it. Three functions need more than it knows, and are sent our way while the view is
open: attention (on a CPU, with masks, with fewer key heads than ranks), rows of a table that is split, and cross
entropy over classes that are.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.experimental import implicit_replication
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from shardlang.runtime.attention import local_attention
from shardlang.runtime.embedding import embedding, splits_rows
from shardlang.runtime.loss import cross_entropy


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
        _open.append(True)
        stack.callback(_open.pop)
        if not _Functions.listening:
            stack.enter_context(_Functions())
        yield


_open: list[bool] = []
"""One entry for each ``global_view`` that is open."""


class _Functions(TorchFunctionMode):
    """Sends some functions of DTensors our way.

    A mode does not listen while it handles a function, and ``backward`` is one: what is computed again in there opens
    the view anew.
    """

    listening = False

    def __enter__(self) -> Any:
        _Functions.listening = True
        return super().__enter__()  # type: ignore[no-untyped-call]  # torch does not annotate it

    def __exit__(self, *error: Any) -> None:
        _Functions.listening = False
        super().__exit__(*error)  # type: ignore[no-untyped-call]  # nor this

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        _Functions.listening = False
        try:
            return _OURS.get(func, func)(*args, **(kwargs or {}))
        finally:
            _Functions.listening = True


def _cross_entropy(input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    function = cross_entropy if isinstance(input, DTensor) else F.cross_entropy
    return function(input, *args, **kwargs)


def _attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, *rest: Any, **options: Any
) -> Tensor:
    found = local_attention(query, key, value, attn_mask, *rest, **options)
    if found is None:
        return F.scaled_dot_product_attention(query, key, value, attn_mask, *rest, **options)
    return found


def _embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    if not splits_rows(weight) or max_norm is not None or scale_grad_by_freq or sparse:
        return F.embedding(input, weight, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse)
    return embedding(input, weight, padding_idx)


_OURS = {
    F.cross_entropy: _cross_entropy,
    F.scaled_dot_product_attention: _attention,
    F.embedding: _embedding,
}
