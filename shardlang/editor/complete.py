"""What could be written at a place: the words that the grammar accepts there, and the names that fit."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal, get_args

from attrs import frozen
from lark import Token
from lark.exceptions import UnexpectedInput

from shardlang.dtypes import DTYPES
from shardlang.editor.document import Document
from shardlang.editor.occurrences import occurrences
from shardlang.plan.steps import FREE, Kind
from shardlang.syntax import tree
from shardlang.syntax.grammar import parser
from shardlang.syntax.place import DECLARATIONS, ITEMS

ItemKind = Literal["keyword", "axis", "size", "link", "mesh", "model", "dtype", "option", "value", "step", "path"]
OPTIONS = {
    "FSDP": ("param", "reduce", "output", "reshard", "prefetch", "offload", "all_gather"),
    "COMPILE": ("backend",),
}
"""The options of a line, by its keyword."""
_VALUES = {
    "reshard": ("yes", "no"),
    "offload": ("yes", "no"),
    "all_gather": ("float8",),
    "backend": ("inductor", "aot_eager"),
}
_WORD = re.compile(r"[A-Za-z0-9_]*\Z")
_DECLARATION = re.compile(rf"^[ \t]*(?:{'|'.join(DECLARATIONS)})\b", re.MULTILINE)
_LINE = re.compile(rf"^[ \t]*(?:{'|'.join(ITEMS)})\b", re.MULTILINE)
_MODEL = re.compile(r"[ \t]*model\b[^{]*\{")


@frozen
class Item:
    """A word that could stand at the place, and what it is."""

    text: str
    kind: ItemKind
    detail: str = ""


@frozen
class Completion:
    """Items for the characters ``[start, end)`` of the text: the word that is begun at the place."""

    start: int
    end: int
    items: tuple[Item, ...]


def complete(document: Document, offset: int) -> Completion:
    """What could stand at the offset. Inside comments, and where the text before is broken, nothing."""
    before = document.text[:offset]
    word = _WORD.search(before)
    assert word is not None
    start = word.start()
    line = before[before.rfind("\n") + 1 :]
    if "#" in line:
        return Completion(start, offset, ())
    found = next(filter(None, (_read(chunk) for chunk in _chunks(before[:start]))), None)
    if found is None:
        return Completion(start, offset, ())
    tokens, accepted = found
    items = [*_names(document, tokens, accepted, offset), *(Item(w, "keyword") for w in _keywords(accepted))]
    unique = {i.text: i for i in reversed(items) if i.text.startswith(word.group())}
    return Completion(start, offset, tuple(sorted(unique.values(), key=lambda i: (i.kind == "keyword", i.text))))


def _chunks(before: str) -> Iterable[str]:
    """Texts that end at the place, best first: from its declaration on; the line of a model after the model's head."""
    starts = [m.start() for m in _DECLARATION.finditer(before)]
    for start in reversed(starts[-3:]):
        yield before[start:]
        head = _MODEL.match(before, start)
        if head is not None:
            lines = [m.start() for m in _LINE.finditer(before, head.end())]
            yield head.group() + (before[lines[-1] :] if lines else "")
    yield before[before.rfind("\n") + 1 :]


def _read(chunk: str) -> tuple[list[Token], set[str]] | None:
    """The tokens of a beginning of a file, and the terminals that can follow; ``None`` where it is broken."""
    state = parser().parse_interactive(chunk, "start")
    tokens: list[Token] = []
    try:
        for token in state.lexer_thread.lex(state.parser_state):
            state.feed_token(token)
            tokens.append(token)
    except UnexpectedInput:
        return None
    return tokens, set(state.accepts())


def _keywords(accepted: Iterable[str]) -> list[str]:
    patterns = {t.name: t.pattern.value for t in parser().terminals}
    return [n.lower() for n in accepted if n in patterns and n.isalpha() and patterns[n].startswith(n.lower())]


