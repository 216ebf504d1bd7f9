"""Every transition of the family that other tools are counted on, on four ranks of gloo: right, refused, or wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import torch

from shardlang.diagnostics import ShardlangError
from shardlang.plan.search import plan_transition
from shardlang.runtime import simulate
from tests.runtime.test_laws import cases, counted, ends, run_cases, run_gradients
from tests.runtime.transitions import same, value_of
from tests.world import World


def rows() -> Iterator[tuple[str, str, str]]:
    chosen = [c for c in cases() if counted(c)]
    told: Counter[str] = Counter()
    differentiable = []
    with World(4) as world:
        ran = world.run(run_cases, chosen, timeout=3600)
        for i, case in enumerate(chosen):
            source, target = ends(case)
            value = value_of(source.shape)
            try:
                plan = plan_transition(source, target)
            except ShardlangError as error:
                told["refused" if {r[i] for r in ran} == set(error.codes) else "wrong"] += 1
                continue
            blocks = dict(enumerate(r[i] for r in ran))
            held = all(isinstance(b, torch.Tensor) for b in blocks.values())
            expected = simulate.run_plan(plan, simulate.shard(value, source, seed=1))
            right = held and all(same(blocks[r], b) for r, b in expected.items())
            told["right" if right and same(simulate.assemble(blocks, target), value) else "wrong"] += 1
            differentiable.append(case)
        wrong = world.run(run_gradients, differentiable, timeout=3600)[0]
    figures = f"{told['right']:,} / {told['refused']:,} / {told['wrong']:,}"
    yield f"{len(chosen):,} transitions: right / refused with a code / wrong", figures, "7,052 / 1,960 / 0"
    yield f"gradients of the {len(differentiable):,} that have one: wrong", f"{len(wrong):,}", "0"
