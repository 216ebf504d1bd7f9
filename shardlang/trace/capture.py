"""A function of tensors as a graph of operators on global shapes, with the user's line at each."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from keyword import iskeyword
from types import FrameType
from typing import Any

import torch
from attrs import field, frozen
from torch import fx
from torch.utils import _pytree as pytree

from shardlang.diagnostics import ShardlangError, sl05_functions
from shardlang.layout import Layout
from shardlang.lower.torch_tracing import (
    AUTOCAST,
    autocast_state,
    data_dependent_errors,
    fake_mode,
    trace_graph,
    without_modes,
)
from shardlang.source import Source, Span

_OURS = ("torch", "shardlang.trace", "shardlang.lower", "shardlang.runtime")


@frozen
class Site:
    """A place in the user's Python: 1-based lines and columns of the expression that is at work."""

    file: str
    line: int
    column: int
    end_column: int
    function: str

    def span(self) -> Span:
        text = "".join(linecache.getlines(self.file))
        line = linecache.getline(self.file, self.line).rstrip("\r\n")
        source = Source(self.file, line, first_line=self.line, first_column=1, context=text or None)
        end = max(self.end_column, self.column)
        return Span(source, min(self.column, len(line)), min(end, len(line)))

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@frozen
class TensorType:
    """What a trace depends on, of one tensor argument."""

    shape: tuple[int, ...]
    dtype: torch.dtype


@frozen(eq=False)
class Trace:
    """A traced function. Node ``meta`` holds ``val`` (a fake tensor of the global shape) and ``site``.

    ``results`` is the structure of what the function returned; the graph's output is its flat list of leaves.
    """

    graph: fx.Graph
    module: fx.GraphModule
    results: pytree.TreeSpec
    marks: tuple[Mark, ...]
    inner: tuple[Inner, ...]
    fake: Any


def user_site(frame: FrameType | None = None) -> Site | None:
    """The innermost frame that is neither torch's nor ours."""
    frame = frame or sys._getframe(1)
    walk: FrameType | None = frame
    while walk is not None:
        name = walk.f_globals.get("__name__", "")
        if not _ours(name):
            code = walk.f_code
            positions = list(code.co_positions())
            index = walk.f_lasti // 2
            line, end_line, column, end_column = positions[index] if index < len(positions) else (None,) * 4
            lineno = line or walk.f_lineno
            text = linecache.getline(code.co_filename, lineno).rstrip("\r\n")
            start = len(text.encode()[: column or 0].decode(errors="ignore"))
            if column is None:
                start = len(text) - len(text.lstrip())
            stop = len(text)
            if end_line == line and end_column is not None:
                stop = len(text.encode()[:end_column].decode(errors="ignore"))
            return Site(code.co_filename, lineno, start, stop, code.co_name)
        walk = walk.f_back
    return None


def _ours(module: str) -> bool:
    return any(module == name or module.startswith(name + ".") for name in _OURS) or module == "contextlib"


@frozen
class Mark:
    """An ``sl.reshard`` in a traced body: what it asks for, and where its text stands."""

    spec: Any
    source: Source | None
    site: Site | None


@frozen
class Inner:
    """A call in a traced body that is not looked into: whoever runs the program makes it.

    ``arguments``: the layout that each tensor has to come in, ``None`` where any without a reduction owed will do.
    ``results``: what each tensor is that comes back, and its layout.
    """

    name: str
    arguments: tuple[Layout | None, ...]
    results: tuple[tuple[TensorType, Layout], ...]


@frozen
class _Asked:
    """What a trace under way came upon."""

    marks: list[Mark] = field(factory=list)
    inner: list[Inner] = field(factory=list)


_ACTIVE: list[_Asked] = []
_ERASED: list[bool] = []


def tracing() -> bool:
    """Is a function of this process being traced now?"""
    return bool(_ACTIVE) and not _ERASED


@torch.library.custom_op("shardlang::mark", mutates_args=())
def _mark(x: torch.Tensor, number: int) -> torch.Tensor:
    return x.clone()


@_mark.register_fake
def _(x: torch.Tensor, number: int) -> torch.Tensor:
    return torch.empty_like(x)


MARK = torch.ops.shardlang.mark.default
"""The operator that stands for ``sl.reshard`` in a trace; its second argument is the number of the mark."""


