"""Building a model without its memory: what the builder does to tensors is recorded, and done later, block by block.

While ``deferred`` builds, new tensors are on the meta device and every operation on them is noted. ``materialize``
goes through what led to a parameter and makes the part that this rank stores. Random numbers come from the
counter-based generator, by seed, number of the draw and global index, so that a model has the same weights on any mesh
and on one device. Most parameters are filled in place by operations that act on each element alone; these are made in
parts. Any other (an orthogonal matrix) is made whole, one at a time, and cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakKeyDictionary

import torch
from attrs import frozen
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from shardlang.diagnostics import ShardlangError, sl06_calls
from shardlang.layout import Runs
from shardlang.lower import torch_private, torch_tracing
from shardlang.runtime import blocks, generate
from shardlang.runtime.applied import applied_to, stored_runs
from shardlang.runtime.apply import reduce_gradients
from shardlang.runtime.float8 import casting_like

FACTORIES = {
    "empty", "zeros", "ones", "full", "rand", "randn", "arange", "linspace", "eye", "empty_strided", "randint",
    "randperm", "scalar_tensor", "tril_indices", "triu_indices", "logspace",
}  # fmt: skip
"""Operators that make tensors from nothing."""
ALONE = {
    "uniform_", "normal_", "fill_", "zero_", "mul_", "add_", "sub_", "div_", "erfinv_", "clamp_", "neg_", "exp_",
    "log_", "sqrt_", "pow_", "abs_", "detach", "alias", "detach_", "empty", "zeros", "ones", "full",
}  # fmt: skip
"""Operators that act on each element of a tensor alone, where their other arguments are numbers."""


@frozen(eq=False)
class Entry:
    """One operation as the builder made it, on tensors that are not there. ``draw`` numbers the random ones."""

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: tuple[Tensor, ...]
    draw: int

    def tensors(self) -> Iterator[Tensor]:
        for leaf in tree_leaves((self.args, self.kwargs)):
            if isinstance(leaf, Tensor):
                yield leaf


class Record(TorchDispatchMode):
    """Notes what a builder does. ``constants`` holds, by storage, the tensors that were real."""

    def __init__(self, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch does not annotate it
        self.seed = seed
        self.entries: list[Entry] = []
        self.constants: dict[int, tuple[Tensor, Tensor]] = {}
        self._draws = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunction():
            return self._note(func, args, dict(kwargs or {}))

    def _note(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        makes = func._opname in FACTORIES and torch.device(kwargs.get("device") or "cpu").type == "cpu"
        given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        if not makes and not any(t.is_meta for t in given):
            return func(*args, **kwargs)
        if makes:
            kwargs["device"] = torch.device("meta")
            kwargs.pop("pin_memory", None)
        args, kwargs = tree_map_only(Tensor, self._stand_in, (args, kwargs))
        made = func(*args, **kwargs)
        results = tuple(t for t in tree_leaves(made) if isinstance(t, Tensor))
        random = torch.Tag.nondeterministic_seeded in func.tags
        self._draws += random
        self.entries.append(Entry(func, args, kwargs, results, self._draws if random else 0))
        return made

    def _stand_in(self, tensor: Tensor) -> Tensor:
        if tensor.is_meta:
            return tensor
        twin = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
        self.constants[torch_private.storage_key(twin)] = twin, tensor.detach().clone()
        return twin

    def block(self, wanted: Tensor, part: tuple[Runs, ...], local: tuple[int, ...]) -> Tensor:
        """The part of a recorded tensor with these runs, on the CPU. ``local`` is its shape."""
        entries = self._history(wanted)
        everything = tuple(((0, n),) if n else () for n in wanted.shape)
        if part != everything and all(self._alone(e, wanted) for e in entries):
            return _Replay(self, part, local).run(entries, wanted)
        whole = _Replay(self, None, tuple(wanted.shape)).run(entries, wanted)
        if part == everything:
            return whole
        return blocks.read(whole, blocks.select(tuple(whole.shape), blocks.window(everything, part))).clone()

    def _history(self, wanted: Tensor) -> list[Entry]:
        """What led to a tensor, in order: whatever wrote to its storage, and to those it was made from."""
        needed = {torch_private.storage_key(wanted)}
        found: list[Entry] = []
        for entry in reversed(self.entries):
            touched = {torch_private.storage_key(t) for t in entry.results}
            if touched & needed:
                found.append(entry)
                needed |= {torch_private.storage_key(t) for t in entry.tensors()}
        return found[::-1]

    def _alone(self, entry: Entry, wanted: Tensor) -> bool:
        key = torch_private.storage_key(wanted)
        every = [*entry.tensors(), *entry.results]
        return entry.func._opname in ALONE and all(
            torch_private.storage_key(t) == key and t.shape == wanted.shape and t.stride() == wanted.stride()
            for t in every
        )


class _LikeReal(TorchFunctionMode):
    """Says of tensors that they are on the CPU: some of torch's initialisers do nothing to one that is not."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        asked = getattr(func, "__self__", None)  # the property, where a property is read
        if asked is torch.Tensor.is_meta:
            return False
        if asked is torch.Tensor.device:
            return torch.device("cpu")
        return func(*args, **(kwargs or {}))


