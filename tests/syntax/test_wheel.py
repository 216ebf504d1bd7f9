"""The wheel that is built from an sdist has all that the package reads at run time."""

import os
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel's contents, as an installer would lay them out."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder / "dist"), str(ROOT)]
    done = subprocess.run(build, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    [wheel] = (folder / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def run(installed: Path, folder: Path, words: Sequence[str], text: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(installed), "XDG_CACHE_HOME": str(folder / "cache")}
    words = [sys.executable, "-m", "shardlang", *words]
    return subprocess.run(words, cwd=folder, env=environment, input=text, capture_output=True, text=True, timeout=60)


def test_the_wheel_compiles_a_file(installed: Path, tmp_path: Path) -> None:
    text = "mesh pod = tp:2\n\nreshard r: f32[8/tp 4] => [8 4/tp]\n"
    done = run(installed, tmp_path, ["compile", "--emit", "plan", "-"], text)
    assert done.returncode == 0, done.stderr
    assert '"all_to_all"' in done.stdout


def test_the_wheel_is_what_was_run(installed: Path, tmp_path: Path) -> None:
    words = [sys.executable, "-c", "import shardlang; print(shardlang.__file__)"]
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == str(installed / "shardlang" / "__init__.py")


def test_the_wheel_explains_and_formats(installed: Path, tmp_path: Path) -> None:
    assert run(installed, tmp_path, ["explain", "SL0113"]).stdout.startswith("# SL0113")
    assert run(installed, tmp_path, ["fmt", "-"], "let d=4").stdout == "let d = 4\n"


def test_the_wheel_has_the_files_that_are_no_modules(installed: Path) -> None:
    package = installed / "shardlang"
    assert (package / "grammar" / "shardlang.lark").read_bytes() == (ROOT / "grammar" / "shardlang.lark").read_bytes()
    for path in (ROOT / "shardlang").rglob("*"):
        if path.suffix in (".md", ".shard", ".typed"):
            assert (package / path.relative_to(ROOT / "shardlang")).exists(), path