@contextmanager
def erased() -> Iterator[None]:
    """Within it ``sl.reshard`` gives its tensor back: the function as it runs on one device."""
    _ERASED.append(True)
    try:
        yield
    finally:
        _ERASED.pop()


def intercepts() -> bool:
    """Is ``sl.reshard`` at present a mark in a trace, or erased?"""
    return bool(_ACTIVE or _ERASED)


def mark(x: torch.Tensor, spec: Any) -> torch.Tensor:
    """What ``sl.reshard(x, spec)`` does in a traced body: the same value, and a node that asks for a layout."""
    if not tracing():
        return x
    site = user_site(sys._getframe(1))
    source = _literal_source(spec, site) if isinstance(spec, str) else None
    marks = _ACTIVE[-1].marks
    marks.append(Mark(spec, source, site))
    marked: torch.Tensor = _mark(x, len(marks) - 1)
    return marked


@torch.library.custom_op("shardlang::inner", mutates_args=())
def _inner(tensors: list[torch.Tensor], number: int) -> list[torch.Tensor]:
    raise RuntimeError("a call that a trace does not look into is made by whoever runs the program")


@_inner.register_fake
def _(tensors: list[torch.Tensor], number: int) -> list[torch.Tensor]:
    return [torch.empty(t.shape, dtype=t.dtype) for t, _ in _ACTIVE[-1].inner[number].results]


INNER = torch.ops.shardlang.inner.default
"""The operator that stands for an ``Inner`` in a trace; its second argument is the number of it."""


