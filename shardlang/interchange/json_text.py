"""JSON with the place of every value, so that a fault in it can be pointed at."""

from __future__ import annotations

import re
from json.decoder import JSONDecodeError, scanstring  # type: ignore[attr-defined]  # typeshed leaves it out
from typing import TypeAlias

from attrs import frozen

from shardlang.diagnostics import ShardlangError, sl02_import
from shardlang.source import Source, Span

MAX_NESTING = 64

_BLANK = re.compile(r"[ \t\r\n]*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,400})(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_WORDS = {"true": True, "false": False, "null": None}

Value: TypeAlias = "dict[str, Node] | list[Node] | str | int | float | bool | None"


@frozen
class Node:
    """A value, its place, and for the value of an object's key the place of that key."""

    value: Value
    span: Span
    key: Span | None = None


def read(source: Source) -> Node:
    """The value of a text. Raises SL0250 where it is no JSON, or nested more than 64 deep, and SL0252."""
    node, at = _value(source, _skip(source, 0), 0)
    at = _skip(source, at)
    if at != len(source.text):
        raise _fault(source, at, "something follows the value")
    return node


def described(node: Node) -> str:
    """What a value is, in words."""
    value = node.value
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    return "a string" if isinstance(value, str) else "a number"


def _skip(source: Source, at: int) -> int:
    match = _BLANK.match(source.text, at)
    assert match is not None
    return match.end()


def _fault(source: Source, at: int, reason: str) -> ShardlangError:
    return ShardlangError(sl02_import.no_json(source.span(at, min(at + 1, len(source.text))), reason))


def _value(source: Source, at: int, depth: int) -> tuple[Node, int]:
    text = source.text
    if depth > MAX_NESTING:
        raise _fault(source, at, f"it is nested more than {MAX_NESTING} deep")
    if at == len(text):
        raise _fault(source, at, "a value is missing")
    if text[at] == "{":
        return _object(source, at, depth)
    if text[at] == "[":
        return _list(source, at, depth)
    if text[at] == '"':
        string, end = _string(source, at)
        return Node(string, source.span(at, end)), end
    for word, meaning in _WORDS.items():
        if text.startswith(word, at):
            return Node(meaning, source.span(at, at + len(word))), at + len(word)
    match = _NUMBER.match(text, at)
    if match is None:
        raise _fault(source, at, "no value begins like this")
    number = float(match.group()) if match[1] or match[2] else int(match.group())
    return Node(number, source.span(*match.span())), match.end()


def _string(source: Source, at: int) -> tuple[str, int]:
    try:
        string, end = scanstring(source.text, at + 1)
    except JSONDecodeError as error:
        raise _fault(source, min(error.pos, len(source.text)), error.msg.lower()) from None
    return string, end


def _object(source: Source, at: int, depth: int) -> tuple[Node, int]:
    found: dict[str, Node] = {}
    here = _skip(source, at + 1)
    while source.text[here : here + 1] != "}" or found:
        if source.text[here : here + 1] != '"':
            raise _fault(source, here, "a key in quotes is missing")
        key, end = _string(source, here)
        place = source.span(here, end)
        here = _skip(source, end)
        if source.text[here : here + 1] != ":":
            raise _fault(source, here, "a colon is missing")
        node, here = _value(source, _skip(source, here + 1), depth + 1)
        if key in found:
            raise ShardlangError(sl02_import.repeated_key(place, key, found[key].key or found[key].span))
        found[key] = Node(node.value, node.span, place)
        here = _skip(source, here)
        if source.text[here : here + 1] == "}":
            break
        if source.text[here : here + 1] != ",":
            raise _fault(source, here, "a comma or `}` is missing")
        here = _skip(source, here + 1)
    return Node(found, source.span(at, here + 1)), here + 1


def _list(source: Source, at: int, depth: int) -> tuple[Node, int]:
    found: list[Node] = []
    here = _skip(source, at + 1)
    while source.text[here : here + 1] != "]" or found:
        node, here = _value(source, here, depth + 1)
        found.append(node)
        here = _skip(source, here)
        if source.text[here : here + 1] == "]":
            break
        if source.text[here : here + 1] != ",":
            raise _fault(source, here, "a comma or `]` is missing")
        here = _skip(source, here + 1)
    return Node(found, source.span(at, here + 1)), here + 1


__all__ = ["MAX_NESTING", "Node", "described", "read"]
