"""shardlang: says where every tensor of a PyTorch model lives on a device mesh, and makes it so.

``import shardlang as sl`` is light: a name loads the room it lives in when it is first used, and torch with it only
where torch is needed.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "Diagnostic": "shardlang.diagnostics",
    "ShardlangError": "shardlang.diagnostics",
    "ShardTensor": "shardlang.runtime.handle",
    "check_copies": "shardlang.runtime.copies",
    "clip_grad_norm_": "shardlang.runtime.gradients",
    "cross_entropy": "shardlang.runtime.loss",
    "deferred": "shardlang.runtime.deferred",
    "distribute": "shardlang.runtime.create",
    "empty": "shardlang.runtime.create",
    "from_local": "shardlang.runtime.create",
    "full": "shardlang.runtime.create",
    "global_mean": "shardlang.runtime.loss",
    "global_view": "shardlang.runtime.global_view",
    "grad_norm": "shardlang.runtime.gradients",
    "layout_of": "shardlang.runtime.reshard",
    "local": "shardlang.runtime.reshard",
    "manual_seed": "shardlang.runtime.seeds",
    "materialize": "shardlang.runtime.deferred",
    "ones": "shardlang.runtime.create",
    "place": "shardlang.runtime.batch",
    "plan": "shardlang.api",
    "rand": "shardlang.runtime.create",
    "randn": "shardlang.runtime.create",
    "reshard": "shardlang.runtime.reshard",
    "reshard_many": "shardlang.runtime.many",
    "load": "shardlang.api",
    "load_safetensors": "shardlang.runtime.safetensors_files",
    "load_state": "shardlang.runtime.checkpoint",
    "loads": "shardlang.api",
    "send_rows": "shardlang.runtime.rows",
    "save": "shardlang.runtime.checkpoint",
    "save_safetensors": "shardlang.runtime.safetensors_files",
    "state_dict": "shardlang.runtime.state",
    "rule": "shardlang.runtime.user_rules",
    "check_rule": "shardlang.runtime.user_rules",
    "local_map": "shardlang.runtime.user_rules",
    "sharded": "shardlang.runtime.sharded",
    "transfer": "shardlang.runtime.transfer",
    "zeros": "shardlang.runtime.create",
}

__all__ = ["__version__", *sorted(_HOMES)]


def __getattr__(name: str) -> Any:
    if name == "testing":
        return import_module("shardlang.testing")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'shardlang' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


class _Package(ModuleType):
    """This package, in which ``plan`` is the function.

    The room of the planner has the same name, and importing a room sets an attribute of its package; it is still
    found by ``from shardlang.plan import ...``.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if name != "plan" or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __dir__() -> list[str]:
    return __all__
