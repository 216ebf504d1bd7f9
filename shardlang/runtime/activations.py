"""What a forward pass keeps for the backward pass, counted without making it; and the peak of a step that follows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.tensor import DTensor

from shardlang.check.memory import Memory
from shardlang.lower import torch_private


class Kept:
    """Counts the tensors that autograd saves while ``watching``: each storage once, a model's own not at all."""

    def __init__(self, module: nn.Module) -> None:
        own = [*module.parameters(), *module.buffers()]
        self._own = {_storage_key(t) for t in own}
        self._sizes: dict[int, tuple[int, Tensor]] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        with saved_tensors_hooks(self._keep, lambda t: t):
            yield

    def _keep(self, saved: Tensor) -> Tensor:
        key = _storage_key(saved)
        if key not in self._own:
            # The tensor is kept so that no other storage gets its place.
            self._sizes[key] = _block(saved).untyped_storage().nbytes(), saved
        return saved

    @property
    def bytes(self) -> int:
        return sum(size for size, _ in self._sizes.values())

    @property
    def largest(self) -> int:
        return max((size for size, _ in self._sizes.values()), default=0)


def _block(x: Tensor) -> Tensor:
    return torch_private.block_of(x) if isinstance(x, DTensor) else x


def _storage_key(x: Tensor) -> int:
    return torch_private.storage_key(_block(x))


def peak(fixed: Memory, kept: Kept) -> int:
    """Bytes at the peak of a step after the first.

    Parameters and optimizer states are always there. As the backward pass begins, all that the forward pass kept is
    still alive, with what FSDP gathered and the first gradients of activations (two of the largest); as it ends, all
    gradients are. The peak is the greater of the two.
    """
    begins = kept.bytes + 2 * kept.largest + fixed.gathered // 2
    ends = fixed.gradients + fixed.gathered
    return fixed.parameters + fixed.optimizer + max(begins, ends)
