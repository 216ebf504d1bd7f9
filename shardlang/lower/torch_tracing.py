"""The private parts of torch that tracing touches: its modes, fake tensors, graphs and trackers.

Each with its reason and the versions it was seen in; the others are in ``torch_private``.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx


def trace_graph(function: Callable[..., Any], arguments: list[torch.Tensor], on_node: Callable[[fx.Node], None]) -> Any:
    """``make_fx`` before dispatch, with ``on_node`` called for each node as the user's code makes it.

    ``make_fx`` keeps stack traces for frames called ``forward`` only; the tracer that runs is reached through
    ``get_proxy_mode``. Seen in torch 2.11 to 2.13.
    """
    from torch.fx.experimental.proxy_tensor import get_proxy_mode, make_fx

    def watched(*values: torch.Tensor) -> Any:
        mode = get_proxy_mode()
        assert mode is not None
        tracer: Any = mode.tracer
        create = tracer.create_node

        def create_node(*args: Any, **kwargs: Any) -> fx.Node:
            node: fx.Node = create(*args, **kwargs)
            on_node(node)
            return node

        tracer.create_node = create_node
        try:
            return function(*values)
        finally:
            del tracer.create_node

    return make_fx(watched, pre_dispatch=True, tracing_mode="real")(*arguments)


def fake_mode() -> Any:
    """A mode in which tensors have shapes and no storage; tensors from outside are let in, to be told apart later.

    Seen in torch 2.11 to 2.13.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode(allow_non_fake_inputs=True)


def functions_of_view() -> tuple[Callable[..., Any], ...]:
    """Torch's attention, embedding and cross entropy, from where ``functions_in_place`` puts others."""
    return tuple(getattr(home, name) for home, name in _homes())


def _homes() -> tuple[tuple[Any, str], ...]:
    return (
        (torch.nn.functional, "scaled_dot_product_attention"),
        (torch, "embedding"),
        (torch._C._nn, "cross_entropy_loss"),
    )


@contextmanager
def functions_in_place(*ours: Callable[..., Any]) -> Iterator[None]:
    """Inside, these are torch's attention, embedding and cross entropy, for whoever looks them up there.

    What torch offers for this, a ``TorchFunctionMode``, sees every function on every tensor, at one or two
    microseconds each. ``F.embedding`` and ``F.cross_entropy`` look up ``torch.embedding`` and the private
    ``torch._C._nn.cross_entropy_loss`` in each call. Seen in torch 2.11 to 2.13.
    """
    before = functions_of_view()
    for (home, name), function in zip(_homes(), ours, strict=True):
        setattr(home, name, function)
    try:
        yield
    finally:
        for (home, name), function, own in zip(_homes(), ours, before, strict=True):
            if getattr(home, name) is function:
                setattr(home, name, own)


def memory_tracker() -> Any:
    """Torch's ``MemTracker``, for models with frozen parameters too.

    It puts a hook on the gradient of every parameter that a module has when it is called, which torch refuses on one
    that has none; a parameter in ``_param_to_grad_hook_handles`` is passed over. Seen in torch 2.11 to 2.13.
    """
    from torch.distributed._tools.mem_tracker import MemTracker
    from torch.utils.hooks import RemovableHandle

    class Tracker(MemTracker):
        def _track_module_params_and_buffers(self, module: Any, install_grad_hooks: bool = True) -> tuple[int, int]:
            for parameter in module.parameters():
                if not parameter.requires_grad:
                    nothing = RemovableHandle(OrderedDict()), RemovableHandle(OrderedDict())
                    self._param_to_grad_hook_handles.setdefault(parameter, nothing)
            found: tuple[int, int] = super()._track_module_params_and_buffers(module, install_grad_hooks)
            return found

    return Tracker()


def is_fake(tensor: torch.Tensor) -> bool:
    """Has a tensor a shape and no values (``is_fake``, for wrappers too)? Seen in torch 2.11 to 2.13."""
    from torch._subclasses.fake_tensor import is_fake as torch_says

    return bool(torch_says(tensor)) or tensor.is_meta


def data_dependent_errors() -> tuple[type[Exception], type[Exception]]:
    """What a fake tensor raises for ``.item()`` and the like, and for results whose shape depends on values.

    Seen in torch 2.11 to 2.13.
    """
    from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

    return DataDependentOutputException, DynamicOutputShapeException


