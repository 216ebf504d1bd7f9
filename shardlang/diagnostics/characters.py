"""Characters of other alphabets: their names, and those of the language that they are taken for."""

from __future__ import annotations

import unicodedata

_SIGNS = {
    "→": "->", "⇒": "=>", "×": "*", "∗": "*", "·": "*", "≤": "<=", "…": "...", "–": "-", "—": "-", "−": "-",
    "⁄": "/", "∕": "/", "∶": ":", "\u00a0": " ",
}  # fmt: skip
_ALIKE = dict(
    zip(
        "аеорсухіѕјһԁѵмтвнкАВЕКМНОРСТХІЅЈοανρικυχτΑΒΕΖΗΙΚΜΝΟΡΤΥΧ",
        "aeopcyxisjhdvmtbhkABEKMHOPCTXISJoavpikuxtABEZHIKMNOPTYX",
        strict=True,
    )
)
"""Letters of the Cyrillic and Greek alphabets by the Latin ones that they look like."""


def instead_of(character: str) -> str | None:
    """What the language writes for a character that it does not have: the sign or letter that it looks like, nothing
    for one that nobody sees; ``None`` where nothing is near."""
    if character in _SIGNS or character in _ALIKE:
        return _SIGNS.get(character) or _ALIKE[character]
    if unicodedata.category(character) in ("Cf", "Mn", "Me"):
        return ""
    folded = unicodedata.normalize("NFKC", character)
    return folded if folded != character and folded.isascii() and folded.isprintable() else None


def described(character: str) -> str:
    """``U+0440, Cyrillic small letter er``."""
    name = unicodedata.name(character, "")
    return f"U+{ord(character):04X}" + (f", {name.capitalize()}" if name else "")


__all__ = ["described", "instead_of"]
