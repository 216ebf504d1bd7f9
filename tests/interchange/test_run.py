"""An imported plan is no mere text: a model trains under it, and no value differs from one device."""

import json
from pathlib import Path

from shardlang.interchange.tp_plan import import_hf
from shardlang.source import Source
from tests.interchange import tiny
from tests.run.commands import run


def test_a_model_trains_under_an_imported_plan_as_on_one_device(tmp_path: Path) -> None:
    shapes = {name: list(p.shape) for name, p in tiny.build().named_parameters()}
    said = {"tp_plan": tiny.PLAN, "mesh": {"tp": 2}, "parameters": shapes}
    imported = import_hf(Source("plan.json", json.dumps(said)))
    assert imported.diagnostics == ()
    file = tmp_path / "tiny.shard"
    file.write_text(imported.text)
    options = ("--model", "tests.interchange.tiny:build", "--nproc", "2", "--steps", "2")
    code, out, err = run(str(file), *options, out=tmp_path / "out")
    assert code == 0, out + err
