"""Runs the suite on any implementation: commands that read a source on standard input (the suite's README)."""

import argparse
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.conformance.cases import Case, load, write_tensors


def run(case: Case, command: str) -> str | None:
    """What is wrong with a command's answer to a case."""
    words = shlex.split(command)
    if case.nproc is not None:
        words += ["--nproc", str(case.nproc)]
    with tempfile.TemporaryDirectory() as folder:
        if case.tensors is not None:
            path = Path(folder) / "model.safetensors"
            write_tensors(path, case.tensors)
            words.append(str(path))
        done = subprocess.run(words, input=case.source, capture_output=True, timeout=60)
    try:
        return case.judge(done.returncode, done.stdout.decode())
    except (ValueError, KeyError, TypeError, IndexError) as fault:
        return f"an answer of another form: {fault!r}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance")
    parser.add_argument("check", help="the command that prints a list of diagnostics")
    parser.add_argument("--typing", help="the command that checks a text against a checkpoint, whose path is added")
    parser.add_argument("--blocks", help="the command that prints the blocks of layouts")
    parser.add_argument("--plan", help="the command that prints plans")
    parser.add_argument("-k", default="", help="only cases whose name has this in it")
    commands = parser.parse_args()
    failed = passed = left = 0
    for case in load():
        command: str | None = getattr(commands, case.kind)
        if command is None or commands.k not in case.name:
            left += 1
            continue
        wrong = run(case, command)
        if wrong is None:
            passed += 1
        else:
            failed += 1
            print(f"{case.name}: {wrong}")
    print(f"{passed} passed, {failed} failed, {left} left out")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
