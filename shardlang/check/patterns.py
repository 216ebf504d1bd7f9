"""Patterns over dotted names, matched against an index of a model's names.

A pattern is matched component by component over sets of nodes of a tree of names. ``**`` followed by a name goes
straight to the nodes of that name below the current ones, so that thousands of patterns against tens of thousands of
names cost about as much as what they match.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Literal

from attrs import Factory, define, evolve, frozen

from shardlang.diagnostics.prose import nearest

CANDIDATES = 2000
"""How many names are compared, at most, to find the nearest to one that does not exist."""

DIGITS = 18
"""The longest component that a range takes for a number."""


@frozen
class Piece:
    """A piece of a component: one of some words; any characters where there are none (``*``)."""

    words: frozenset[str]
    lengths: tuple[int, ...]


@frozen
class Part:
    """A component of a pattern; ``deep``: any number of components may come before it (``**``)."""

    kind: Literal["names", "any", "range", "glob", "end"]
    names: tuple[str, ...] = ()
    pieces: tuple[Piece, ...] = ()
    low: int = 0
    high: int = 0
    deep: bool = False


@lru_cache(maxsize=1 << 14)
def parts_of(pattern: str) -> tuple[Part, ...]:
    """The components of a pattern; a trailing ``**`` becomes a deep ``end``."""
    parts: list[Part] = []
    deep = False
    for text in pattern.split(".") if ".." not in pattern else _components(pattern):
        if text == "**":
            deep = True
            continue
        if text == "*":
            part = Part("any", deep=deep)
        elif text.startswith("["):
            low, _, high = text[1:-1].partition("..")
            part = Part("range", low=_number(low), high=_number(high), deep=deep)
        elif "{" not in text and "*" not in text:
            part = Part("names", (text,), deep=deep)
        elif "*" in text or text.count("{") > 1:
            part = Part("glob", pieces=tuple(map(_piece, _PIECES.findall(text))), deep=deep)
        else:
            before, inside, after = re.split("[{}]", text)
            part = Part("names", tuple(before + n.strip() + after for n in inside.split(",")), deep=deep)
        parts.append(part)
        deep = False
    if deep:
        parts.append(Part("end", deep=True))
    return tuple(parts)


_PIECES = re.compile(r"[A-Za-z0-9_]+|\*|\{[^}]*\}")


def _piece(text: str) -> Piece:
    words = frozenset(re.findall(r"\w+", text))
    return Piece(words, tuple({len(w) for w in words}))


def single(pattern: str) -> Iterator[tuple[str, int, str]]:
    """For each word in braces with others: itself, where it stands, and the pattern with it alone in their place."""
    for braces in re.finditer(r"\{[^}]*,[^}]*\}", pattern):
        for word in re.finditer(r"\w+", braces.group()):
            alone = pattern[: braces.start()] + word.group() + pattern[braces.end() :]
            yield word.group(), braces.start() + word.start(), alone


def _number(digits: str) -> int:
    """An end of a range; one that is longer than any name's number stands for all of them."""
    return int(digits[:DIGITS]) if len(digits) <= DIGITS else 10**DIGITS


def _components(pattern: str) -> Iterator[str]:
    """The components of a pattern with ranges, whose dots separate nothing."""
    at = 0
    while at < len(pattern):
        end = pattern.find("]", at) + 1 if pattern[at] == "[" else pattern.find(".", at)
        end = len(pattern) if end <= 0 else end
        yield pattern[at:end]
        at = end + 1


@define(eq=False)
class _Node:
    """A component of a name. ``enter`` and ``leave`` number the nodes below it: ``enter < n.enter <= leave``."""

    name: str
    path: str
    depth: int
    children: dict[str, _Node] = Factory(dict)
    position: int = -1
    """Where the full name stands in the list of names; -1 for a mere prefix."""
    enter: int = 0
    leave: int = 0


