"""A Pygments lexer (needs the package pygments; ``pip install shardlang`` alone does not bring it).

No word is reserved, so that a list of keywords cannot colour a text. The lexer follows the grammar instead: each state
is one thing that the grammar expects next, and a state that does not find it gives way to the one below it. Any text is
lexed to its end; what fits nowhere is coloured as an error, and the next declaration starts afresh.
"""

from __future__ import annotations

from typing import Any, ClassVar

from pygments.lexer import RegexLexer, default, include, words
from pygments.token import (
    Comment,
    Keyword,
    Name,
    Number,
    Operator,
    Punctuation,
    Whitespace,
)

from shardlang.dtypes import DTYPES

NAME = r"(?:[A-Za-z][A-Za-z0-9_]*|_[A-Za-z0-9_]+)"
BLANK = r"(?:[ \t\r\n]|#[^\n]*\n)*"
"""What may stand between two words."""
PIECE = r"(?:[A-Za-z0-9_]|\*(?!\*)|\{[ \t]*[A-Za-z0-9_]+(?:[ \t]*,[ \t]*[A-Za-z0-9_]+)*[ \t]*\})"
COMPONENT = rf"(?:{PIECE}+|\*\*|\[[0-9]+\.\.[0-9]+\])"

AXIS = Name.Attribute
SIZE = Name.Variable
"""A name of a dim, or of a size."""
DECLARED = Name.Class
"""A link, a mesh, a model: what a declaration names, where it is declared and where it is used."""
FUNCTION = Name.Function
ARGUMENT = Name.Variable.Instance
OPTION = Name.Property
PATH = Name.Namespace


def _then(*states: str) -> tuple[str, ...]:
    """Goes through the states in this order."""
    return tuple(reversed(states))


def _next(*states: str) -> tuple[str, ...]:
    """As ``_then``, in the place of the present state."""
    return ("#pop", *reversed(states))


def _one(pattern: str, kind: Any, *then: str) -> list[Any]:
    """A state that expects one thing, and gives way where it is not there."""
    return [include("blank"), (pattern, kind, _next(*then)), default("#pop")]


def _word(word: str) -> str:
    return word + r"\b"


def _list(item: str, sign: str, kind: Any, more: str) -> dict[str, list[Any]]:
    """The state ``more``: any number of further items, each after the sign."""
    return {more: _one(sign, kind, item, more)}


_DECLARATIONS = {
    "link": _then("declared", "equals", "quantity", "comma", "quantity"),
    "mesh": _then("declared", "equals", "axis", "axes", "ranks"),
    "split": _then("declared", "point", "axis-name", "equals", "axis", "axes"),
    "let": _then("binding", "bindings"),
    "rules": _then("on", "open", "rule-lines"),
    "fn": _then("function", "on?", "signature"),
    "reshard": _then("function", "on?", "colon", "spec", "arrow2", "spec"),
    "model": _then("declared", "from?", "on", "open", "items"),
    "transfer": _then("declared", "arrow2", "declared"),
    "budget": _then("declared", "open", "limits"),
    "rule": _then("operator", "colon", "patterns", "arrow", "patterns"),
}
_ITEMS = {
    "param": _then("path", "colon", "spec"),
    "call": _then("path", "signature", "eager?"),
    "fsdp": _then("path", "over", "over-axis", "over-axes", "replicate?", "options?"),
    "checkpoint": _then("path"),
    "compile": _then("path", "options?"),
    "freeze": _then("path"),
}


