"""How long checking takes: the largest files and models that it is made for, and what a command answers in."""

from __future__ import annotations

import json
import resource
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


def processor_time(command: list[str], folder: str, times: int = 3) -> float:
    """The least processor seconds of several runs: what another's load does not change much."""
    seconds: list[float] = []
    for _ in range(times):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, cwd=folder, capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(seconds)


BUILD = """
import torch
with torch.device("meta"):
    import big
    big.build()
"""
BIG = """
import sys
sys.path.insert(0, {root!r})
from examples.llama.model import Llama


def build():
    return Llama(vocab=128256, dim=16384, hidden=53248, layers=126, heads=128, kv_heads=8, length=8)
"""


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
        yield "its processor time", f"{processor_time(check, folder):.2f} s", "1 s"
        (Path(folder) / "big.py").write_text(BIG.format(root=str(Path(__file__).parents[2])))
        built = processor_time([sys.executable, "-c", BUILD], folder)
        checked = processor_time([*shard, "check", "m.shard", "--nproc", "16384", "--model", "big:build"], folder)
        yield "processor time of importing torch and building it on meta", f"{built:.2f} s", "-"
        yield "of checking the model so built, beyond that", f"{checked - built:.2f} s", "1.2 s"
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
