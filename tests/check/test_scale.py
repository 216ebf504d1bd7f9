"""The largest models and meshes are checked, in bounded memory. How long it takes is in the bench."""

from __future__ import annotations

import subprocess
import sys

from shardlang.check.facts import Facts, Tensor, modules_of
from shardlang.check.model import check_model
from tests.check.marked import program

LLAMA_405B = """
link nvlink = 450 GB/s, 3 us
link ib     = 50 GB/s, 12 us
mesh pod = dp:?@ib * fsdp:64@ib * tp:8@nvlink
let kv = 8, g = 16, k = 128
model llama on pod {
  param tok_embeddings.weight             : [vocab/tp d]
  param layers.*.attention.wq.weight      : [(kv/tp g k) d]
  param layers.*.attention.{wk,wv}.weight : [(kv/tp k) d]
  param layers.*.attention.wo.weight      : [d (kv/tp g k)]
  param layers.*.feed_forward.{w1,w3}.weight : [f/tp d]
  param layers.*.feed_forward.w2.weight   : [d f/tp]
  param output.weight                     : [vocab/tp d]
  param otherwise                         : whole
  fsdp layers.* over fsdp replicate dp
  fsdp root over fsdp replicate dp { reshard no }
}
"""


def llama_405b() -> Facts:
    d, f, kv, g, k, vocab = 16384, 53248, 8, 16, 128, 128256
    shapes: dict[str, tuple[int, ...]] = {"tok_embeddings.weight": (vocab, d)}
    for i in range(126):
        shapes |= {
            f"layers.{i}.attention.wq.weight": (kv * g * k, d),
            f"layers.{i}.attention.wk.weight": (kv * k, d),
            f"layers.{i}.attention.wv.weight": (kv * k, d),
            f"layers.{i}.attention.wo.weight": (d, kv * g * k),
            f"layers.{i}.feed_forward.w1.weight": (f, d),
            f"layers.{i}.feed_forward.w2.weight": (d, f),
            f"layers.{i}.feed_forward.w3.weight": (f, d),
            f"layers.{i}.attention_norm.weight": (d,),
            f"layers.{i}.ffn_norm.weight": (d,),
        }
    shapes |= {"norm.weight": (d,), "output.weight": (vocab, d)}
    parameters = {name: Tensor(shape, "bf16") for name, shape in shapes.items()}
    return Facts(parameters, modules_of(parameters))


def test_a_llama_of_405_billion_on_16384_ranks_is_checked() -> None:
    given = llama_405b()
    found = check_model(program(LLAMA_405B, nproc=16384).models["llama"], given)
    assert sum(p.layout.numel for p in found.parameters.values()) > 405 * 10**9
    assert found.mesh.size == 16384


MANY = """
import time
from shardlang.check import check
from shardlang.check.facts import Facts, Tensor, modules_of
from shardlang.check.model import check_model
from shardlang.source import Source
from shardlang.syntax.parse import parse

names = [f"layers.{i}.block{j}.weight" for i in range(4) for j in range(5000)]
parameters = {n: Tensor((64, 8 * (1 + i % 5000)), "f32") for i, n in enumerate(names)}
given = Facts(parameters, modules_of(parameters))
lines = [f"  param layers.*.block{j}.weight : [d n{j}/tp]" for j in range(5000)]
text = "\\n".join(["mesh m = tp:8", "model x on m {", *lines, "}"])
start = time.process_time()
found = check_model(check(parse(Source("many.shard", text))).models["x"], given)
seconds = time.process_time() - start
assert len(found.parameters) == 20000
# The peak of this program alone: that of getrusage has in it what the process was before it became Python.
peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(seconds, int(peak) / 1024)
"""


def test_5000_patterns_against_20000_parameters() -> None:
    done = subprocess.run([sys.executable, "-c", MANY], capture_output=True, text=True, timeout=100, check=True)
    _, mebibytes = map(float, done.stdout.split())
    assert mebibytes < 300
