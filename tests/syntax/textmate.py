"""A small interpreter of TextMate grammars: enough for ours, which keeps to what Oniguruma and ``re`` both have."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

GRAMMAR = Path(__file__).parents[2] / "grammar" / "shardlang.tmLanguage.json"
Rule = dict[str, Any]


def load() -> Rule:
    return json.loads(GRAMMAR.read_text(encoding="utf-8"))


def expressions(rule: Any) -> list[str]:
    """Every regular expression of a grammar."""
    if isinstance(rule, list):
        return [e for r in rule for e in expressions(r)]
    if not isinstance(rule, dict):
        return []
    own = [rule[key] for key in ("match", "begin", "end") if isinstance(rule.get(key), str)]
    return own + [e for value in rule.values() for e in expressions(value)]


def scopes(text: str, grammar: Rule) -> list[str]:
    """The innermost scope of each character; empty where the grammar gives none.

    As editors do it, line by line: at each place the earliest match of the innermost open rule's patterns and of its
    end wins; of several at one place, the end first, then the first pattern.
    """
    found = [""] * len(text)
    stack: list[Rule] = [grammar]
    at = 0
    for line in text.splitlines(keepends=True):
        _line(line, at, stack, grammar, found)
        at += len(line)
    return found


def _line(line: str, at: int, stack: list[Rule], grammar: Rule, found: list[str]) -> None:
    here, still = 0, 0
    while here <= len(line):
        rules = _flat(stack[-1].get("patterns", []), grammar)
        candidates = [(re.compile(r.get("match") or r["begin"]).search(line, here), r) for r in rules]
        if len(stack) > 1:
            candidates.insert(0, (re.compile(stack[-1]["end"]).search(line, here), None))
        matches = [(m, r) for m, r in candidates if m is not None]
        if not matches:
            return
        match, rule = min(matches, key=lambda pair: pair[0].start())
        if rule is None:
            _paint(match, stack.pop(), "endCaptures", at, found)
        elif "begin" in rule:
            _paint(match, rule, "beginCaptures", at, found)
            stack.append(rule)
        else:
            _paint(match, rule, "captures", at, found)
        still = still + 1 if match.end() == here else 0
        assert still < 50, f"the grammar does not move on from {line[here:]!r}"
        here = match.end()
        if here == len(line) and match.start() == match.end():
            return


def _flat(patterns: list[Rule], grammar: Rule) -> list[Rule]:
    rules: list[Rule] = []
    for pattern in patterns:
        if "include" in pattern:
            pattern = grammar["repository"][pattern["include"].removeprefix("#")]
        if "match" in pattern or "begin" in pattern:
            rules.append(pattern)
        else:
            rules += _flat(pattern["patterns"], grammar)
    return rules


def _paint(match: re.Match[str], rule: Rule, captures: str, at: int, found: list[str]) -> None:
    if "name" in rule and "match" in rule:
        found[at + match.start() : at + match.end()] = [rule["name"]] * (match.end() - match.start())
    for number, capture in rule.get(captures, {}).items():
        start, end = match.span(int(number))
        if start >= 0:
            found[at + start : at + end] = [capture["name"]] * (end - start)
