"""What checking wants to know of a module: its parameters, its modules, and what is tied."""

from __future__ import annotations

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
    modules = tuple(name for name, _ in model.named_modules())
    return Facts(parameters, modules, tuple(tuple(n) for n in names.values() if len(n) > 1))


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a dtype in specs; torch's own where specs have none."""
    name = str(dtype).removeprefix("torch.")
    return _NAMES.get(name, name)
