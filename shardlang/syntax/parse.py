"""Text to tree. All faults of a text are found in one pass: after each, parsing goes on at the next declaration, or at
the next line of the model that the fault is in."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias

from lark import Token, Tree
from lark.exceptions import UnexpectedInput, UnexpectedToken
from lark.parsers.lalr_interactive_parser import InteractiveParser

from shardlang.diagnostics import ShardlangError, sl01_syntax
from shardlang.source import Source
from shardlang.syntax import build, build_spec, mistakes, tree
from shardlang.syntax.build_spec import Context
from shardlang.syntax.decode import check_text
from shardlang.syntax.grammar import parser
from shardlang.syntax.place import DECLARATIONS, ITEMS, Place

MAX_NESTING = 32
MAX_FAULTS = 20
"""Further faults of one text are mostly echoes of the first ones."""

Node: TypeAlias = "Tree[Token]"

_ANCHOR = re.compile(rf"^([ \t]*)({'|'.join(DECLARATIONS)}|{'|'.join(ITEMS)})\b(?=[ \t]+[^ \t:/])", re.MULTILINE)
_BRACKET = re.compile(r"#[^\n]*|[()\[\]{}]")


def parse(source: Source) -> tree.File:
    """The declarations of a file. Raises one ``ShardlangError`` with every syntax error of it."""
    context = Context(source)
    with _collector_paused():
        node = _read(context, "start")
        built = build.file(context, node) if node is not None else None
    _raise_faults(context)
    assert built is not None
    return built


def parse_spec(source: Source) -> tree.Spec:
    """One spec, such as ``bf16[batch/dp seq d]``."""
    context = Context(source)
    built = build_spec.spec(context, _piece(context, "spec"))
    _raise_faults(context)
    return built


def parse_signature(source: Source) -> tree.Signature:
    """The signature of a function, such as ``(x: [b/dp d]) -> [b/dp d]``."""
    context = Context(source)
    built = build_spec.signature(context, _piece(context, "signature"))
    _raise_faults(context)
    return built


def parse_change(source: Source) -> tree.Change:
    """A transition ``A => B``."""
    context = Context(source)
    built = build_spec.change(context, _piece(context, "change"))
    _raise_faults(context)
    return built


def parse_axes(source: Source) -> tuple[tree.Axis, ...]:
    """The axes of a mesh, such as ``a:2 * b:4@ib``."""
    context = Context(source)
    built = build.axes(context, _piece(context, "axes"))
    _raise_faults(context)
    return built


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Pauses Python's cycle collector: trees have no cycles, and looking for some takes half of a large file's time."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _piece(context: Context, start: str) -> Node:
    node = _read(context, start)
    if node is None:
        _raise_faults(context)
    assert node is not None
    return node


def _raise_faults(context: Context) -> None:
    if context.faults:
        faults = sorted(context.faults, key=lambda d: d.span.start if d.span else 0)
        raise ShardlangError(faults[:MAX_FAULTS])


def _read(context: Context, start: str) -> Node | None:
    """The parser's tree of a text; ``None`` where a fault leaves none. Faults go to the context."""
    source = context.source
    check_text(source)
    state = parser().parse_interactive(source.text, start)
    while True:
        try:
            for token in state.lexer_thread.lex(state.parser_state):
                state.feed_token(token)
            end = len(source.text)
            node = state.feed_token(Token("$END", "", start_pos=end, end_pos=end))
        except UnexpectedInput as fault:
            resume = _explain(context, state, fault, start)
            if start != "start" or len(context.faults) >= MAX_FAULTS or not _recover(state, source, resume):
                return None
        else:
            assert isinstance(node, Tree)
            return node if context.faults or _bound_nesting(context) else None


def _explain(context: Context, state: InteractiveParser, fault: UnexpectedInput, start: str) -> int:
    """Adds the diagnostic of a fault; where to look for the next declaration."""
    at = fault.pos_in_stream
    if (isinstance(fault, UnexpectedToken) and fault.token.type == "$END") or at is None:
        at = len(context.source.text.rstrip())
    place = Place(context.source, at, frozenset(state.accepts()), tuple(state.parser_state.value_stack), start)
    diagnostic, resume = mistakes.explain(place)
    context.faults.append(diagnostic)
    return resume


def _recover(state: InteractiveParser, source: Source, resume: int) -> bool:
    """Goes on at the first keyword from ``resume`` on that begins a line and can follow what was read before.

    A declaration begins at the left margin of the file's declarations, so that a dim at the start of a line within
    brackets is not taken for one; a line of a model is indented further or not, but a model must be open.
    """
    anchors = list(_ANCHOR.finditer(source.text, resume))
    margin = min((len(a[1]) for a in _ANCHOR.finditer(source.text) if a[2] in DECLARATIONS), default=0)
    for anchor in anchors:
        if anchor[2] in DECLARATIONS and len(anchor[1]) > margin:
            continue
        token = Token(anchor[2].upper(), anchor[2], start_pos=anchor.start(2), end_pos=anchor.end(2))
        if _unwind(state, token):
            assert state.lexer_thread.state is not None
            state.lexer_thread.state.line_ctr.char_pos = anchor.end(2)
            return True
    return False


def _unwind(state: InteractiveParser, token: Token) -> bool:
    """Drops what is unfinished until ``token`` fits; leaves all as it was where it never does."""
    stack = state.parser_state
    states, values = list(stack.state_stack), list(stack.value_stack)
    while stack.state_stack:
        if token.type in stack.parse_conf.states[stack.state_stack[-1]]:
            try:
                state.feed_token(token)
            except UnexpectedToken:
                pass
            else:
                return True
        stack.state_stack.pop()
        if stack.value_stack:
            stack.value_stack.pop()
    stack.state_stack, stack.value_stack = states, values
    return False


def _bound_nesting(context: Context) -> bool:
    """Are brackets nested within the bound? Adds the fault where they are not."""
    depth = 0
    for match in _BRACKET.finditer(context.source.text):
        bracket = match.group()
        if bracket in "([{":
            depth += 1
            if depth > MAX_NESTING:
                context.faults.append(sl01_syntax.too_deep(context.source.span(*match.span()), MAX_NESTING))
                return False
        elif bracket in ")]}":
            depth -= 1
    return True


__all__ = [
    "MAX_FAULTS",
    "MAX_NESTING",
    "parse",
    "parse_axes",
    "parse_change",
    "parse_signature",
    "parse_spec",
]
