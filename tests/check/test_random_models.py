"""Whatever a file declares of whatever model: a program with layouts, or diagnostics; never anything else."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from shardlang.check import check
from shardlang.check.budget import budget_faults
from shardlang.check.facts import Facts, Tensor, modules_of
from shardlang.check.model import check_model
from shardlang.diagnostics import ShardlangError
from shardlang.diagnostics.render import render
from shardlang.report.difference import differences
from shardlang.report.lock import lock_text, make_lock, read_lock
from shardlang.source import Source
from shardlang.syntax.parse import parse

AXES = ("dp", "tp", "t0", "t1", "ep")
SIZES = ("d", "f", "n", "k", "_", "_", "_", "2*d", "g", "4", "d*f")
PATHS = ("layers.*.w", "layers.*.up", "layers.[0..1].w", "head", "**.up", "layers.**", "head.w")
OPTIONS = ("", "reshard no", "reshard 2", "prefetch 2", "offload yes", "param bf16, reduce f32")
HEAD = """link ib = 1 GB/s, 1 us
mesh m = ep:2@ib * dp:2 * tp:4
split m.tp = t0:2 * t1:2
let k = 2
"""


def a_dim(random: Random) -> str:
    def factor() -> str:
        return random.choice(SIZES) + (f"/{random.choice(AXES)}" if random.random() < 0.2 else "")

    if random.random() < 0.2:
        inner = " ".join(factor() for _ in range(random.randint(1, 3)))
        return f"({inner})" + (f"/~{random.choice(AXES)}" if random.random() < 0.2 else "")
    return random.choice(SIZES) + random.choice(
        ["", "", "", "/.", f"/{random.choice(AXES)}", f"/~{random.choice(AXES)}"]
    )


def a_spec(random: Random) -> str:
    if random.random() < 0.1:
        return "whole"
    dims = [a_dim(random) for _ in range(random.choice([0, 1, 2, 2, 2, 3]))]
    dims = ["...", *dims] if random.random() < 0.15 else dims
    pending = f"{{+{random.choice(AXES)}}}" if random.random() < 0.05 else ""
    return random.choice(["", "", "f32"]) + f"[{' '.join(dims)}]{pending}"


def a_file(random: Random) -> str:
    lines = [f"param {path} : {a_spec(random)}" for path in random.sample(PATHS, random.randint(0, 2))]
    lines += ["param otherwise : whole"] * (random.random() < 0.9)
    for path in random.sample(["root", "layers.*", "head"], random.randint(0, 2)):
        over = random.choice(["dp", "dp", "tp", "ep/dp", "t0"])
        lines.append(f"fsdp {path} over {over} {random.choice(['', 'replicate ep'])} {{ {random.choice(OPTIONS)} }}")
    lines += [f"call layers.* (x: {a_spec(random)}) -> {a_spec(random)}"] * (random.random() < 0.3)
    lines += [f"freeze {random.choice(PATHS)}"] * (random.random() < 0.2)
    rules = random.choice(["", "", "rules on m {\n d -> dp else whole\n}\n"])
    budget = "budget x { memory <= 1 KiB; forbid all_gather on ib }"
    return "\n".join([HEAD + rules + "model x on m {", *lines, "}", budget]) + "\n"


def some_facts(random: Random) -> Facts:
    shapes = {
        w: tuple(random.choices([0, 1, 2, 3, 4, 8, 8, 12, 16], k=random.choice([0, 1, 2, 2, 2, 3])))
        for w in ("w", "up")
    }
    layers = range(random.randint(0, 3))
    parameters = {f"layers.{i}.{w}": Tensor(shape, "f32") for i in layers for w, shape in shapes.items()}
    parameters["head"] = Tensor((8, 4), random.choice(["f32", "u8", "float4_e2m1fn_x2"]))
    tied: tuple[tuple[str, ...], ...] = ()
    if len(parameters) > 1 and random.random() < 0.2:
        parameters["head"] = parameters["layers.0.w"]
        tied = (("layers.0.w", "head"),)
    return Facts(parameters, modules_of(parameters), tied)


@settings(max_examples=400)
@given(st.integers(0, 2**64))
def test_a_model_has_layouts_or_diagnostics(seed: int) -> None:
    random = Random(seed)
    text, facts = a_file(random), some_facts(random)
    try:
        program = check(parse(Source("random.shard", text)), nproc=random.choice([None, 16]))
        layouts = check_model(program.models["x"], facts)
    except ShardlangError as error:
        for diagnostic in error.diagnostics:
            render(diagnostic)
        return
    assert all(p.layout.shape == p.shape for p in layouts.parameters.values())
    assert all(d.code in ("SL0651", "SL0652") for d in budget_faults(program.budgets[0], layouts))
    lock = make_lock(program, {"x": layouts}, {}, {}, {})
    assert read_lock("x.lock", lock_text(lock).encode()) == lock
    assert differences(lock, lock) == []