class _Replay:
    """Does recorded operations on real tensors: whole ones, or (``part``) the same part of each."""

    def __init__(self, record: Record, part: tuple[Runs, ...] | None, local: tuple[int, ...]) -> None:
        self.record, self.part, self.local = record, part, local
        self.storages: dict[int, Tensor] = {}

    def run(self, entries: list[Entry], wanted: Tensor) -> Tensor:
        with torch.no_grad():
            for entry in entries:
                self._do(entry)
            return self._real(wanted).clone(memory_format=torch.contiguous_format)

    def _do(self, entry: Entry) -> None:
        args, kwargs = tree_map_only(Tensor, self._real, (entry.args, entry.kwargs))
        if "device" in kwargs:
            kwargs["device"] = torch.device("cpu")
        name = entry.func._opname
        if entry.draw and name in ("uniform_", "normal_"):
            self._draw(entry, name, args[0], args[1:], kwargs)
            return
        if self.part is not None and name in FACTORIES:
            args = (self.local, *args[1:])
        if entry.draw:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(self._seed(entry))
                made = entry.func(*args, **kwargs)
        else:
            made = entry.func(*args, **kwargs)
        real = (t for t in tree_leaves(made) if isinstance(t, Tensor))
        for meta, result in zip(entry.results, real, strict=True):
            self.storages.setdefault(torch_private.storage_key(meta), result)

    def _seed(self, entry: Entry) -> int:
        return (self.record.seed << 32) + entry.draw

    def _draw(self, entry: Entry, name: str, target: Tensor, numbers: tuple[float, ...], kwargs: Any) -> None:
        """Fills a tensor by global index. ``numbers``: low and high, or mean and deviation."""
        shape = tuple(entry.args[0].shape)
        part = self.part or tuple(((0, n),) if n else () for n in shape)
        first, second = [*numbers, *(0.0, 1.0)[len(numbers) :]]
        first = kwargs.get("from", kwargs.get("mean", first))
        second = kwargs.get("to", kwargs.get("std", second))
        precise = torch.float64 if target.dtype == torch.float64 else torch.float32
        if name == "uniform_":
            made = generate.uniform(part, shape, self._seed(entry), precise) * (second - first) + first
        else:
            made = generate.normal(part, shape, self._seed(entry), precise) * second + first
        target.copy_(made.reshape(target.shape))

    def _real(self, meta: Tensor) -> Tensor:
        """The real tensor in the place of a recorded one: its storage seen with the same shape and strides."""
        if not meta.is_meta:
            return meta
        key = torch_private.storage_key(meta)
        if key in self.record.constants and key not in self.storages:
            self.storages[key] = self.record.constants[key][1].clone()
        real = self.storages[key]
        if self.part is not None:
            return real
        return real.as_strided(meta.shape, meta.stride(), meta.storage_offset())


_records: WeakKeyDictionary[nn.Module, Record] = WeakKeyDictionary()


def deferred(build: Callable[[], nn.Module], *, seed: int = 0) -> nn.Module:
    """The model that ``build`` makes, without memory for its tensors; ``materialize`` makes them.

    ``build`` may do to its tensors whatever needs no values (``.item()`` does).
    """
    record = Record(seed)
    with record, _LikeReal(), torch_tracing.truncated_normals_by_inverse():
        module = build()
    _records[module] = record
    return module


def materialize(module: nn.Module, device: str | torch.device = "cpu") -> nn.Module:
    """Gives a deferred model its tensors, in place: on a mesh (after ``program.apply``) what this rank stores.

    Raises SL0640 for a model whose building was not recorded.
    """
    record = _records.get(module)
    if record is None:
        raise ShardlangError(sl06_calls.not_deferred(type(module).__name__))
    applied = applied_to(module)
    sources = applied.sources if applied is not None else {}
    made: dict[int, Tensor] = {}
    for path, part in module.named_modules():
        for tensors in (part._parameters, part._buffers):
            for last, tensor in list(tensors.items()):
                if tensor is None or not torch_private.is_empty(tensor):
                    continue
                name = f"{path}.{last}" if path else last
                if id(tensor) not in made:
                    source = sources.get(name, tensor)
                    runs = stored_runs(applied, name, tuple(source.shape))
                    made[id(tensor)] = _filled(record, tensor, source, runs, device)
                tensors[last] = made[id(tensor)]
    if applied is not None:
        reduce_gradients(applied.lowered, module, applied.boundary)
    return module


def _filled(
    record: Record, tensor: Tensor, source: Tensor, part: tuple[Runs, ...], device: str | torch.device
) -> Tensor:
    """A tensor in the place of an empty one: a parameter for a parameter, a DTensor for a DTensor."""
    local = tuple(sum(b - a for a, b in runs) for runs in part)
    made = record.block(source, part, local).to(device)
    if isinstance(tensor, DTensor):
        made = casting_like(made, tensor.to_local())
        spec = torch_private.spec_of(tensor)
        if isinstance(tensor, nn.Parameter):
            return torch_private.parameter_of(made, spec, tensor.requires_grad)
        return torch_private.dtensor_of(made, spec, requires_grad=False)
    return nn.Parameter(made, requires_grad=tensor.requires_grad) if isinstance(tensor, nn.Parameter) else made
