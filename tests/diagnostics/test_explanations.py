"""Every code is registered, explained by an example that yields just it, and raised by a test.

An explanation's first fenced block is its example. ``shard`` (with ``nproc=N`` where a mesh has `?`) goes the way of
``shardlang check``; ``python`` is run and raises; ``sh`` is run by bash in an empty folder and prints the diagnostic.
``text`` shows what no test machine can bring about; such a code must be raised by a test elsewhere.
"""

import ast
import os
import re
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

import pytest

from shardlang.check import check
from shardlang.diagnostics import REGISTRY, ShardlangError
from shardlang.diagnostics.explanations import FOLDER, Fence, explanation, fences
from shardlang.source import Source
from shardlang.syntax.parse import parse

ROOT = Path(__file__).parents[2]
EXPLAINED = sorted(path.stem for path in FOLDER.glob("*.md"))


def example(code: str) -> Fence:
    return next(fences(explanation(code) or ""))


def by_language(*languages: str) -> list[str]:
    return [code for code in EXPLAINED if example(code).language in languages]


@pytest.mark.parametrize("code", sorted(REGISTRY))
def test_code_is_explained(code: str) -> None:
    text = explanation(code)
    assert text is not None, f"write shardlang/diagnostics/explain/{code}.md"
    assert text.startswith(f"# {code}: {REGISTRY[code].title}\n")
    first = next(fences(text), None)
    assert first is not None
    assert first.language in ("shard", "python", "sh", "text")
    after = text.split("```")[2]
    assert after.strip(), "the repair is missing"


@pytest.mark.parametrize("code", EXPLAINED)
def test_explained_code_is_registered(code: str) -> None:
    assert code in REGISTRY


@pytest.mark.parametrize("code", by_language("shard"))
def test_shard_example_yields_just_its_code(code: str) -> None:
    fence = example(code)
    sizes = [int(word.removeprefix("nproc=")) for word in fence.words if word.startswith("nproc=")]
    with pytest.raises(ShardlangError) as caught:
        check(parse(Source(f"{code}.shard", fence.text)), nproc=sizes[0] if sizes else None)
    assert set(caught.value.codes) == {code}, str(caught.value)


@pytest.mark.parametrize("code", by_language("python"))
def test_python_example_raises_just_its_code(code: str) -> None:
    with pytest.raises(ShardlangError) as caught:
        exec(compile(example(code).text, f"{code}.md", "exec"), {"__name__": "example"})
    assert set(caught.value.codes) == {code}, str(caught.value)


@pytest.mark.parametrize("code", by_language("sh"))
def test_shell_example_prints_just_its_code(code: str, tmp_path: Path) -> None:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["bash", "-c", example(code).text], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
    )
    printed = done.stdout + done.stderr
    named = {known for known in REGISTRY if f"[{known}]" in printed}
    assert named == {code}, printed
    assert "Traceback" not in printed


@lru_cache(maxsize=1)
def expected() -> dict[str, list[str]]:
    """The codes that tests hold what was raised against, each with where: in a test, or its parameters, that asserts. A
    code in a comment, in a docstring or in a text of several lines, which may be a file's, is none."""
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        if path == Path(__file__):
            continue
        for test in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(test, ast.FunctionDef) or not any(map(_asserts, ast.walk(test))):
                continue
            docstring = ast.get_docstring(test, clean=False)
            for one in ast.walk(test):
                if isinstance(one, ast.Constant) and isinstance(one.value, str) and one.value != docstring:
                    for code in re.findall(r"SL\d{4}", one.value) if "\n" not in one.value else ():
                        found.setdefault(code, []).append(f"{path.relative_to(ROOT)}::{test.name}")
    return found


def _asserts(node: ast.AST) -> bool:
    called = node.func if isinstance(node, ast.Call) else None
    return isinstance(node, ast.Assert) or (isinstance(called, ast.Name) and called.id.startswith("assert_"))


@pytest.mark.parametrize("code", by_language("text"))
def test_code_without_a_runnable_example_is_raised_by_another_test(code: str) -> None:
    assert code in expected(), f"no test asserts that {code} is raised"
