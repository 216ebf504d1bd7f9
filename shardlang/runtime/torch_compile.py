"""``compile`` lines: modules of a placed model through ``torch.compile``.

What a ``call`` line makes of a module is a local program, one function of plain tensors in which each collective is one
opaque operator: that function is compiled, as one graph. A module with no program of its own has its forward compiled
on DTensors as it is; graphs end at the modules inside it that have hooks or programs of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import nn

from shardlang.diagnostics import ShardlangError, sl06_calls
from shardlang.lower.model import LoweredModel

Compiler = Callable[[Callable[..., Any]], Callable[..., Any]]


def compilers(lowered: LoweredModel) -> dict[str, Compiler]:
    """How the modules of ``compile`` lines are compiled, by name.

    Raises ShardlangError (SL0661) for a backend that torch does not have.
    """
    made: dict[str, Compiler] = {}
    for path, line in lowered.compile:
        backend = line.backend or "inductor"
        known = torch.compiler.list_backends(exclude_tags=())
        if backend not in known:
            raise ShardlangError(sl06_calls.unknown_backend(line.pattern.span, backend, known))
        # Each set of shapes has a program of its own, and a module sees few.
        made[path] = partial(torch.compile, backend=backend, dynamic=False)
    return made


def compiler_for(path: str, made: dict[str, Compiler]) -> Compiler | None:
    """How a module is compiled: as its own line says, or that of the nearest module around it."""
    while path not in made and path:
        path = path.rpartition(".")[0]
    return made.get(path)


def compile_forward(module: nn.Module, compiler: Compiler, apart: Iterable[nn.Module]) -> None:
    """Compiles a module's forward as it is. Modules ``apart`` inside it are called from it, hooks and all."""
    for part in apart:
        part._compiled_call_impl = torch.compiler.disable(part._call_impl)
    module.forward = compiler(module.forward)


__all__ = ["Compiler", "compile_forward", "compiler_for", "compilers"]