def is_composite(op: torch._ops.OpOverload) -> bool:
    """Does torch make this operator of others, also under autograd? Seen in torch 2.11 to 2.13."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "CompositeImplicitAutograd")


AUTOCAST: tuple[Any, ...] = (torch.amp.autocast_mode._enter_autocast, torch.amp.autocast_mode._exit_autocast)
"""What stands in a graph for the ends of a ``with torch.autocast(..)``, beside what it casts in between: nothing is
noted of that. Seen in torch 2.11 to 2.13."""


def autocast_state() -> tuple[tuple[str, torch.dtype], ...]:
    """The types of device for which autocast is on, of the CPU and the accelerator, each with what it casts to.

    Whether it is on at all is asked first, at a private place (``_is_any_autocast_enabled``). Seen in torch 2.13.
    """
    if not torch._C._is_any_autocast_enabled():
        return ()
    accelerator = torch.accelerator.current_accelerator()
    devices = ("cpu",) if accelerator is None else ("cpu", accelerator.type)
    return tuple((d, torch.get_autocast_dtype(d)) for d in devices if torch.is_autocast_enabled(d))


@contextmanager
def without_modes() -> Iterator[None]:
    """Within it no ``TorchFunctionMode`` or ``TorchDispatchMode`` of the surroundings sees what runs.

    Torch can only set them all aside by popping its stack of function modes (``_pop_torch_function_stack``) and by
    ``_disable_current_modes``. Seen in torch 2.11 to 2.13.
    """
    from torch.utils._python_dispatch import _disable_current_modes

    count = torch._C._len_torch_function_stack()
    aside = [torch._C._pop_torch_function_stack() for _ in range(count)]
    try:
        with _disable_current_modes():
            yield
    finally:
        for mode in reversed(aside):
            torch._C._push_on_torch_function_stack(mode)


def in_backward() -> bool:
    """Is this thread inside a backward pass, as what activation checkpointing computes again is?

    Autograd numbers the passes under way (``_current_graph_task_id``). Seen in torch 2.11 to 2.13.
    """
    return torch._C._current_graph_task_id() != -1


@contextmanager
def intercepted_calls(calls: list[tuple[Any, Callable[..., Any]]]) -> Iterator[None]:
    """Inside, calling one of these modules calls the function beside it, and none of the module's hooks.

    A module's ``_compiled_call_impl`` (what ``Module.compile`` sets) comes before hooks and forward. Seen in torch
    2.11 to 2.13.
    """
    before = [module._compiled_call_impl for module, _ in calls]
    for module, function in calls:
        module._compiled_call_impl = function
    try:
        yield
    finally:
        for (module, _), own in zip(calls, before, strict=True):
            module._compiled_call_impl = own


@contextmanager
def truncated_normals_by_inverse() -> Iterator[None]:
    """Inside, ``nn.init.trunc_normal_`` draws one number an element, by the inverse of the distribution.

    Torch's own draws until every number fits, for which it looks at values; on tensors without values it does
    nothing. It is one function of ``torch.nn.init`` (``_no_grad_trunc_normal_``). Seen in torch 2.11 to 2.13.
    """

    def fill(tensor: torch.Tensor, mean: float, std: float, a: float, b: float, generator: Any = None) -> torch.Tensor:
        low, high = (math.erf((x - mean) / std / math.sqrt(2.0)) for x in (a, b))
        with torch.no_grad():
            tensor.uniform_(low, high, generator=generator).erfinv_().mul_(std * math.sqrt(2.0)).add_(mean)
            return tensor.clamp_(min=a, max=b)

    own = torch.nn.init._no_grad_trunc_normal_
    torch.nn.init._no_grad_trunc_normal_ = fill
    try:
        yield
    finally:
        torch.nn.init._no_grad_trunc_normal_ = own


@contextmanager
def strided_sizes_outside_modes() -> Iterator[None]:
    """Inside, DTensor finds the sizes of strided blocks on values, whatever modes are on.

    ``_StridedShard`` cuts an arange and reads where a block begins (``local_shard_size_and_offset``), which a tensor
    without values cannot say. Seen in torch 2.11 to 2.13.
    """
    from torch.distributed.tensor.placement_types import _StridedShard

    own = _StridedShard.local_shard_size_and_offset

    def with_values(*args: Any, **options: Any) -> Any:
        with without_modes():
            return own(*args, **options)

    _StridedShard.local_shard_size_and_offset = with_values  # type: ignore[method-assign]  # put back below
    try:
        yield
    finally:
        _StridedShard.local_shard_size_and_offset = own  # type: ignore[method-assign]  # as it was
