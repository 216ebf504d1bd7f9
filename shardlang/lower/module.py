"""A user's model: importing what a file refers to, and building it, by default on the meta device."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from shardlang.diagnostics import ShardlangError, sl06_models
from shardlang.diagnostics.prose import did_you_mean
from shardlang.source import Span

if TYPE_CHECKING:
    from torch import nn


def import_module_of(reference: str, span: Span | None = None) -> ModuleType:
    """The module of a reference ``pkg.mod:fn``; the working directory comes first on the import path.

    Raises SL0612 where it cannot be imported, with the reason and the line that raised it.
    """
    name = reference.partition(":")[0]
    if "/" in name or (name.endswith(".py") and Path(name).exists()):
        written = ".".join(Path(name.removesuffix(".py")).parts).strip("./")
        reason, helps = f"`{name}` is a file, not a module", (f"write `{written}:{reference.partition(':')[2]}`",)
        raise ShardlangError(sl06_models.model_not_imported(span, reference, reason, (), helps))
    directory = str(Path.cwd())
    if sys.path[:1] != [directory]:
        sys.path.insert(0, directory)
    try:
        with _quiet():
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            reason = f"there is no module `{error.name}`"
            notes = (f"the import path begins with the working directory, {directory}",)
            raise ShardlangError(sl06_models.model_not_imported(span, reference, reason, notes)) from None
        raise ShardlangError(sl06_models.model_not_imported(span, reference, *_reason(error))) from None
    except (Exception, SystemExit) as error:
        raise ShardlangError(sl06_models.model_not_imported(span, reference, *_reason(error))) from None


def import_function(reference: str, span: Span | None = None) -> Any:
    """What a reference ``pkg.mod:fn`` names, which can be called. Raises SL0612."""
    name, _, path = reference.partition(":")
    if not name or not path:
        reason = "it is not of the form `package.module:function`"
        raise ShardlangError(sl06_models.model_not_imported(span, reference, reason))
    found: Any = import_module_of(reference, span)
    for part in path.split("."):
        if not hasattr(found, part):
            reason = f"module `{name}` has no `{path}`"
            near = did_you_mean(part, [n for n in dir(found) if not n.startswith("_")])
            raise ShardlangError(sl06_models.model_not_imported(span, reference, reason, (), near))
        found = getattr(found, part)
    if not callable(found):
        reason = f"`{path}` cannot be called"
        raise ShardlangError(sl06_models.model_not_imported(span, reference, reason))
    return found


def build_model(reference: str, span: Span | None = None, *, device: str = "meta") -> nn.Module:
    """The model that ``pkg.mod:fn`` builds, by default without memory, on the meta device. Raises SL0612 and SL0613."""
    build = import_function(reference, span)
    import torch
    from torch import nn

    try:
        with _quiet(), torch.device(device), _without_fills() if device == "meta" else nullcontext():
            model = build()
    except (Exception, SystemExit) as error:
        raise ShardlangError(sl06_models.model_not_built(span, reference, *_reason(error))) from None
    if not isinstance(model, nn.Module):
        reason = f"it gives {type(model).__name__}, not a torch.nn.Module"
        raise ShardlangError(sl06_models.model_not_built(span, reference, reason))
    return model


@contextmanager
def _quiet() -> Iterator[None]:
    """What a user's module prints goes to standard error: standard output is for our products."""
    with redirect_stdout(sys.stderr):
        yield


def _without_fills() -> Any:
    """A mode in which tensors without storage are not filled with numbers: torch would go through its compiler's whole
    package for a ``normal_`` of nothing, which takes longer to import than the rest of a check."""
    import torch
    from torch.overrides import TorchFunctionMode

    fills = {torch.Tensor.normal_, torch.Tensor.uniform_}

    class Mode(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            initialises = getattr(func, "__module__", None) == "torch.nn.init" and func.__name__.endswith("_")
            if func in fills or initialises:
                filled = args[0] if args else kwargs.get("tensor")
                if isinstance(filled, torch.Tensor) and filled.is_meta:
                    return filled
            return func(*args, **kwargs)

    return Mode()


def _reason(error: BaseException) -> tuple[str, tuple[str, ...]]:
    """What an exception says in one line, and where in the user's code it was raised."""
    text = str(error).strip().partition("\n")[0]
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "importlib" not in f.filename]
    ours = str(Path(__file__))
    places = [f"{f.filename}:{f.lineno}" for f in frames if f.filename != ours]
    name = type(error).__name__
    return (f"{name}: {text}" if text else name), ((f"raised at {places[-1]}",) if places else ())
