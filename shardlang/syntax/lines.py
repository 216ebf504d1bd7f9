"""The lines that a tree is written in, before comments, blank lines and alignment."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from attrs import frozen

from shardlang.syntax import show, tree

WIDTH = 100
"""A declaration that is wider is written over several lines."""
STEP = "  "


@frozen
class Comment:
    """A comment from ``#`` to the end of its line, at these offsets of the text."""

    start: int
    end: int
    text: str


@frozen
class Line:
    """A line to be written: ``cells`` are put one after the other, and in neighbouring lines of one ``kind`` each
    begins at the same column. ``[start, end)`` is what it was written as.

    ``closes`` marks the end of a block; a ``tight`` line takes no blank line before it.
    """

    start: int
    end: int
    cells: tuple[str, ...]
    indent: str = ""
    kind: str = ""
    opens: bool = False
    closes: bool = False
    tight: bool = False


@frozen
class _Text:
    text: str
    comments: tuple[Comment, ...]

    def find(self, sign: str, start: int) -> int:
        """The offset just past the next ``sign`` that is in no comment."""
        at = self.text.index(sign, start)
        while (inside := self._before(at)) is not None and inside.end > at:
            at = self.text.index(sign, inside.end)
        return at + 1

    def commented(self, start: int, end: int) -> bool:
        """Does a comment begin in ``[start, end)``?"""
        last = self._before(end - 1)
        return last is not None and last.start >= start

    def _before(self, at: int) -> Comment | None:
        """The last comment that begins at ``at`` or before."""
        index = bisect_right(self.comments, at, key=lambda c: c.start)
        return self.comments[index - 1] if index else None


def lines(file: tree.File, text: str, comments: tuple[Comment, ...]) -> Iterator[Line]:
    """The lines of a file, in the order of the text."""
    source = _Text(text, comments)
    for decl in file.decls:
        yield from _decl(decl, source)


def _decl(decl: tree.Decl, source: _Text) -> Iterator[Line]:
    start, end = decl.span.start, decl.span.end
    if isinstance(decl, tree.Let):
        yield from _let(decl, source)
    elif isinstance(decl, tree.Fn):
        head = f"fn {decl.name} on {decl.mesh} (" if decl.mesh is not None else f"fn {decl.name}("
        yield from _signature(start, end, head, decl.signature, "", "", source)
    elif isinstance(decl, tree.Rules):
        yield from _block(start, end, f"rules on {decl.mesh} {{", decl.mesh.span.end, _rule_lines(decl), source)
    elif isinstance(decl, tree.Model):
        origin = f" from {decl.reference.text}" if decl.reference is not None else ""
        head = f"model {decl.name}{origin} on {decl.mesh} {{"
        items = [line for item in decl.items for line in _item(item, source)]
        yield from _block(start, end, head, decl.mesh.span.end, items, source)
    elif isinstance(decl, tree.Budget):
        yield from _budget(decl, source)
    elif isinstance(decl, tree.Link):
        values = f"= {show.quantity(decl.bandwidth)}, {show.quantity(decl.latency)}"
        yield Line(start, end, (f"link {decl.name} ", values), kind="link")
    else:
        yield Line(start, end, (_simple(decl),))


def _simple(decl: tree.Mesh | tree.Split | tree.Reshard | tree.Transfer | tree.Rule) -> str:
    if isinstance(decl, tree.Mesh):
        ranks = f" ranks {decl.ranks.first}..{decl.ranks.last}" if decl.ranks is not None else ""
        return f"mesh {decl.name} = {show.axes(decl.axes)}{ranks}"
    if isinstance(decl, tree.Split):
        return f"split {decl.mesh}.{decl.axis} = {show.axes(decl.parts)}"
    if isinstance(decl, tree.Reshard):
        on = f" on {decl.mesh}" if decl.mesh is not None else ""
        return f"reshard {decl.name}{on}: {show.change(decl.change)}"
    if isinstance(decl, tree.Transfer):
        return f"transfer {decl.source} => {decl.target}"
    return show.rule(decl)


