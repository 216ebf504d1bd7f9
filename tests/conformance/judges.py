"""What makes the answers to a case right. A judge takes the exit code and the standard output for each of the case's
sources, and says what is wrong with them, or ``None``."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Answers = list[tuple[int, str]]
Judge = Callable[[Answers], str | None]


def reports(expected: Sequence[Mapping[str, Any]]) -> Judge:
    """Just these diagnostics, with their spans, in this order."""

    def judge(answers: Answers) -> str | None:
        ((code, out),) = answers
        said = json.loads(out or "[]")
        if code != int(any(d["severity"] == "error" for d in said)):
            return f"exit {code}: {out}"
        found = [{"code": d["code"], **(d["span"] or {})} for d in said]
        for one in found:
            one.pop("file", None)
        return None if found == list(expected) else f"expected {expected}, found {found}"

    return judge


def codes(expected: Sequence[str]) -> Judge:
    """Just these codes, in this order."""

    def judge(answers: Answers) -> str | None:
        ((code, out),) = answers
        found = [d["code"] for d in json.loads(out or "[]")]
        return _same(code, found, expected)

    return judge


def _same(code: int, found: Sequence[str], expected: Sequence[str]) -> str | None:
    if code != (1 if expected else 0):
        return f"exit {code}, with {found}"
    return None if list(found) == list(expected) else f"expected {expected}, found {found}"


def gives(expected: object) -> Judge:
    """This JSON."""

    def judge(answers: Answers) -> str | None:
        ((code, out),) = answers
        if code != 0:
            return f"exit {code}"
        found = json.loads(out)
        return None if found == expected else f"expected {expected}, found {found}"

    return judge


def costs(case: Mapping[str, Any]) -> Judge:
    """A plan within the bounds of the case, and within those of every plan."""

    def judge(answers: Answers) -> str | None:
        ((code, out),) = answers
        if code != 0:
            return f"exit {code}"
        plan = json.loads(out)["r"]
        received = plan["bytes_received"]
        least = max(case.get("bytes_received_at_least", 0), plan["bytes_bound"])
        if not least <= received <= case.get("bytes_received_at_most", received):
            return f"{received} bytes received"
        # Seconds are printed as floats; plans are compared in picoseconds.
        if plan["seconds"] > case.get("seconds_at_most", plan["seconds"]) + 1e-12:
            return f"{plan['seconds']} s"
        small = plan["largest_array_ratio"] <= 1 or plan["bytes_bound"] < 1 << 20
        return None if small else f"an array of {plan['largest_array_ratio']} of the larger end"

    return judge


def verifies(expected: Sequence[str]) -> Judge:
    """All is held, or just these codes are reported."""

    def judge(answers: Answers) -> str | None:
        ((code, out),) = answers
        said = json.loads(out)
        if not expected and not said["held"]:
            return "nothing was held"
        return _same(code, [d["code"] for d in said["diagnostics"]], expected)

    return judge


def imports(text: str | None, expected: Sequence[str]) -> Judge:
    """This text, where the case says one, and just these codes. Warnings do not change the exit code."""

    def judge(answers: Answers) -> str | None:
        ((code, out),) = answers
        said = json.loads(out)
        found = [d["code"] for d in said["diagnostics"]]
        failed = any(d["severity"] == "error" for d in said["diagnostics"])
        if code != int(failed):
            return f"exit {code}, with {found}"
        if sorted(found) != sorted(expected):
            return f"expected {expected}, found {found}"
        return None if text is None or said["text"] == text else f"expected {text!r}, found {said['text']!r}"

    return judge


def runs(answers: Answers) -> str | None:
    """Every rank came to its end, with the results of one device, and sent what was planned."""
    ((code, out),) = answers
    if code != 0:
        return f"exit {code}: {out}"
    return None if isinstance(json.loads(out), dict) else f"no object: {out}"


def _alike(answers: Answers) -> str | None:
    """Every source has the same answer: exit code and, but for places in the text, what is printed."""
    told = [(code, _without_places(json.loads(out or "null"))) for code, out in answers]
    return next((f"{told[0]} and {one}" for one in told if one != told[0]), None)


def _without_places(said: Any) -> Any:
    if isinstance(said, list) and all(isinstance(d, dict) and "code" in d for d in said):
        return [d["code"] for d in said]
    if isinstance(said, dict):
        # Of a plan: its cost. Which of several plans of one cost is found is free.
        return {k: _cost(v) if isinstance(v, dict) else v for k, v in said.items()}
    return said


def _cost(plan: Mapping[str, Any]) -> list[Any]:
    return [plan[k] for k in ("bytes_received", "bytes_bound", "largest_array_ratio", "seconds")]


def _identical(answers: Answers) -> str | None:
    """The same answer each time, to the letter."""
    return None if len(set(answers)) == 1 else f"{answers}"


def _never_slower(answers: Answers) -> str | None:
    """No source has a plan that takes longer than that of the source before it."""
    if any(code for code, _ in answers):
        return f"exit {[code for code, _ in answers]}"
    seconds = [plan["seconds"] for _, out in answers for plan in json.loads(out).values()]
    return None if seconds == sorted(seconds, reverse=True) else f"{seconds}"


RELATIONS: dict[str, Judge] = {"alike": _alike, "identical": _identical, "never slower": _never_slower}
"""What holds between the answers to the sources of one case."""
