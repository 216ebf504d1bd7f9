"""Runs the suite on any implementation: commands that read a source on standard input (the suite's README)."""

import argparse
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.conformance.cases import Answer, Case, load, write_tensors

TIMEOUT = {"run": 600}
"""Seconds that a command may take, where it is more than 120."""


def run(case: Case, command: str) -> str | None:
    """What is wrong with a command's answers to a case."""
    try:
        return case.judge([_answer(case, command, source) for source in case.sources])
    except subprocess.TimeoutExpired as late:
        return f"no answer in {late.timeout:.0f} s"
    except (ValueError, KeyError, TypeError, IndexError) as fault:
        return f"an answer of another form: {fault!r}"


def _answer(case: Case, command: str, source: bytes) -> Answer:
    words = [*shlex.split(command.replace("{}", case.notation)), *case.options]
    with tempfile.TemporaryDirectory() as folder:
        if case.tensors is not None:
            path = Path(folder) / "model.safetensors"
            write_tensors(path, case.tensors)
            words.append(str(path))
        for name, text in case.files.items():
            (Path(folder) / name).write_text(text, encoding="utf-8")
        where = folder if case.files or case.kind == "run" else None
        done = subprocess.run(words, input=source, capture_output=True, timeout=TIMEOUT.get(case.kind, 120), cwd=where)
    return done.returncode, done.stdout.decode()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance")
    parser.add_argument("check", help="the command that prints a list of diagnostics")
    parser.add_argument("--typing", help="the command that checks a text against a checkpoint, whose path is added")
    parser.add_argument("--model", help="the command that checks a text whose model is built by a Python file")
    parser.add_argument("--blocks", help="the command that prints the blocks of layouts")
    parser.add_argument("--plan", help="the command that prints plans")
    parser.add_argument("--verify", help="the command that holds functions and transitions to one device")
    parser.add_argument("--import", help="the command that reads another notation, whose name stands for {}")
    parser.add_argument("--run", help="the command that runs a text on ranks, beside one device")
    parser.add_argument("-k", default="", help="only cases whose name has this in it")
    parser.add_argument("--sample", type=int, default=1, metavar="N", help="only every N-th case of each command")
    commands = vars(parser.parse_args())
    failed = passed = left = 0
    seen: dict[str, int] = {}
    for case in load():
        command: str | None = commands[case.kind]
        seen[case.kind] = seen.get(case.kind, -1) + 1
        if command is None or commands["k"] not in case.name or seen[case.kind] % commands["sample"]:
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
