"""Many names with few specs, as few ``param`` lines."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from shardlang.check.patterns import DIGITS, NameIndex

NAME = re.compile(r"[A-Za-z0-9_]+(?:\.[A-Za-z0-9_]+)*")
"""A dotted name that a pattern can write."""

_Line = tuple[tuple[tuple[str, ...], ...], str]
"""The components of a pattern, each with its alternatives, and the spec."""


def fold(specs: Mapping[str, str]) -> list[tuple[str, str]]:
    """Lines (pattern, spec) that give each name its spec and match no other name, in the order of the names.

    Names that differ only in a number share a line; so do names that differ in one component, by ``{a,b}``. Every
    pattern is held against all names before it is used.
    """
    index = NameIndex(specs)
    groups: dict[tuple[str, str], list[str]] = {}
    for name, spec in specs.items():
        groups.setdefault((_form(name), spec), []).append(name)
    lines: list[_Line] = []
    for (form, spec), names in groups.items():
        patterns = [form] if set(index.match(form)) == set(names) else _ranges(names, index)
        lines += [(_alternatives(p), spec) for p in patterns]
    return [(_text(components), spec) for components, spec in _braced(lines, index)]


def _form(name: str) -> str:
    """The name with ``*`` for every component that is a number."""
    return ".".join("*" if part.isdecimal() and len(part) <= DIGITS else part for part in name.split("."))


def _ranges(names: list[str], index: NameIndex) -> Iterator[str]:
    """Patterns for names of one form: a range where the first number that varies runs on, else the name itself."""
    parts = [name.split(".") for name in names]
    varying = [i for i in range(len(parts[0])) if len({p[i] for p in parts}) > 1]
    if not varying:
        yield from names
        return
    at = varying[0]
    rows: dict[tuple[str, ...], list[str]] = {}
    for part, name in zip(parts, names, strict=True):
        rows.setdefault((*part[:at], "", *part[at + 1 :]), []).append(name)
    for row, members in rows.items():
        for run in _runs(sorted(members, key=lambda n: int(n.split(".")[at])), at):
            first, last = (name.split(".")[at] for name in (run[0], run[-1]))
            pattern = ".".join([*row[:at], f"[{first}..{last}]", *row[at + 1 :]])
            if len(run) > 1 and set(index.match(pattern)) == set(run):
                yield pattern
            else:
                yield from run


def _runs(names: list[str], at: int) -> Iterator[list[str]]:
    """Names that differ in component ``at``, ascending in its number, cut where that number leaps."""
    run: list[str] = []
    before = 0
    for name in names:
        number = int(name.split(".")[at])
        if run and number != before + 1:
            yield run
            run = []
        run.append(name)
        before = number
    yield run


def _alternatives(pattern: str) -> tuple[tuple[str, ...], ...]:
    parts = re.findall(r"\[[^]]*\]|[^.]+", pattern)
    return tuple((part,) for part in parts)


def _text(components: tuple[tuple[str, ...], ...]) -> str:
    return ".".join(c[0] if len(c) == 1 else "{" + ",".join(c) + "}" for c in components)


def _braced(lines: list[_Line], index: NameIndex) -> list[_Line]:
    """Joins lines of one spec that differ in one plain component, where the joined pattern matches nothing more."""
    kept: list[_Line] = []
    places: dict[tuple[object, ...], int] = {}
    for components, spec in lines:
        joined = False
        for i, own in enumerate(components):
            place = places.get((spec, i, components[:i], components[i + 1 :]))
            if place is None or not NAME.fullmatch(own[0]):
                continue
            other = kept[place][0]
            if other[:i] + other[i + 1 :] != components[:i] + components[i + 1 :]:
                continue
            candidate = (*other[:i], (*other[i], *own), *other[i + 1 :])
            apart = len(index.match(_text(other))) + len(index.match(_text(components)))
            if NAME.fullmatch(other[i][0]) and len(index.match(_text(candidate))) == apart:
                kept[place] = (candidate, spec)
                joined = True
                break
        if not joined:
            for i in range(len(components)):
                places.setdefault((spec, i, components[:i], components[i + 1 :]), len(kept))
            kept.append((components, spec))
    return kept


__all__ = ["NAME", "fold"]
