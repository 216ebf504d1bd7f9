"""Text to tree. All faults of a text are found in one pass: after each, parsing goes on at the next declaration, or at
the next line of the model that the fault is in."""

from __future__ import annotations

import re
from typing import TypeAlias

from lark import Token, Tree
from lark.exceptions import UnexpectedInput, UnexpectedToken
from lark.lexer import LexerState, LineCounter
from lark.parsers.lalr_interactive_parser import InteractiveParser
from lark.utils import TextSlice

from shardlang.diagnostics import ShardlangError, sl01_syntax
from shardlang.source import Source
from shardlang.syntax import build, build_spec, mistakes, tree
from shardlang.syntax.build_spec import Context
from shardlang.syntax.collector import collector_paused
from shardlang.syntax.decode import check_text
from shardlang.syntax.grammar import reader
from shardlang.syntax.pieces import Piece, pieces
from shardlang.syntax.place import Place

MAX_NESTING = 32
MAX_FAULTS = 20
"""Further faults of one text are mostly echoes of the first ones."""

Node: TypeAlias = "Tree[Token]"

_BRACKET = re.compile(r"#[^\n]*|[()\[\]{}]")


def parse(source: Source) -> tree.File:
    """The declarations of a file. Raises one ``ShardlangError`` with every syntax error of it."""
    context = Context(source)
    with collector_paused():
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
    node = _finish(context, reader(source.text, start), start, Piece("declaration", 0, len(source.text)))
    if isinstance(node, Tree):
        return node if _bound_nesting(context) else None
    if start == "start":
        _read_pieces(context, node)
    return None


def _finish(context: Context, state: InteractiveParser, start: str, piece: Piece) -> Node | int:
    """Reads to the end of a piece. The tree; or, with the fault added to the context, where to go on."""
    text = context.source.text
    # What ends too early is at fault where the next piece begins, or at the end of the text.
    end = piece.end if piece.end < len(text) else len(text.rstrip())
    try:
        feed = state.parser_state.feed_token
        for token in state.lexer_thread.lex(state.parser_state):
            feed(token)
        if not piece.last:
            state.feed_token(Token("RBRACE", "", start_pos=end, end_pos=end))
        node = state.feed_token(Token("$END", "", start_pos=end, end_pos=end))
    except UnexpectedInput as fault:
        at = end if isinstance(fault, UnexpectedToken) and not fault.token else fault.pos_in_stream
        values = tuple(state.parser_state.value_stack)
        scope = None if piece.kind != "line" else (piece.brace, piece.start)
        # A piece that is whole, with more behind it, leaves a parser that asks for nothing.
        accepted = frozenset(state.accepts()) or frozenset({"$END"})
        place = Place(context.source, end if at is None else at, accepted, values, start, scope)
        diagnostic, resume = mistakes.explain(place)
        context.faults.append(diagnostic)
        return resume
    assert isinstance(node, Tree)
    return node


def _read_pieces(context: Context, resume: int) -> None:
    """Adds the faults of the pieces of a file from ``resume`` on, where its first syntax error leaves off; of those
    before it, what the grammar cannot refuse."""
    for piece in pieces(context.source.text):
        known = len(context.faults)
        if known >= MAX_FAULTS:
            return
        read = _read_piece(context, piece)
        if isinstance(read, Tree):
            build.file(context, read)
        elif piece.start < resume:
            # The first error is told already, and a piece that was read without one before it is no new one.
            del context.faults[known:]


def _read_piece(context: Context, piece: Piece) -> Node | int:
    """The tree of a file of this piece alone, as ``_finish``."""
    state = reader("", "start")
    if piece.kind == "line":
        for kind, at in (("MODEL", piece.model), ("NAME", -1), ("ON", -1), ("NAME", -1), ("LBRACE", piece.brace)):
            place = max(at, 0)
            state.feed_token(Token(kind, "", start_pos=place, end_pos=place))
    line_ctr = LineCounter("\n")
    line_ctr.char_pos = piece.start
    state.lexer_thread.state = LexerState(TextSlice(context.source.text, piece.start, piece.end), line_ctr)
    return _finish(context, state, "start", piece)


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
