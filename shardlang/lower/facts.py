"""What checking wants to know of a module: its parameters, its modules, and what is tied."""

from __future__ import annotations

import inspect

import torch
from torch import nn

from shardlang.check.facts import Facts, Tensor
from shardlang.dtypes import DTYPES

_NAMES = {d.torch_name: d.name for d in DTYPES.values()}


def facts_of(model: nn.Module) -> Facts:
    """Names, shapes and dtypes of a model's parameters; its modules; which names are one tied parameter."""
    parameters: dict[str, Tensor] = {}
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        parameters[name] = Tensor(tuple(parameter.shape), dtype_name(parameter.dtype), parameter.requires_grad)
        names.setdefault(id(parameter), []).append(name)
    modules = dict(model.named_modules())
    kinds = {type(module): _arguments(type(module)) for module in modules.values()}
    arguments: dict[str, tuple[str, ...]] = {}
    for name, module in modules.items():
        taken = kinds[type(module)]
        if taken is not None and "forward" not in vars(module):
            arguments[name] = taken
    tied = tuple(tuple(n) for n in names.values() if len(n) > 1)
    linear = frozenset(f"{n}.weight".removeprefix(".") for n, m in modules.items() if type(m) is nn.Linear)
    return Facts(parameters, tuple(modules), tied, arguments=arguments, linear=linear)


def _arguments(kind: type[nn.Module]) -> tuple[str, ...] | None:
    """The names of the arguments of ``forward``; ``None`` where it takes any, or is written in no Python."""
    try:
        parameters = list(inspect.signature(kind.forward).parameters.values())[1:]
    except (TypeError, ValueError):
        return None
    free = {inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL}
    return None if any(p.kind in free for p in parameters) else tuple(p.name for p in parameters)


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a dtype in specs; torch's own where specs have none."""
    name = str(dtype).removeprefix("torch.")
    return _NAMES.get(name, name)
