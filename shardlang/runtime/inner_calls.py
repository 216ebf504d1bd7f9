"""Calls inside a compiled call that are not looked into: of modules with hooks of their own.

FSDP groups, checkpointed modules and eager ones have to be called as they are. A trace around them notes the call,
with the layouts that the module's own ``call`` line gives its arguments and results, and the program makes it: blocks
become DTensors, the module is called, hooks and all, and its results become blocks again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from attrs import frozen
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils import _pytree as pytree

from shardlang.diagnostics import ShardlangError, sl06_calls
from shardlang.layout import Layout
from shardlang.lower import torch_tracing
from shardlang.lower.placements import placements_of
from shardlang.plan.plan import dual
from shardlang.runtime.calls import Call
from shardlang.runtime.results import ArgumentKind, ResultKind
from shardlang.trace.capture import Inner, TensorType, call_inner, erased, tracing
from shardlang.trace.program import InnerCall

STATIC = (int, float, bool, str, type(None), torch.dtype, torch.device)
"""Types of arguments and results that a program may be made for."""


@frozen(eq=False)
class Apart:
    """A module that is called as it is. ``parameters`` is the dtype that FSDP gives its parameters and arguments,
    ``results`` that of its results; ``None`` leaves them."""

    module: nn.Module
    call: Call
    parameters: torch.dtype | None = None
    results: torch.dtype | None = None


@frozen(eq=False)
class Noted:
    """One call of such a module: its arguments and results, ``Tensor`` standing for a tensor, with their structure."""

    apart: Apart
    given: tuple[Any, ...]
    given_structure: pytree.TreeSpec
    made: tuple[Any, ...]
    made_structure: pytree.TreeSpec


def noting(parts: Sequence[Apart], noted: list[Noted]) -> AbstractContextManager[None]:
    """Inside, calls of these modules are noted in the trace under way, and in ``noted`` by their number."""
    return torch_tracing.intercepted_calls([(p.module, partial(_note, p, noted)) for p in parts])


def _note(apart: Apart, noted: list[Noted], *args: Any, **kwargs: Any) -> Any:
    if not tracing():
        return _as_fsdp(apart, args, kwargs)
    leaves, structure = pytree.tree_flatten((args, kwargs))
    call = apart.call
    for leaf in leaves:
        if not isinstance(leaf, (Tensor, *STATIC)):
            raise ShardlangError(sl06_calls.object_into_call(call.line.span, call.path, type(leaf).__name__))
    layouts = call.taken(call.named(args, kwargs))
    try:
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        by_value = {id(value): layouts[name] for name, value in call.named(args, kwargs).items() if name in layouts}
        output = _shapes(apart, leaves, structure)
        made, made_structure = pytree.tree_flatten(output)
        results = [leaf for leaf in made if isinstance(leaf, Tensor)]
        found = _result_layouts(call, output, made)
    finally:
        call.sizes.pop()
    inner = Inner(
        call.path,
        tuple(by_value.get(id(t)) for t in tensors),
        tuple((TensorType(tuple(t.shape), t.dtype), w) for t, w in zip(results, found, strict=True)),
    )
    noted.append(
        Noted(apart, _without_tensors(leaves), structure, _without_tensors(made), made_structure),
    )
    feed = iter(call_inner(inner, tensors))
    return pytree.tree_unflatten([next(feed) if isinstance(m, Tensor) else m for m in made], made_structure)


def _without_tensors(leaves: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(Tensor if isinstance(leaf, Tensor) else leaf for leaf in leaves)


def _shapes(apart: Apart, leaves: Sequence[Any], structure: pytree.TreeSpec) -> Any:
    """What the module gives for arguments of these shapes: its forward on tensors without storage."""
    module = apart.module
    with torch_tracing.without_modes(), erased(), torch_tracing.fake_mode(), torch.no_grad():

        def empty(t: Tensor) -> Tensor:
            return torch.empty(t.shape, dtype=t.dtype)

        held = {n: empty(t) for n, t in (*module.named_parameters(), *module.named_buffers())}
        filled = [empty(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        args, kwargs = pytree.tree_unflatten(filled, structure)
        return torch.func.functional_call(module, held, args, kwargs)


def _as_fsdp(apart: Apart, args: Any, kwargs: Any) -> Any:
    """The module's forward on whole tensors, with the casts that FSDP makes around it."""
    module = apart.module
    if apart.parameters is None and apart.results is None:
        return module.forward(*args, **kwargs)
    args, kwargs = pytree.tree_map_only(Tensor, _cast(apart.parameters), (args, kwargs))
    held = dict(module.named_parameters(recurse=True))
    casted = {n: _cast(apart.parameters)(p) for n, p in held.items()}
    owners = {n: (module.get_submodule(n.rpartition(".")[0])._parameters, n.rpartition(".")[2]) for n in held}
    for n, (owner, last) in owners.items():
        owner[last] = casted[n]  # type: ignore[assignment]  # a tensor in a parameter's place, as functional_call does
    try:
        output = module.forward(*args, **kwargs)
    finally:
        for n, (owner, last) in owners.items():
            owner[last] = held[n]
    return pytree.tree_map_only(Tensor, _cast(apart.results), output)


def _cast(dtype: torch.dtype | None) -> Callable[[Tensor], Tensor]:
    return lambda t: t.to(dtype) if dtype is not None and t.is_floating_point() else t


def _result_layouts(call: Call, output: Any, leaves: Sequence[Any]) -> list[Layout]:
    """The layout of each tensor that comes back. Raises ShardlangError where the line does not say it."""
    declared = {id(value): result for result, value in call.declared(output)}
    found: list[Layout] = []
    for leaf in leaves:
        if not isinstance(leaf, (Tensor, *STATIC)):
            raise ShardlangError(sl06_calls.object_out_of_call(call.line.span, call.path, type(leaf).__name__))
        if not isinstance(leaf, Tensor):
            continue
        (layout,) = call.layouts_of([declared.get(id(leaf))], [tuple(leaf.shape)])
        if layout is None:
            raise ShardlangError(sl06_calls.open_result(call.line.span, call.path, len(found)))
        found.append(layout)
    return found


def caller(noted: Noted, made: InnerCall, mesh: Any) -> Callable[..., tuple[Tensor, ...]]:
    """The call, as a function of this rank's blocks of its tensors."""
    kinds = [ResultKind(w, mesh, d) for w, d in zip(made.arguments, made.dtypes, strict=True)]
    results = [
        ArgumentKind(placements_of(dual(w)) or (), mesh, torch.Size(w.shape), d, placements_of(w) or ())
        for w, d in zip(made.results, made.result_dtypes, strict=True)
    ]
    module = noted.apart.module

    def call(*blocks: Tensor) -> tuple[Tensor, ...]:
        feed = iter([k.wrap(b) for k, b in zip(kinds, blocks, strict=True)])
        filled = [next(feed) if leaf is Tensor else leaf for leaf in noted.given]
        args, kwargs = pytree.tree_unflatten(filled, noted.given_structure)
        found = [t for t in pytree.tree_leaves(module(*args, **kwargs)) if isinstance(t, DTensor)]
        return tuple(k.block(t) for t, k in zip(found, results, strict=True))

    return call