def _let(decl: tree.Let, source: _Text) -> Iterator[Line]:
    texts = [show.binding(b) for b in decl.bindings]
    whole = "let " + ", ".join(texts)
    start, end = decl.span.start, decl.span.end
    if len(whole) <= WIDTH and not source.commented(decl.bindings[0].span.end, end):
        yield Line(start, end, (whole,))
        return
    for index, (bound, text) in enumerate(zip(decl.bindings, texts, strict=True)):
        comma = "," if index < len(texts) - 1 else ""
        if index == 0:
            yield Line(start, bound.span.end, (f"let {text}{comma}",))
        else:
            yield Line(bound.span.start, bound.span.end, (text + comma,), indent="    ", tight=True)


def _signature(
    start: int, end: int, head: str, node: tree.Signature, tail: str, indent: str, source: _Text
) -> Iterator[Line]:
    """A signature after its ``head`` in one line, or with one line an argument where that is too wide."""
    whole = f"{head}{', '.join(show.arg(a) for a in node.args)}) -> {show.results(node)}{tail}"
    opened = source.find("(", node.span.start)
    if not source.commented(opened, end) and (len(indent + whole) <= WIDTH or not node.args):
        yield Line(start, end, (whole,), indent=indent)
        return
    yield Line(start, opened, (head,), indent=indent, opens=True)
    for index, arg in enumerate(node.args):
        comma = "," if index < len(node.args) - 1 else ""
        yield Line(arg.span.start, arg.span.end, (show.arg(arg) + comma,), indent=indent + STEP, tight=True)
    closed = source.find(")", node.args[-1].span.end if node.args else opened) - 1
    yield Line(closed, end, (f") -> {show.results(node)}{tail}",), indent=indent, closes=True, tight=True)


def _block(start: int, end: int, head: str, named: int, items: list[Line], source: _Text) -> Iterator[Line]:
    opened = source.find("{", named)
    if not items and not source.commented(opened, end):
        yield Line(start, end, (head + "}",))
        return
    yield Line(start, opened, (head,), opens=True)
    yield from items
    yield Line(end - 1, end, ("}",), closes=True, tight=True)


def _rule_lines(decl: tree.Rules) -> list[Line]:
    return [Line(n.span.start, n.span.end, (show.rule_line(n),), indent=STEP) for n in decl.lines]


def _budget(decl: tree.Budget, source: _Text) -> Iterator[Line]:
    texts = [show.limit(node) for node in decl.limits]
    head = f"budget {decl.model} {{"
    whole = f"{head} {'; '.join(texts)} }}" if texts else f"{head}}}"
    opened = source.find("{", decl.model.span.end)
    start, end = decl.span.start, decl.span.end
    if len(whole) <= WIDTH and not source.commented(opened, end):
        yield Line(start, end, (whole,))
        return
    items = [
        Line(node.span.start, node.span.end, (text + ";",), indent=STEP)
        for node, text in zip(decl.limits, texts, strict=True)
    ]
    yield from _block(start, end, head, decl.model.span.end, items, source)


def _item(item: tree.ModelItem, source: _Text) -> Iterator[Line]:
    start, end, path = item.span.start, item.span.end, item.path.text
    if isinstance(item, tree.Param):
        yield Line(start, end, (f"param {path} ", f": {show.spec(item.spec)}"), indent=STEP, kind="param")
    elif isinstance(item, tree.Fsdp):
        yield Line(start, end, (f"fsdp  {path} ", show.groups(item)), indent=STEP, kind="fsdp")
    elif isinstance(item, tree.Call):
        tail = " eager" if item.eager else ""
        yield from _signature(start, end, f"call  {path} (", item.signature, tail, STEP, source)
    elif isinstance(item, tree.Checkpoint):
        yield Line(start, end, (f"checkpoint {path}",), indent=STEP)
    elif isinstance(item, tree.Compile):
        yield Line(start, end, (f"compile {path}{show.options(item.options)}",), indent=STEP)
    else:
        yield Line(start, end, (f"freeze {path}",), indent=STEP)


__all__ = ["STEP", "WIDTH", "Comment", "Line", "lines"]
