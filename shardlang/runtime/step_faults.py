"""Why a training step could not be gone through: which operator, where in the user's code, and what line would help."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import torch
from attrs import frozen
from torch import nn

import shardlang
from shardlang.diagnostics import Diagnostic, sl06_calls, sl07_launch
from shardlang.diagnostics.prose import quoted
from shardlang.lower import torch_tracing
from shardlang.lower.model import LoweredModel
from shardlang.runtime.apply import modules_apart
from shardlang.source import Span

_REFUSED = re.compile(r"Sharding propagation failed for ([\w.]+)|Operator ([\w.]+) does not have a sharding strategy")
"""How DTensor says which operator it does not carry out."""
_NOT_THE_USERS = tuple(str(Path(package.__file__ or "").parent) for package in (torch, shardlang))


@frozen
class Place:
    """Where an error was raised: the last line that is neither torch's nor ours, and the innermost module called."""

    line: str | None
    module: str | None

    def __str__(self) -> str:
        if self.line is None and self.module is None:
            return "in the backward pass"
        module = f"in module `{self.module or 'root'}`" if self.module is not None else ""
        return ", ".join(part for part in (module, f"at {self.line}" if self.line else "") if part)


def step_fault(error: Exception, lowered: LoweredModel, module: nn.Module, span: Span | None) -> Diagnostic:
    """The diagnostic of what the user's loss, or its backward pass, raised: SL0666 where DTensor did, else SL0736."""
    place = _place(error, module)
    causes = list(_causes(error))
    refused = next(filter(None, map(_REFUSED.search, map(str, causes))), None)
    if refused is not None:
        operator = (refused[1] or refused[2]).removesuffix(".default")
        said = str(causes[-1]).strip().partition("\n")[0]
        return sl06_calls.not_dispatched(span, lowered.name, operator, str(place), said, _way_out(lowered, place))
    reason = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    valueless = isinstance(error, torch_tracing.data_dependent_errors())
    return sl07_launch.step_not_planned(span, lowered.name, reason, str(place), valueless)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _place(error: Exception, module: nn.Module) -> Place:
    names = {id(part): name for name, part in module.named_modules()}
    line: str | None = None
    inside: str | None = None
    frame: TracebackType | None = error.__traceback__
    while frame is not None:
        code, own = frame.tb_frame.f_code, frame.tb_frame.f_locals.get("self")
        if not code.co_filename.startswith((*_NOT_THE_USERS, "<")):
            line = f"{code.co_filename}:{frame.tb_lineno}"
        inside = names.get(id(own), inside)
        frame = frame.tb_next
    return Place(line, inside)


def _way_out(lowered: LoweredModel, place: Place) -> str:
    """The line that takes the operator out of DTensor's hands: bodies of calls are compiled to local operators."""
    called = dict(lowered.calls)
    lacking = [p for path, line in lowered.calls if not line.eager for p in modules_apart(path, lowered)]
    lacking = [p for p in dict.fromkeys(lacking) if p not in called]
    if lacking:
        return (
            f"write a `call` line for {quoted(lacking, 3)}: a module with an FSDP group or hooks of its own, and "
            "without such a line, leaves the call around it to DTensor"
        )
    around = [p for p in called if place.module is None or f"{place.module}.".startswith(f"{p}." if p else "")]
    eager = [p for p in around if called[p].eager]
    if eager:
        return f"remove `eager` from the `call` line of `{eager[-1] or 'root'}`: its body is then compiled"
    return "write a `call` line for the module around it: its body is then compiled to operators on local blocks"


__all__ = ["Place", "step_fault"]
