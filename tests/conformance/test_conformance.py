"""Our own commands pass the suite, and the suite misses nothing that it could hold."""

import json
import re
import subprocess
import sys
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
from tests.conformance.cases import SUITE, Answer, Case, load, read, write_tensors

ROOT = SUITE.parents[1]
SCHEMA = json.loads((SUITE / "schema.json").read_text(encoding="utf-8"))
PARTS = (
    "several", "typing", "models", "layouts", "transitions", "relations", "functions", "imports",
    "runs", "invariants", "elsewhere",
)  # fmt: skip
CASES = {case.name: case for case in load()}
COMMANDS = {
    "check": "check --format json --no-model -",
    "typing": "check --format json - --checkpoint",
    "model": "check --format json -",
    "plan": "compile --emit plan --no-model -",
    "verify": "verify --format json -",
    "import": "import {} --format json -",
}


def answer(case: Case, source: bytes, folder: Path) -> Answer:
    """The exit code and standard output of our command, in this process."""
    if case.kind == "blocks":
        return 0, json.dumps(blocks(source))
    words = [*COMMANDS[case.kind].replace("{}", case.notation).split(), *case.options]
    if case.tensors is not None:
        path = folder / "model.safetensors"
        write_tensors(path, case.tensors)
        words.append(str(path))
    for name, text in case.files.items():
        (folder / name).write_text(text, encoding="utf-8")
    result = CliRunner().invoke(main, words, input=source)
    return result.exit_code, result.stdout


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.kind != "run"])
def test_our_command_passes(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES[name]
    if case.files:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert case.judge([answer(case, source, tmp_path) for source in case.sources]) is None


def runner(*options: str, timeout: float, without: str = "(?!)") -> subprocess.CompletedProcess[str]:
    """The runner on our own commands, as the suite's README calls it, but for the option ``without``."""
    text = (SUITE / "README.md").read_text(encoding="utf-8")
    command = re.search(r"```sh\n(python -m tests\.conformance .*?)```", text, re.DOTALL)
    assert command is not None
    here = Path(sys.executable).parent
    words = (
        re.sub(rf"{without} '[^']*'", "", command[1]).replace("\\\n", " ").replace("python -m", f"{sys.executable} -m")
    )
    words = words.replace("'shardlang ", f"'{here / 'shardlang'} ")
    return subprocess.run(
        ["bash", "-c", " ".join([words.strip(), *options])], cwd=ROOT, capture_output=True, text=True, timeout=timeout
    )


def test_the_runner_passes_a_sample_of_every_command() -> None:
    done = runner("--sample", "80", timeout=240, without="--run")
    assert done.returncode == 0, done.stdout + done.stderr
    passed = int(done.stdout.split(" passed")[0].split("\n")[-1])
    assert passed >= len(CASES) // 80


def test_the_runner_fails_a_command_that_is_wrong() -> None:
    said = "import sys; sys.stdin.read(); print('[]')"
    words = [sys.executable, "-m", "tests.conformance", f'{sys.executable} -c "{said}"', "-k", "SL0204"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert re.search(r"^invalid/SL0204.*found \[\]$", done.stdout, re.MULTILINE), done.stdout
    assert "0 passed" in done.stdout


@pytest.mark.nightly
def test_the_runner_passes_every_case_as_commands() -> None:
    done = runner(timeout=3000)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(CASES)} passed, 0 failed, 0 left out" in done.stdout


@lru_cache
def validator(definition: str) -> Any:
    schema = {**SCHEMA, "$ref": f"#/$defs/{definition}"}
    kind = jsonschema.validators.validator_for(schema)
    kind.check_schema(schema)
    return kind(schema)


def validate(instance: Any, definition: str) -> None:
    validator(definition).validate(instance)


def test_the_schema_validates_every_case() -> None:
    assert {path.stem for path in SUITE.glob("*.json")} == {*PARTS, "schema"}
    for name in PARTS:
        validate(read(name), name)
    for path in (SUITE / "invalid").glob("*.json"):
        validate(json.loads(path.read_text(encoding="utf-8")), "invalid")
        assert path.with_suffix(".shard").exists()
        assert path.stem.startswith(json.loads(path.read_text(encoding="utf-8"))["code"] + "-")


def test_the_schema_refuses_a_case_of_another_form() -> None:
    for part, wrong in (
        ("typing", [{"name": "x", "source": "", "tensors": {"w": ["f99", [1]]}, "errors": []}]),
        ("relations", [{"name": "x", "command": "plan", "relation": "alike", "sources": ["one"]}]),
        ("transitions", [{"name": "x", "mesh": "a:2", "change": "[8] => [8]"}]),
        ("invariants", {"lexis 1": {}}),
    ):
        with pytest.raises(jsonschema.ValidationError):
            validate(wrong, part)


def test_cases_have_names_of_their_own() -> None:
    assert len(CASES) == len(load())


def test_the_generated_cases_are_what_generates_them() -> None:
    assert (SUITE / "layouts.json").read_text(encoding="utf-8") == generate.text(generate.layouts())


def test_the_reference_agrees_with_itself_on_what_is_missing() -> None:
    axes = {"a": 2, "b": 2}
    rows = (reference.Dim(((8, ("a", "b")),)), reference.Dim(((8, ()),)))
    columns = (reference.Dim(((8, ()),)), reference.Dim(((8, ("a", "b")),)))
    assert reference.missing(rows, rows, axes) == 0
    assert reference.missing(rows, columns, axes) == 12


def test_an_answer_that_is_wrong_is_seen() -> None:
    plan = '{"r": {"bytes_received": 9, "bytes_bound": 9, "seconds": %s, "largest_array_ratio": 1}}'
    for name, *answers in (
        ("valid/let", (1, "[]")),
        ("valid/let", (0, '[{"code": "SL0101", "severity": "warning", "span": null}]')),
        ("invalid/SL0112-equals-in-a-mesh", (0, "[]")),
        ("invalid/SL0112-equals-in-a-mesh", (1, '[{"code": "SL0113", "severity": "error", "span": null}]')),
        ("typing/a name with two sizes", (0, "[]")),
        ("layouts/[8/a/b] on a:2 * b:2", (0, '{"r": [[[[0, 8]]]]}')),
        ("functions/SL0502 a sort along a split dim", (0, '{"held": [1], "diagnostics": []}')),
        ("functions/columns and rows", (0, '{"held": [], "diagnostics": []}')),
        ("imports/a scalar", (0, '{"text": "", "diagnostics": []}')),
        ("relations/equal layouts", (0, '{"r": []}'), (0, '{"r": [[]]}'), (0, '{"r": []}')),
        ("relations/a plan of one question", (0, plan % 1), (0, plan % 2)),
        ("relations/a faster link", (0, plan % 1), (0, plan % 2)),
    ):
        assert CASES[name].judge(list(answers)) is not None, name


@lru_cache(maxsize=1)
def reductions() -> set[str]:
    """The alternatives of the grammar that the valid cases use."""
    used: set[str] = set()
    for case in CASES.values():
        if not case.name.startswith("valid/"):
            continue
        state = parser().parse_interactive(case.sources[0].decode(), "start")
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


def expected_codes() -> set[str]:
    """The codes that cases expect."""
    codes = {path.stem[:6] for path in (SUITE / "invalid").glob("*.json")}
    for part in ("several", "typing", "models", "functions", "imports"):
        codes |= {e if isinstance(e, str) else e["code"] for case in read(part) for e in case["errors"]}
    return codes


def test_every_code_is_in_a_case_or_is_said_to_need_what_no_case_has() -> None:
    groups = read("elsewhere")
    alone = {code for group in groups for code in group.get("codes", [])}
    families = tuple(family for group in groups for family in group.get("families", []))
    assert alone <= set(REGISTRY) - expected_codes()
    assert all(code.startswith(families) for code in set(REGISTRY) - expected_codes() - alone)


BY_TEXT = re.compile(r"shardlang (check|verify|import) (?!.*--(nproc|set|model|checkpoint))")


@pytest.mark.parametrize("code", sorted(REGISTRY))
def test_a_code_that_a_text_brings_about_is_in_a_case(code: str) -> None:
    """A text, or one with Python modules beside it, by the explanation's example; the rest needs more than that."""
    example = next(fences(explanation(code) or "```\n```"))
    by_text = example.language == "shard" or (example.language == "sh" and BY_TEXT.search(example.text))
    lacks_a_file = code in {
        c for group in read("elsewhere") if "file" in group["needs"] for c in group.get("codes", [])
    }
    assert not by_text or lacks_a_file or code in expected_codes()


def invariants() -> list[str]:
    """``CHAPTER NUMBER`` for each invariant of the reference."""
    found = []
    for path in sorted((ROOT / "spec").glob("*.md")):
        _, _, last = path.read_text(encoding="utf-8").partition("\n## Invariants\n")
        numbers = re.findall(r"^(\d+)\. ", last, re.MULTILINE)
        assert numbers == [str(i) for i in range(1, len(numbers) + 1)], path
        found += [f"{path.stem} {n}" for n in numbers]
    return found


def test_every_invariant_has_cases_or_names_the_tests_that_hold_it() -> None:
    held = read("invariants")
    assert list(held) == sorted(invariants(), key=lambda name: (name.split()[0], int(name.split()[1])))
    for name, by in held.items():
        assert set(by.get("cases", [])) <= set(CASES), name
        for test in by.get("tests", []):
            file, _, function = test.partition("::")
            assert f"def {function}(" in (ROOT / file).read_text(encoding="utf-8"), test
