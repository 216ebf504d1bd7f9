"""A step is planned of models that look at values while they are built, as torch's truncated normals do."""

from __future__ import annotations

from torch import nn

from shardlang.check.model import check_model
from shardlang.compilation import Compilation
from shardlang.lower.facts import facts_of
from shardlang.runtime.step_plan import plan_step
from shardlang.source import Source
from tests.models.nets import DIM, squares, vectors

TEXT = """
mesh m = dp:2
model p on m {
  param otherwise : whole
  call root (input: [n/dp d]) -> [n/dp d]
}
"""


def truncated() -> nn.Module:
    made = nn.Linear(DIM, DIM, bias=False)
    nn.init.trunc_normal_(made.weight, std=0.02)
    return nn.Sequential(made)


def test_a_step_is_planned_of_a_model_with_truncated_normals() -> None:
    session = Compilation(Source("m.shard", TEXT), look_at_models=False)
    layouts = check_model(session.program.models["p"], facts_of(truncated()))
    plan = plan_step(layouts, truncated, vectors, squares)
    gradient = DIM * DIM * 4
    assert any(t.kind == "all_reduce" and t.bytes >= gradient for t in plan.collectives)
