"""The cases of ``spec/conformance``, and what makes an answer to one right."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from attrs import field, frozen

SUITE = Path(__file__).parents[2] / "spec" / "conformance"
Kind = Literal["check", "typing", "blocks", "plan"]
Tensors = Mapping[str, tuple[str, list[int]]]
"""Dtype and shape by name."""


@frozen
class Case:
    """A source for one of the commands, and the judge of its answer: what is wrong with it, or ``None``."""

    name: str
    kind: Kind
    source: bytes = field(repr=False)
    judge: Callable[[int, str], str | None] = field(repr=False, eq=False)
    nproc: int | None = None
    tensors: Tensors | None = field(default=None, repr=False)


def load() -> list[Case]:
    """Every case of the suite."""
    return [*_valid(), *_invalid(), *_typing(), *_layouts(), *_transitions()]


def _valid() -> Iterator[Case]:
    for path in sorted((SUITE / "valid").glob("*.shard")):
        yield Case(f"valid/{path.stem}", "check", path.read_bytes(), _reports([]))


def _invalid() -> Iterator[Case]:
    for path in sorted((SUITE / "invalid").glob("*.shard")):
        expected = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        nproc = expected.pop("nproc", None)
        yield Case(f"invalid/{path.stem}", "check", path.read_bytes(), _reports([expected]), nproc)


def _reports(expected: list[Mapping[str, Any]]) -> Callable[[int, str], str | None]:
    def judge(code: int, out: str) -> str | None:
        if code != (1 if expected else 0):
            return f"exit {code}: {out}"
        found = [{"code": d["code"], **(d["span"] or {})} for d in json.loads(out or "[]")]
        for one in found:
            one.pop("file", None)
        return None if found == expected else f"expected {expected}, found {found}"

    return judge


def _typing() -> Iterator[Case]:
    for case in json.loads((SUITE / "typing.json").read_text(encoding="utf-8")):
        judge = _reports(case["errors"])
        yield Case(f"typing/{case['name']}", "typing", case["source"].encode(), judge, tensors=case["tensors"])


_ITEMSIZE = {"F32": 4, "BF16": 2}


def write_tensors(path: Path, tensors: Tensors) -> None:
    """A safetensors file of zeros with these tensors, by its public format: a header's length, a header, and bytes."""
    header, offset = {}, 0
    for name, (dtype, shape) in tensors.items():
        end = offset + _ITEMSIZE[dtype.upper()] * math.prod(shape)
        header[name] = {"dtype": dtype.upper(), "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(offset))


def _layouts() -> Iterator[Case]:
    for case in json.loads((SUITE / "layouts.json").read_text(encoding="utf-8")):
        name = f"layouts/{case['spec']} on {case['mesh']}"
        yield Case(name, "blocks", layout_source(case["mesh"], case["spec"]).encode(), _holds(case["blocks"]))


def layout_source(mesh: str, spec: str) -> str:
    return f"mesh m = {mesh}\n\nreshard r: {spec} => {spec}\n"


def _holds(expected: list[Any]) -> Callable[[int, str], str | None]:
    def judge(code: int, out: str) -> str | None:
        if code != 0:
            return f"exit {code}"
        found = json.loads(out)["r"]
        return None if found == expected else f"expected {expected}, found {found}"

    return judge


def _transitions() -> Iterator[Case]:
    for case in json.loads((SUITE / "transitions.json").read_text(encoding="utf-8")):
        source = transition_source(case.get("links", []), case["mesh"], case["change"])
        yield Case(f"transitions/{case['name']}", "plan", source.encode(), _costs(case))


def transition_source(links: list[str], mesh: str, change: str) -> str:
    return "".join(f"link {link}\n" for link in links) + f"mesh m = {mesh}\n\nreshard r: {change}\n"


def _costs(case: Mapping[str, Any]) -> Callable[[int, str], str | None]:
    def judge(code: int, out: str) -> str | None:
        if code != 0:
            return f"exit {code}"
        plan = json.loads(out)["r"]
        received = plan["bytes_received"]
        least = case.get("bytes_received_at_least", 0)
        if not least <= received <= case.get("bytes_received_at_most", received):
            return f"{received} bytes received"
        # Seconds are printed as floats; plans are compared in picoseconds.
        if plan["seconds"] > case.get("seconds_at_most", plan["seconds"]) + 1e-12:
            return f"{plan['seconds']} s"
        small = plan["largest_array_ratio"] <= 1 or plan["bytes_bound"] < 1 << 20
        return None if small else f"an array of {plan['largest_array_ratio']} of the larger end"

    return judge
