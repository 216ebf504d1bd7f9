"""The cases of ``spec/conformance``, and what makes an answer to one right."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from attrs import field, frozen

from tests.conformance import judges

SUITE = Path(__file__).parents[2] / "spec" / "conformance"
Kind = Literal["check", "typing", "model", "blocks", "plan", "verify", "import", "run"]
Tensors = Mapping[str, tuple[str, list[int]]]
"""Dtype and shape by name."""
Answer = tuple[int, str]
"""An exit code, and what was printed on standard output."""


@frozen
class Case:
    """Sources for one of the commands, mostly one, and the judge of its answers: what is wrong, or ``None``.

    ``options`` are added to the command, and the path of a safetensors file of ``tensors``; ``files`` lie in the folder
    that it runs in; ``notation`` stands for ``{}`` in it.
    """

    name: str
    kind: Kind
    sources: tuple[bytes, ...] = field(repr=False)
    judge: Callable[[list[Answer]], str | None] = field(repr=False, eq=False)
    options: tuple[str, ...] = ()
    tensors: Tensors | None = field(default=None, repr=False)
    files: Mapping[str, str] = field(factory=dict, repr=False)
    notation: str = ""


def load() -> list[Case]:
    """Every case of the suite."""
    parts = (_valid, _invalid, _several, _typing, _layouts, _transitions, _relations, _functions, _models, _imports)
    return [case for part in (*parts, _runs) for case in part()]


def read(part: str) -> Any:
    """The JSON of a part."""
    return json.loads((SUITE / f"{part}.json").read_text(encoding="utf-8"))


def _valid() -> Iterator[Case]:
    for path in sorted((SUITE / "valid").glob("*.shard")):
        yield Case(f"valid/{path.stem}", "check", (path.read_bytes(),), judges.reports([]))


def _invalid() -> Iterator[Case]:
    for path in sorted((SUITE / "invalid").glob("*.shard")):
        expected = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        options = _options(expected)
        yield Case(f"invalid/{path.stem}", "check", (path.read_bytes(),), judges.reports([expected]), options)


def _options(case: dict[str, Any]) -> tuple[str, ...]:
    """The options that a case adds to its command; taken out of it."""
    options: list[str] = []
    if "nproc" in case:
        options += ["--nproc", str(case.pop("nproc"))]
    for name, value in case.pop("sets", {}).items():
        options += ["--set", f"{name}={value}"]
    return tuple(options)


def _several() -> Iterator[Case]:
    for case in read("several"):
        source = (case["source"] * case.get("times", 1)).encode()
        yield Case(f"several/{case['name']}", "check", (source,), judges.reports(case["errors"]), _options(case))


def _typing() -> Iterator[Case]:
    for case in read("typing"):
        judge = judges.reports(case["errors"])
        yield Case(f"typing/{case['name']}", "typing", (case["source"].encode(),), judge, tensors=case["tensors"])


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
    for case in read("layouts"):
        name = f"layouts/{case['spec']} on {case['mesh']}"
        yield Case(
            name, "blocks", (layout_source(case["mesh"], case["spec"]).encode(),), judges.gives({"r": case["blocks"]})
        )


def layout_source(mesh: str, spec: str) -> str:
    return f"mesh m = {mesh}\n\nreshard r: {spec} => {spec}\n"


def _transitions() -> Iterator[Case]:
    for case in read("transitions"):
        source = transition_source(case.get("links", []), case["mesh"], case["change"])
        yield Case(f"transitions/{case['name']}", "plan", (source.encode(),), judges.costs(case))


def transition_source(links: list[str], mesh: str, change: str) -> str:
    return "".join(f"link {link}\n" for link in links) + f"mesh m = {mesh}\n\nreshard r: {change}\n"


def _relations() -> Iterator[Case]:
    for case in read("relations"):
        sources = tuple(source.encode() for source in case["sources"])
        yield Case(f"relations/{case['name']}", case["command"], sources, judges.RELATIONS[case["relation"]])


def _functions() -> Iterator[Case]:
    for case in read("functions"):
        options = ("--functions", case["functions"]) if "functions" in case else ()
        judge = judges.verifies(case["errors"])
        name = f"functions/{case['name']}"
        yield Case(name, "verify", (case["source"].encode(),), judge, options, files=case["files"])


def _models() -> Iterator[Case]:
    for case in read("models"):
        judge = judges.codes([error["code"] for error in case["errors"]])
        name = f"models/{case['name']}"
        yield Case(name, "model", (case["source"].encode(),), judge, files=case["files"])


def _runs() -> Iterator[Case]:
    for case in read("runs"):
        options = ("--nproc", str(case["nproc"]))
        yield Case(f"runs/{case['name']}", "run", (case["source"].encode(),), judges.runs, options, files=case["files"])


def _imports() -> Iterator[Case]:
    for case in read("imports"):
        judge = judges.imports(case.get("text"), case["errors"])
        source = case["input"].encode()
        yield Case(f"imports/{case['name']}", "import", (source,), judge, notation=case["notation"])


__all__ = ["SUITE", "Answer", "Case", "Kind", "Tensors", "layout_source", "load", "read", "transition_source"]