class NameIndex:
    """An index over the dotted names of a model's parameters or modules; the empty name is the model itself."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(names)
        self._root = _Node("", "", 0)
        for position, name in enumerate(self.names):
            if name:
                self._insert(name, position)
        self._nodes: list[_Node] = []
        self._by_name: dict[str, list[_Node]] = {}
        stack = [(self._root, False)]
        while stack:
            node, done = stack.pop()
            if done:
                node.leave = len(self._nodes) - 1
                continue
            node.enter = len(self._nodes)
            self._nodes.append(node)
            self._by_name.setdefault(node.name, []).append(node)
            stack.append((node, True))
            stack += [(child, False) for child in reversed(node.children.values())]

    def _insert(self, name: str, position: int) -> None:
        node = self._root
        for component in name.split("."):
            child = node.children.get(component)
            if child is None:
                path = f"{node.path}.{component}" if node.path else component
                child = node.children[component] = _Node(component, path, node.depth + 1)
            node = child
        node.position = position

    def match(self, pattern: str) -> list[str]:
        """The names that a pattern matches, in the order of the index. ``root`` matches the model itself."""
        if pattern == "root":
            return [""] if "" in self.names else []
        nodes = [self._root]
        for part in parts_of(pattern):
            nodes = self._step(nodes, part)
        positions = sorted(n.position for n in nodes if n.position >= 0)
        return [self.names[p] for p in positions]

    def _step(self, nodes: list[_Node], part: Part) -> list[_Node]:
        if part.deep:
            return [n for top in _outermost(nodes) for n in self._below(top, part)]
        return [child for node in nodes for child in _children(node, part)]

    def _below(self, top: _Node, part: Part) -> Iterator[_Node]:
        """The nodes at any depth below ``top`` that a deep part matches (``end``: ``top`` too)."""
        if part.kind == "end":
            yield from self._nodes[top.enter : top.leave + 1]
        elif part.kind == "names":
            for name in dict.fromkeys(part.names):
                same = self._by_name.get(name, [])
                low = bisect_right(same, top.enter, key=_enter)
                yield from same[low : bisect_right(same, top.leave, key=_enter)]
        elif part.kind == "glob":
            names = tuple(n for n in self._by_name if n and _in_pieces(n, part))
            yield from self._below(top, evolve(part, kind="names", names=names))
        else:
            for node in self._nodes[top.enter + 1 : top.leave + 1]:
                if part.kind == "any" or _in_range(node.name, part):
                    yield node

    def nearest(self, pattern: str) -> list[str]:
        """Patterns that match something and look like one that matches nothing, best first.

        The first component that leads nowhere is put right by a name that stands there; where that fails, whole
        names are compared.
        """
        parts = parts_of(pattern)
        texts = [t for t in _texts(pattern) if t != "**"]
        nodes = [self._root]
        for i, part in enumerate(parts):
            reached = self._step(nodes, part)
            if not reached:
                repaired = self._repair(nodes, part, pattern, texts[i]) if i < len(texts) else []
                if repaired:
                    return repaired
                break
            nodes = reached
        else:
            below = dict.fromkeys(child for node in nodes[:64] for child in node.children)
            longer = [f"{pattern}.{child}" for child in below]
            return longer[:3] if len(longer) <= 3 and all(map(self.match, longer)) else [f"{pattern}.**"]
        leaves = [n for n in self.names if n]
        return nearest(pattern, leaves[:CANDIDATES])

    def _repair(self, nodes: list[_Node], part: Part, pattern: str, text: str) -> list[str]:
        if part.deep:
            there: Iterable[str] = self._by_name
        else:
            there = dict.fromkeys(name for node in nodes[:64] for name in list(node.children)[:CANDIDATES])
        names = list(part.names) or [text]
        wrong = [n for n in names if n not in there]
        for name in nearest(wrong[0] if wrong else names[0], list(there)[:CANDIDATES]):
            candidate = _replace(pattern, text, name)
            if self.match(candidate):
                return [candidate]
        return []


def _enter(node: _Node) -> int:
    return node.enter


def _texts(pattern: str) -> list[str]:
    return list(_components(pattern))


def _replace(pattern: str, text: str, name: str) -> str:
    """The pattern with its first component ``text`` replaced."""
    components = _texts(pattern)
    components[components.index(text)] = name
    return ".".join(components)


def _outermost(nodes: list[_Node]) -> Iterator[_Node]:
    """The nodes that are below no other of them."""
    end = -1
    for node in sorted(nodes, key=_enter):
        if node.enter > end:
            yield node
            end = node.leave


def _children(node: _Node, part: Part) -> Iterator[_Node]:
    if part.kind == "names":
        for name in dict.fromkeys(part.names):
            if name in node.children:
                yield node.children[name]
    elif part.kind == "any":
        yield from node.children.values()
    elif part.kind == "glob":
        yield from (child for child in node.children.values() if _in_pieces(child.name, part))
    elif part.high - part.low < len(node.children):
        for number in range(part.low, part.high + 1):
            if str(number) in node.children:
                yield node.children[str(number)]
    else:
        yield from (child for child in node.children.values() if _in_range(child.name, part))


def _in_range(name: str, part: Part) -> bool:
    if len(name) > DIGITS or not (name.isascii() and name.isdecimal()) or str(int(name)) != name:
        return False
    return part.low <= int(name) <= part.high


def _in_pieces(name: str, part: Part) -> bool:
    """Is a name made of a glob's pieces? By the places up to which the pieces so far can reach."""
    reached = {0}
    for piece in part.pieces:
        if piece.words:
            reached = {at + k for at in reached for k in piece.lengths if name[at : at + k] in piece.words}
        else:
            reached = set(range(min(reached), len(name) + 1))
        if not reached:
            return False
    return len(name) in reached


__all__ = ["NameIndex", "parts_of", "single"]
