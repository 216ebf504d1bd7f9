"""Our own command passes the suite, and the suite misses nothing that it could hold."""

import json
from collections.abc import Callable
from copy import copy
from functools import lru_cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner
from lark import Token

from shardlang.cli import main
from shardlang.diagnostics import REGISTRY
from shardlang.diagnostics.explanations import explanation, fences
from shardlang.syntax.grammar import parser
from tests.conformance import generate, reference
from tests.conformance.blocks import blocks
from tests.conformance.cases import SUITE, Case, load, write_tensors

SCHEMA = json.loads((SUITE / "schema.json").read_text(encoding="utf-8"))
CASES = {case.name: case for case in load()}


def answer(case: Case, folder: Path) -> tuple[int, str]:
    """The exit code and standard output of our command, in this process."""
    if case.kind == "blocks":
        return 0, json.dumps(blocks(case.source))
    words = ["check", "--format", "json", "--no-model", "-"]
    if case.kind == "plan":
        words = ["compile", "--emit", "plan", "--no-model", "-"]
    if case.tensors is not None:
        path = folder / "model.safetensors"
        write_tensors(path, case.tensors)
        words = ["check", "--format", "json", "-", "--checkpoint", str(path)]
    if case.nproc is not None:
        words += ["--nproc", str(case.nproc)]
    result = CliRunner().invoke(main, words, input=case.source)
    return result.exit_code, result.stdout


@pytest.mark.parametrize("name", CASES)
def test_our_command_passes(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    assert case.judge(*answer(case, tmp_path)) is None


def validate(instance: Any, definition: str) -> None:
    jsonschema.validate(instance, {**SCHEMA, "$ref": f"#/$defs/{definition}"})


def test_the_schema_validates_every_case() -> None:
    for name in ("typing", "layouts", "transitions"):
        validate(json.loads((SUITE / f"{name}.json").read_text(encoding="utf-8")), name)
    for path in (SUITE / "invalid").glob("*.json"):
        validate(json.loads(path.read_text(encoding="utf-8")), "invalid")
        assert path.with_suffix(".shard").exists()
        assert path.stem.startswith(json.loads(path.read_text(encoding="utf-8"))["code"] + "-")


def test_the_generated_cases_are_what_generates_them() -> None:
    assert (SUITE / "layouts.json").read_text(encoding="utf-8") == generate.text(generate.layouts())


def test_the_reference_agrees_with_itself_on_what_is_missing() -> None:
    axes = {"a": 2, "b": 2}
    rows = (reference.Dim(((8, ("a", "b")),)), reference.Dim(((8, ()),)))
    columns = (reference.Dim(((8, ()),)), reference.Dim(((8, ("a", "b")),)))
    assert reference.missing(rows, rows, axes) == 0
    assert reference.missing(rows, columns, axes) == 12


def test_an_answer_that_is_wrong_is_seen() -> None:
    for name, code, out in (
        ("valid/let", 1, "[]"),
        ("valid/let", 0, '[{"code": "SL0101", "span": null}]'),
        ("invalid/SL0112-equals-in-a-mesh", 0, "[]"),
        ("invalid/SL0112-equals-in-a-mesh", 1, '[{"code": "SL0113", "span": null}]'),
        ("typing/a name with two sizes", 0, "[]"),
        ("layouts/[8/a/b] on a:2 * b:2", 0, '{"r": [[[[0, 8]]]]}'),
    ):
        assert CASES[name].judge(code, out) is not None


@lru_cache(maxsize=1)
def reductions() -> set[str]:
    """The alternatives of the grammar that the valid cases use."""
    used: set[str] = set()
    for case in CASES.values():
        if not case.name.startswith("valid/"):
            continue
        state = parser().parse_interactive(case.source.decode(), "start")
        conf = copy(state.parser_state.parse_conf)
        conf.callbacks = {rule: recorder(rule, used) for rule in conf.callbacks}
        state.parser_state.parse_conf = conf
        for token in state.lexer_thread.lex(state.parser_state):
            state.feed_token(token)
        state.feed_token(Token("$END", "", start_pos=0, end_pos=0))
    return used


def recorder(rule: Any, used: set[str]) -> Callable[[Any], None]:
    def record(_: Any) -> None:
        used.add(str(rule))

    return record


def test_every_alternative_of_the_grammar_is_in_a_valid_case() -> None:
    pieces = {"$root_spec", "$root_signature", "$root_change", "$root_axes"}
    rules = {str(rule) for rule in parser().rules if rule.origin.name not in pieces}
    assert rules - reductions() == set()


def test_every_code_that_a_text_alone_yields_is_in_an_invalid_case() -> None:
    alone = {c for c in REGISTRY if next(fences(explanation(c) or "```\n```")).language == "shard"}
    assert alone <= {name.removeprefix("invalid/")[:6] for name in CASES if name.startswith("invalid/")}
