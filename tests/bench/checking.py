"""How long checking takes: the largest files and models that it is made for, and what a command answers in."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.check.test_scale import LLAMA_405B, MANY, llama_405b


def least(command: list[str], folder: str, times: int = 5) -> float:
    """The least wall-clock seconds of several runs."""
    seconds: list[float] = []
    for _ in range(times):
        start = time.perf_counter()
        subprocess.run(command, cwd=folder, capture_output=True, check=True)
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def rows() -> Iterator[tuple[str, str, str]]:
    """Figures and what they are to stay under."""
    done = subprocess.run([sys.executable, "-c", MANY], capture_output=True, text=True, check=True)
    seconds, mebibytes = map(float, done.stdout.split())
    yield "5,000 patterns against 20,000 parameters, CPU seconds", f"{seconds:.2f} s", "2 s"
    yield "its memory", f"{mebibytes:.0f} MiB", "300 MiB"
    with tempfile.TemporaryDirectory() as folder:
        shard = [sys.executable, "-m", "shardlang"]
        (Path(folder) / "m.shard").write_text(LLAMA_405B)
        write_checkpoint(Path(folder))
        check = [*shard, "check", "m.shard", "--nproc", "16384", "--checkpoint", "model.safetensors.index.json"]
        yield "check of a 405 B Llama on 16,384 ranks from an index", f"{least(check, folder):.2f} s", "1 s"
        yield "check --no-model", f"{least([*shard, 'check', '--no-model', 'm.shard'], folder):.2f} s", "0.4 s"
        plan = [*shard, "plan", "f32[8192/a/b 8192] => [8192 8192/a/b]", "--mesh", "a:2 * b:4"]
        yield "plan", f"{least(plan, folder):.2f} s", "0.4 s"
        yield "--help", f"{least([*shard, '--help'], folder):.2f} s", "0.4 s"


def write_checkpoint(folder: Path) -> None:
    """The headers of a checkpoint of 191 files, without the weights."""
    files: dict[str, dict[str, object]] = {}
    where: dict[str, str] = {}
    for i, (name, tensor) in enumerate(llama_405b().parameters.items()):
        file = f"model-{i % 191:05d}.safetensors"
        entry = {"dtype": tensor.dtype.upper(), "shape": list(tensor.shape), "data_offsets": [0, 0]}
        files.setdefault(file, {})[name] = entry
        where[name] = file
    for file, entries in files.items():
        header = json.dumps(entries).encode()
        (folder / file).write_bytes(len(header).to_bytes(8, "little") + header)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
