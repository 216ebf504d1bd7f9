"""What a forward pass keeps for the backward pass, counted without making it; and the peak of a step that follows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_map_only

from shardlang.check.memory import Memory
from shardlang.lower import torch_private


class Kept:
    """Counts the tensors that autograd saves while ``watching``: each storage once, a model's own not at all.

    A ``forgetful`` module (a checkpointed one) keeps its inputs only; what it would keep else is there again while its
    backward pass runs, one such module at a time.
    """

    def __init__(self, module: nn.Module, forgetful: Iterable[str] = ()) -> None:
        own = [*module.parameters(), *module.buffers()]
        self._own = {_storage_key(t) for t in own}
        self._sizes: dict[int, tuple[int, Tensor]] = {}
        self._inside: dict[str, dict[int, tuple[int, Tensor]]] = {}
        self._current: list[str] = []
        for path in forgetful:
            part = module.get_submodule(path)
            part.register_forward_pre_hook(partial(self._enter, path), with_kwargs=True)
            part.register_forward_hook(self._leave)

    @contextmanager
    def watching(self) -> Iterator[None]:
        with saved_tensors_hooks(self._keep, lambda t: t):
            yield

    def _enter(self, path: str, _: nn.Module, args: Any, kwargs: Any) -> None:
        tree_map_only(Tensor, self._keep, (args, kwargs))
        self._current.append(path)

    def _leave(self, *_: Any) -> None:
        self._current.pop()

    def _keep(self, saved: Tensor) -> Tensor:
        key = _storage_key(saved)
        if key not in self._own:
            kept = self._inside.setdefault(self._current[0], {}) if self._current else self._sizes
            # The tensor is kept so that no other storage gets its place.
            kept[key] = _block(saved).untyped_storage().nbytes(), saved
        return saved

    @property
    def bytes(self) -> int:
        """What is alive as the backward pass begins."""
        return sum(size for size, _ in self._sizes.values())

    @property
    def again(self) -> int:
        """The most that a forgetful module keeps while it computes again, beside its inputs."""
        return max(
            (sum(n for key, (n, _) in kept.items() if key not in self._sizes) for kept in self._inside.values()),
            default=0,
        )

    @property
    def largest(self) -> int:
        every = [self._sizes, *self._inside.values()]
        return max((size for kept in every for size, _ in kept.values()), default=0)


def _block(x: Tensor) -> Tensor:
    return torch_private.block_of(x) if isinstance(x, DTensor) else x


def _storage_key(x: Tensor) -> int:
    return torch_private.storage_key(_block(x))


def peak(fixed: Memory, kept: Kept) -> int:
    """Bytes at the peak of a step after the first.

    Parameters and optimizer states are always there. As the backward pass begins, all that the forward pass kept is
    still alive, with what FSDP gathers and the first gradients of activations (two of the largest); as it ends, all
    gradients are. The peak is the greater of the two.
    """
    begins = kept.bytes + kept.again + 2 * kept.largest + fixed.forward
    ends = fixed.gradients + fixed.gathered
    return fixed.parameters + fixed.optimizer + max(begins, ends)