class ShardlangLexer(RegexLexer):
    """Lexes ``.shard`` files, and the specs, signatures and transitions of decorators and command lines."""

    name = "shardlang"
    aliases: ClassVar[list[str]] = ["shardlang", "shard"]
    filenames: ClassVar[list[str]] = ["*.shard"]
    mimetypes: ClassVar[list[str]] = ["text/x-shardlang"]
    version_added = "0.1.0"

    tokens: ClassVar[dict[str, list[Any]]] = {
        "root": [
            include("blank"),
            *((_word(word), Keyword.Declaration, states) for word, states in _DECLARATIONS.items()),
            # a piece of a file, as decorators and command lines have it
            (rf"(?={NAME}?{BLANK}\[)", Whitespace, "spec"),
            (rf"(?={NAME}{BLANK}:)", Whitespace, _then("axis", "axes")),
            (r"(?=\()", Whitespace, "signature"),
            (_word("whole"), Keyword.Constant),
            (r"=>", Operator),
            (NAME, Name),
        ],
        "blank": [
            (r"[ \t\r\n]+", Whitespace),
            (r"#[^\n]*", Comment.Single),
        ],
        # names and signs, one at a time
        "declared": _one(NAME, DECLARED),
        "function": _one(NAME, FUNCTION),
        "axis-name": _one(NAME, AXIS),
        "equals": _one("=", Operator),
        "comma": _one(",", Punctuation),
        "colon": _one(":", Punctuation),
        "point": _one(r"\.", Punctuation),
        "open": _one(r"\{", Punctuation),
        "arrow": _one("->", Operator),
        "arrow2": _one("=>", Operator),
        "path": _one(rf"{COMPONENT}(?:\.{COMPONENT})*", PATH),
        "integer": _one(r"[0-9]+", Number.Integer),
        "quantity": _one(r"[0-9]+(?:\.[0-9]+)?[ \t]*[A-Za-z]+(?:/[A-Za-z]+)?", Number),
        "ratio": _one(r"[0-9]+(?:\.[0-9]+)?x\b", Number.Float),
        "on": _one(_word("on"), Keyword, "declared"),
        "on?": _one(rf"on\b(?={BLANK}{NAME})", Keyword, "declared"),
        # meshes
        "axis": _one(NAME, AXIS, "colon", "axis-size", "axis-link"),
        "axis-size": [
            include("blank"),
            (r"[0-9]+", Number.Integer, "#pop"),
            (r"\?", Keyword.Constant, "#pop"),
            default("#pop"),
        ],
        "axis-link": _one("@", Operator, "declared"),
        **_list("axis", r"\*", Operator, "axes"),
        "ranks": _one(_word("ranks"), Keyword, "integer", "dots", "integer"),
        "dots": _one(r"\.\.", Operator),
        # sizes
        "binding": _one(NAME, SIZE, "equals", "sum", "operations"),
        **_list("binding", ",", Punctuation, "bindings"),
        "sum": [
            include("blank"),
            (r"\(", Punctuation, _next("sum", "operations", "close")),
            (r"[0-9]+", Number.Integer, "#pop"),
            (NAME, SIZE, "#pop"),
            default("#pop"),
        ],
        **_list("sum", r"\+|\*|//", Operator, "operations"),
        "close": _one(r"\)", Punctuation),
        # rules for logical dims
        "rule-lines": [
            include("blank"),
            (r"\}", Punctuation, "#pop"),
            (NAME, SIZE, _then("rule-names", "arrow", "over-axis", "over-axes", "else?")),
            default("#pop"),
        ],
        "rule-names": _one(",", Punctuation, "rule-name", "rule-names"),
        "rule-name": _one(NAME, SIZE),
        "else?": [
            include("blank"),
            (r"else(?=(?:[ \t\r\n]|#[^\n]*\n)+whole\b)", Keyword, _next("whole")),
            default("#pop"),
        ],
        "whole": _one(_word("whole"), Keyword.Constant),
        # signatures and specs
        "signature": _one(r"\(", Punctuation, "args", "close", "arrow", "results"),
        "args": [
            include("blank"),
            (NAME, ARGUMENT, _next("colon", "spec", "more-args")),
            default("#pop"),
        ],
        **_list("args", ",", Punctuation, "more-args"),
        "results": [
            include("blank"),
            (r"\(", Punctuation, _next("result", "more-results", "close")),
            default(_next("spec")),
        ],
        "result": [
            include("blank"),
            (r"_(?![A-Za-z0-9_])", Keyword.Constant, "#pop"),
            (rf"{NAME}(?={BLANK}:)", ARGUMENT, _next("colon", "spec")),
            default(_next("spec")),
        ],
        **_list("result", ",", Punctuation, "more-results"),
        "spec": [
            include("blank"),
            (rf"whole\b(?!{BLANK}:)", Keyword.Constant, _next("grad?")),
            (words(tuple(DTYPES), suffix=rf"(?={BLANK}\[)"), Keyword.Type),
            (rf"{NAME}(?={BLANK}\[)", Name),
            (r"\[", Punctuation, _next("dims", "pending?", "grad?")),
            default("#pop"),
        ],
        "grad?": _one(_word("grad"), Keyword, "gradient"),
        "gradient": [
            include("blank"),
            (rf"whole\b(?!{BLANK}:)", Keyword.Constant, "#pop"),
            (words(tuple(DTYPES), suffix=rf"(?={BLANK}\[)"), Keyword.Type),
            (rf"{NAME}(?={BLANK}\[)", Name),
            (r"\[", Punctuation, _next("dims", "pending?")),
            default(_next("pending?")),
        ],
        "dims": [
            (r"\]", Punctuation, "#pop"),
            (r"\.\.\.", Keyword.Constant),
            (r"\(", Punctuation, _then("factors", "cuts")),
            include("dim"),
            default("#pop"),
        ],
        "factors": [
            (r"\)", Punctuation, "#pop"),
            include("dim"),
            default("#pop"),
        ],
        "dim": [
            include("blank"),
            (r"_(?![A-Za-z0-9_])", Keyword.Constant, "cuts"),
            (r"[0-9]+", Number.Integer, _then("times", "cuts")),
            (NAME, SIZE, _then("times", "cuts")),
        ],
        "times": _one(r"\*", Operator, "sum", "times"),
        "cuts": [
            include("blank"),
            ("/", Operator, "cut"),
            default("#pop"),
        ],
        "cut": [
            include("blank"),
            ("~", Operator, _next("axis-name")),
            (r"\.|\?", Keyword.Constant, "#pop"),
            default(_next("axis-name")),
        ],
        "pending?": _one(r"\{", Punctuation, "owed", "more-owed", "brace"),
        "owed": [
            include("blank"),
            (r"\+", Operator, _next("axis-name")),
            (r"(?:max|min|avg)\b", Operator.Word, _next("axis-name")),
            default("#pop"),
        ],
        **_list("owed", ",", Punctuation, "more-owed"),
        "brace": _one(r"\}", Punctuation),
        # models
        "from?": _one(_word("from"), Keyword, "reference"),
        "reference": _one(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*", PATH),
        "items": [
            include("blank"),
            (r"\}", Punctuation, "#pop"),
            *((_word(word), Keyword.Declaration, states) for word, states in _ITEMS.items()),
            default("#pop"),
        ],
        "eager?": _one(_word("eager"), Keyword),
        "over": _one(_word("over"), Keyword),
        "over-axis": _one(NAME, AXIS),
        **_list("over-axis", "/", Operator, "over-axes"),
        "replicate?": _one(_word("replicate"), Keyword, "over-axis", "over-axes"),
        "options?": _one(r"\{", Punctuation, "option", "more-options", "brace"),
        "option": _one(NAME, OPTION, "option-value"),
        "option-value": [
            include("blank"),
            (r"[0-9]+", Number.Integer, "#pop"),
            (words(tuple(DTYPES), suffix=r"\b"), Keyword.Type, "#pop"),
            (NAME, Keyword.Constant, "#pop"),
            default("#pop"),
        ],
        **_list("option", ",", Punctuation, "more-options"),
        # budgets
        "limits": [
            include("blank"),
            (r"\}", Punctuation, "#pop"),
            (";", Punctuation),
            (_word("memory"), Keyword, _then("most", "quantity")),
            (_word("peak"), Keyword, _then("most", "ratio")),
            (_word("forbid"), Keyword, _then("step", "on")),
            default("#pop"),
        ],
        "most": _one("<=", Operator),
        "step": _one(NAME, Name.Builtin),
        # operators
        "operator": _one(r"[A-Za-z_]\w*(?:::[A-Za-z_]\w*)?(?:\.\w+)*", FUNCTION),
        "patterns": [
            include("blank"),
            (r"\[", Punctuation, "pattern"),
            default("#pop"),
        ],
        "pattern": [
            include("blank"),
            (r"\]", Punctuation, "#pop"),
            (r"[()]", Punctuation),
            (r"\.\.\.", Keyword.Constant),
            (r"[0-9]+", Number.Integer),
            (NAME, SIZE),
            (r"[+!]", Operator),
            default("#pop"),
        ],
    }


KEYWORDS = (*_DECLARATIONS, *_ITEMS)
"""The words that begin a declaration, or a line of a model."""

__all__ = ["KEYWORDS", "ShardlangLexer"]