def _names(document: Document, tokens: list[Token], accepted: set[str], offset: int) -> list[Item]:
    """The names that fit after these tokens, by what the last of them make of a name."""
    if not tokens:
        return []
    if "PATH" in accepted:
        if tokens[-1].type == "PARAM":
            return [Item("otherwise", "path", "all that no other line claims")]
        return [Item("root", "path", "the model itself")]
    if "NAME" not in accepted and "INT" not in accepted:
        return []
    kinds = [t.type for t in tokens]
    words = [str(t) for t in tokens]
    head, last = words[0], kinds[-1]
    if last == "FORBID":
        return [Item(k, "step") for k in get_args(Kind) if k not in FREE]
    if words[-1] == "@" or (last == "ON" and "FORBID" in kinds[-3:]):
        return _links(document)
    if last in ("ON", "SPLIT"):
        return [Item(m.name, "mesh", str(m)) for m in document.meshes.values()]
    if head in ("transfer", "budget") and words[-1] in (head, "=>"):
        return [Item(d.name.text, "model") for d in document.file.decls if isinstance(d, tree.Model)]
    option = _option(words, kinds)
    if option is not None:
        return option
    if _wants_axis(words, kinds, head):
        return _axes(document, words, kinds)
    if head == "let":
        return [Item(n, "size", str(v)) for n, v in document.lets.items()] if words[-1] not in (",", "let") else []
    if head == "rules" or (words[-1] != ":" and _in_brackets(words)):
        return _sizes(document, offset)
    if words[-1] in (":", "->", "=>", "(", ",") or last == "GRAD":
        return [Item(d, "dtype") for d in DTYPES] if "LSQB" in accepted or words[-1] == ":" else []
    return []


def _in_brackets(words: list[str]) -> bool:
    return words.count("[") > words.count("]")


def _option(words: list[str], kinds: list[str]) -> list[Item] | None:
    """Options of an ``fsdp`` or ``compile`` line and their values; ``None`` where the place is in no such braces."""
    start = max((i for i, k in enumerate(kinds) if k in OPTIONS), default=-1)
    if start < 0 or any(k in ("PARAM", "CALL", "CHECKPOINT", "FREEZE") for k in kinds[start + 1 :]):
        return None
    line = words[start:]
    if line.count("{") <= line.count("}"):
        return None
    if line[-1] in ("{", ","):
        return [Item(o, "option") for o in OPTIONS[kinds[start]]]
    if line[-1] in ("param", "reduce", "output"):
        return [Item(d, "dtype") for d in DTYPES]
    return [Item(v, "value") for v in _VALUES.get(line[-1], ())]


def _wants_axis(words: list[str], kinds: list[str], head: str) -> bool:
    if kinds[-1] in ("OVER", "REPLICATE", "MAX", "MIN", "AVG", "TILDE") or words[-1] == "/":
        return True
    if head == "rules":
        return words[-1] == "->"
    if head == "split":
        return words[-1] == "."
    return kinds[-1] == "PLUS" and head != "let"


def _axes(document: Document, words: list[str], kinds: list[str]) -> list[Item]:
    """The axes of the mesh that the declaration is on; those used before in the same spec come last."""
    name = None
    if words[0] == "split" and len(words) > 1:
        name = words[1]
    elif "ON" in kinds and kinds.index("ON") + 1 < len(words):
        name = words[kinds.index("ON") + 1]
    meshes = [document.meshes[name]] if name in document.meshes else list(document.meshes.values())
    if name is None and len(meshes) != 1:
        return []
    found = [(a, m) for m in meshes for a in m.all_axes()]
    return [Item(a.name, "axis", f"{'?' if a.open else a.size} of mesh {m.name}, link {a.link.name}") for a, m in found]


def _links(document: Document) -> list[Item]:
    return [Item(n, "link", f"{k.bandwidth / 10**9:g} GB/s") for n, k in document.links.items()]


def _sizes(document: Document, offset: int) -> list[Item]:
    """Constants, and the sizes that other specs name."""
    free = {o.text for o in occurrences(document.file) if o.kind == "size" and not o.span.start <= offset <= o.span.end}
    items = [Item(n, "size", "a size") for n in sorted(free - set(document.lets))]
    return [Item(n, "size", str(v)) for n, v in document.lets.items()] + items


__all__ = ["Completion", "Item", "ItemKind", "complete"]