def call_inner(made: Inner, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The results of a call that the trace under way does not look into."""
    inner = _ACTIVE[-1].inner
    inner.append(made)
    found: list[torch.Tensor] = _inner(list(tensors), len(inner) - 1)
    return found


def _literal_source(text: str, site: Site | None) -> Source:
    """The text of a spec, placed where its literal stands in the user's file if it stands on the line of the call."""
    if site is None:
        return Source("<spec>", text)
    line = linecache.getline(site.file, site.line)
    column = line.find(text)
    if column < 0:
        return Source("<spec>", text)
    whole = "".join(linecache.getlines(site.file))
    return Source(site.file, text, first_line=site.line, first_column=column + 1, context=whole)


def capture(function: Callable[..., Any], arguments: Sequence[TensorType], call: Callable[..., Any]) -> Trace:
    """Traces ``call(*tensors)``, which must call ``function`` once, on fake tensors of global shapes.

    Raises ShardlangError for what a trace would lose without a word: values read in Python, shapes that depend on
    values, ``autograd.Function``, autocast switched inside, tensors from outside, arguments changed in place.
    """
    name = getattr(function, "__qualname__", repr(function))
    leaves: list[Any] = []
    structure: list[pytree.TreeSpec] = []

    def flat(*tensors: torch.Tensor) -> list[Any]:
        out, spec = pytree.tree_flatten(call(*tensors))
        leaves[:], structure[:] = out, [spec]
        return [leaf for leaf in out if isinstance(leaf, torch.Tensor)]

    casts = autocast_state()

    def on_node(node: fx.Node) -> None:
        site = node.meta["site"] = user_site(sys._getframe(1))
        if node.target not in AUTOCAST and autocast_state() != casts:
            device = next((d for d, _ in (*autocast_state(), *casts)), "cpu")
            raise ShardlangError(sl05_functions.autocast(device, site.span() if site else None))
        if iskeyword(getattr(node.target, "_overloadname", "")):
            # `aten.random_.from` alone: a graph is written out as Python, which has another use for the word.
            raise ShardlangError(sl05_functions.random_operator(str(node.target), site.span() if site else None))

    fake = fake_mode()
    item_error, shape_error = data_dependent_errors()
    asked = _Asked()
    _ACTIVE.append(asked)
    try:
        with without_modes(), torch.enable_grad(), fake, _no_autograd_functions():
            values = [torch.empty(t.shape, dtype=t.dtype) for t in arguments]
            module = trace_graph(flat, values, on_node)
    except item_error as error:
        raise ShardlangError(sl05_functions.value_read(name, _raised_at(error))) from error
    except shape_error as error:
        raise ShardlangError(sl05_functions.value_shape(name, _raised_at(error))) from error
    except NotImplementedError as error:  # so torch 2.11 on a generator, which later releases take and we refuse below
        if str(torch.Generator) not in str(error):
            raise
        raise ShardlangError(sl05_functions.random_operator("torch.Generator", _raised_at(error))) from error
    finally:
        _ACTIVE.pop()
    for leaf in leaves:
        if not isinstance(leaf, torch.Tensor):
            raise ShardlangError(sl05_functions.result_not_tensor(name, type(leaf).__name__))
    for node in reversed(module.graph.nodes):
        if node.target in AUTOCAST:  # it switched to what was on before
            module.graph.erase_node(node)
    _refuse_outside(module, name)
    _refuse_mutation(module.graph, name)
    return Trace(module.graph, module, structure[0], tuple(asked.marks), tuple(asked.inner), fake)


def _raised_at(error: BaseException) -> Span | None:
    """The user's expression in a traceback, the innermost one."""
    site: Site | None = None
    trace = error.__traceback__
    while trace is not None:
        if not _ours(trace.tb_frame.f_globals.get("__name__", "")):
            code = trace.tb_frame.f_code
            positions = list(code.co_positions())[trace.tb_lasti // 2]
            line = positions[0] or trace.tb_lineno
            site = Site(code.co_filename, line, positions[2] or 0, positions[3] or 0, code.co_name)
        trace = trace.tb_next
    return site.span() if site else None


@contextmanager
def _no_autograd_functions() -> Iterator[None]:
    """Refuses ``autograd.Function``s of users, whose forward would be traced and whose backward would be lost."""
    function: Any = torch.autograd.Function
    original = vars(function)["apply"]

    def refuse(cls: type, *args: Any, **kwargs: Any) -> Any:
        if cls.__module__.split(".")[0] == "torch":
            return original.__func__(cls, *args, **kwargs)
        site = user_site(sys._getframe(1))
        raise ShardlangError(sl05_functions.autograd_function(cls.__name__, site.span() if site else None))

    function.apply = classmethod(refuse)
    try:
        yield
    finally:
        function.apply = original


def _refuse_outside(module: fx.GraphModule, name: str) -> None:
    """Tensors made outside the function came in by closure, unless an operator copies a literal (``torch.tensor``)."""
    for node in module.graph.nodes:
        if node.op != "get_attr":
            continue
        for user in node.users:
            if user.target not in (torch.ops.aten.lift_fresh_copy.default, torch.ops.aten.lift_fresh.default):
                site = user.meta.get("site")
                value = getattr(module, str(node.target))
                if isinstance(value, torch.Generator):
                    raise ShardlangError(
                        sl05_functions.random_operator(str(user.target), site.span() if site else None)
                    )
                parameter = isinstance(value, torch.nn.Parameter)
                raise ShardlangError(
                    sl05_functions.captured_tensor(name, tuple(value.shape), parameter, site.span() if site else None)
                )


def _refuse_mutation(graph: fx.Graph, name: str) -> None:
    """An argument that an in-place operator changes, directly or through a view; and views changed in place."""
    root: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        if node.op == "placeholder":
            root[node] = node
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        schema = node.target._schema
        if schema.name == "aten::batch_norm" and node.args[5]:  # in training: its schema does not say what it changes
            for value in node.args[3:5]:
                base = root.get(value, value) if isinstance(value, fx.Node) else None
                if base is not None and base.op == "placeholder":
                    site = node.meta.get("site")
                    raise ShardlangError(
                        sl05_functions.argument_changed(name, str(base.target), site.span() if site else None)
                    )
        for argument, value in zip(schema.arguments, node.args, strict=False):
            if not isinstance(value, fx.Node) or argument.alias_info is None:
                continue
            if argument.alias_info.is_write:
                if node.target is torch.ops.aten.detach_.default:
                    continue
                site = node.meta.get("site")
                span = site.span() if site else None
                base = root.get(value, value)
                if base.op == "placeholder":
                    raise ShardlangError(sl05_functions.argument_changed(name, str(base.target), span))
                if base is not value or any(_is_view(u, value) for u in value.users):
                    raise ShardlangError(sl05_functions.view_changed(name, str(node.target.overloadpacket), span))
            elif _is_view(node, value):
                root[node] = root.get(value, value)


def _is_view(node: fx.Node, value: fx.Node) -> bool:
    """Does the node's result share storage with ``value`` without changing it?"""
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    for argument, given in zip(node.target._schema.arguments, node.args, strict=False):
        if given is value and argument.alias_info is not None and not argument.alias_info.is_write:
            return True
    return False
