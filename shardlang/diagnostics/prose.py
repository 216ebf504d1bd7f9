"""Turns of phrase that many messages share."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher, get_close_matches

LIST_LIMIT = 8
"""How many names a message lists before it says how many more there are."""
SHORT = 3
"""Names of so few letters that two of them swapped leave little in common, by what is otherwise counted."""


def quoted(names: Iterable[str], limit: int = LIST_LIMIT) -> str:
    """```a`, `b` and 3 more``: names in backticks, at most ``limit`` of them."""
    names = list(names)
    shown = [f"`{n}`" for n in names[:limit]]
    if len(names) > limit:
        return ", ".join(shown) + f" and {len(names) - limit} more"
    return conjoined(shown)


def named(what: str) -> str:
    """A name in backticks; a description (``the source``, ``the gradient of w``) as it is."""
    return what if what.startswith("the ") else f"`{what}`"


def conjoined(parts: Iterable[str], word: str = "and") -> str:
    """``a, b and c``."""
    parts = list(parts)
    if len(parts) < 2:
        return "".join(parts)
    return ", ".join(parts[:-1]) + f" {word} {parts[-1]}"


def nearest(name: str, candidates: Iterable[str], limit: int = 3) -> list[str]:
    """The candidates that look like ``name``, best first; those that differ only in case come before all, and
    short ones with letters swapped after them."""
    candidates = list(dict.fromkeys(candidates))
    same = [c for c in candidates if c.lower() == name.lower()]
    swapped = [c for c in candidates if len(c) == len(name) <= SHORT and sorted(c) == sorted(name)]
    close = get_close_matches(name, candidates, n=limit, cutoff=0.6)
    return list(dict.fromkeys([*same, *swapped, *close]))[:limit]


def sure(name: str, candidates: Iterable[str]) -> str | None:
    """The one candidate that ``name`` is surely a slip for: they differ in case, or hardly, and no other is near."""
    close = nearest(name, candidates)
    if len(close) != 1:
        return None
    alike = SequenceMatcher(None, name, close[0]).ratio() >= 0.75 and min(len(name), len(close[0])) >= 3
    return close[0] if alike or name.lower() == close[0].lower() else None


def did_you_mean(name: str, candidates: Iterable[str]) -> tuple[str, ...]:
    """One help that names the nearest candidates, or none."""
    close = nearest(name, candidates)
    if not close:
        return ()
    return (f"did you mean {conjoined([f'`{c}`' for c in close], 'or')}?",)


def plural(count: int, noun: str, many: str | None = None) -> str:
    """``1 dim``, ``2 dims``."""
    return f"{count} {noun if count == 1 else many or noun + 's'}"
