"""Lines and tokens of what says how a Llama is split: a ``.shard`` file beside torchtitan's Python.

    python -m tests.bench.declaration_size [--torchtitan FOLDER]

FOLDER is an unpacked torchtitan (``pip download --no-deps torchtitan``, unzipped); without it only ours is counted. The
same count for both: comments, docstrings and empty lines are left out; a token is a word, a number or a sign. Of
torchtitan the files of Llama itself, and those of its own that they share with other decoders; neither its engine
(``protocols``, ``ParallelDims``) nor ours is counted.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
from collections.abc import Iterator
from pathlib import Path

from tests.spec.notation import count

ROOT = Path(__file__).parents[2]
OURS = ("examples/llama/llama.shard",)
LLAMA = ("models/llama3/sharding.py", "models/llama3/parallelize.py")
SHARED = ("models/common/decoder_sharding.py", "distributed/fsdp.py", "distributed/full_dtensor.py")
NOT_OF_A_DECODER = ("apply_fsdp_to_vision_encoder", "resolve_sparse_fsdp_mesh", "_get_sparse_dp_mesh_axes")
"""Functions of the shared files that a dense decoder has no use for."""


def python_code(text: str) -> str:
    """A Python text without docstrings, and without functions that do not count."""
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef) and node.name in NOT_OF_A_DECODER:
            _blank(lines, node)
        elif isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef):
            first = node.body[0] if node.body else None
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                _blank(lines, first)
    return "\n".join(lines)


def _blank(lines: list[str], node: ast.stmt) -> None:
    assert node.end_lineno is not None
    lines[node.lineno - 1 : node.end_lineno] = [""] * (node.end_lineno - node.lineno + 1)


def size(root: Path, names: tuple[str, ...]) -> tuple[int, int]:
    """Lines and tokens of some files together."""
    texts = [(root / name).read_text(encoding="utf-8") for name in names]
    counts = [count(python_code(t) if n.endswith(".py") else t) for n, t in zip(names, texts, strict=True)]
    return sum(c[0] for c in counts), sum(c[1] for c in counts)


def lines(torchtitan: Path | None) -> Iterator[tuple[str, int, int]]:
    yield "llama.shard, all of it", *size(ROOT, OURS)
    if torchtitan is not None:
        yield "torchtitan, Llama's own files", *size(torchtitan, LLAMA)
        yield "torchtitan, with what decoders share", *size(torchtitan, LLAMA + SHARED)


def _installed() -> Path | None:
    found = importlib.util.find_spec("torchtitan")
    return Path(found.origin).parent if found is not None and found.origin else None


def rows() -> list[tuple[str, str, str]]:
    """Lines of ``make bench``; torchtitan's where it is installed."""
    return [(f"{what}: lines / tokens", f"{n} / {tokens}", "") for what, n, tokens in lines(_installed())]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--torchtitan", type=Path)
    given = parser.parse_args()
    for what, n, tokens in lines(given.torchtitan or _installed()):
        print(f"{what:<40} {n:5} lines {tokens:6} tokens")


if __name__ == "__main__":
    main()
