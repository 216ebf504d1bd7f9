"""``shardlang run``: a model from a file to a verified training on ranks, beside its plan."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.run.commands import run

pytestmark = pytest.mark.timeout(400)
TINY = "tests/run/tiny.shard"


def test_ranks_train_as_one_device_does_and_what_they_send_is_held_against_the_plan(tmp_path: Path) -> None:
    """One process plans, others run; what ran does not come from the plan, so a step taken out of it shows."""
    taken = "reduce_scatter"
    whole = _artefact(TINY, tmp_path)
    planned = whole["steps"]["tiny"]["collectives"]
    before = [dict(c) for c in planned]
    entry = next(c for c in planned if c["kind"] == taken and c["axes"] == ["tp"])
    each = entry["bytes"] // entry["count"]
    entry["count"], entry["bytes"] = entry["count"] - 1, entry["bytes"] - each
    (tmp_path / "less.json").write_text(json.dumps(whole))
    arguments = ("--nproc", "4", "--steps", "4", "--format", "json")
    code, out, err = run(str(tmp_path / "less.json"), *arguments, out=tmp_path)
    assert code == 0, err
    result = json.loads(out)
    assert result["collectives_planned"] == planned
    assert result["collectives_run"] == before
    assert "SL0737" in err
    assert f"{taken} over tp" in err
    assert result["loss_max_relative_difference"] <= 1e-5
    assert result["grad_norm_max_relative_difference"] <= 1e-5
    assert len(result["losses"]) == len(result["losses_one_device"]) == len(result["grad_norms"]) == 4
    kinds = {(c["kind"], tuple(c["axes"])) for c in result["collectives_run"]}
    assert {("all_gather", ("dp",)), ("reduce_scatter", ("dp",)), ("reduce_scatter", ("tp",))} <= kinds
    assert all(set(c) == {"kind", "axes", "count", "bytes"} for c in result["collectives_run"])
    assert len(result["memory_measured_bytes"]) == 4
    assert 0 < max(result["memory_measured_bytes"]) < result["memory_one_device_bytes"]
    assert result["seconds_per_step"] > 0
    assert json.loads((tmp_path / "tiny" / "run.json").read_text()) == result
    assert "the ranks" in err


def _artefact(file: str, path: Path) -> dict:
    from click.testing import CliRunner

    from shardlang.cli import main

    target = path / "plan.json"
    outcome = CliRunner().invoke(main, ["compile", file, "-o", str(target)])
    assert outcome.exit_code == 0, outcome.output
    return json.loads(target.read_text())


RESHARDS = """\
mesh m = a:2 * b:2

reshard gather on m: f32[8/a/b 6] => [8 6]
reshard turn on m: f32[8/a/b 8] => [8 8/a/b]
reshard cut on m: bf16[8 6] => [8/b 6/a]
reshard sum on m: f32[8 6]{+a, +b} => [8 6]
reshard scatter on m: f64[8 6]{+b} => [8/b 6]
reshard uneven on m: i64[7/~a 5/~b] => [7/~b 5/~a]
"""


def test_a_file_of_reshards_is_carried_out_and_held_against_the_global_tensor(tmp_path: Path) -> None:
    (tmp_path / "moves.shard").write_text(RESHARDS)
    code, out, err = run(str(tmp_path / "moves.shard"), "--nproc", "4", "--format", "json", out=tmp_path / "out")
    assert code == 0, err
    result = json.loads(out)["reshards"]
    assert {name: one["equal"] for name, one in result.items()} == dict.fromkeys(
        ("gather", "turn", "cut", "sum", "scatter", "uneven"), True
    )
    for one in result.values():
        assert one["collectives_planned"] == one["collectives_run"]
    kinds = {name: [c["kind"] for c in one["collectives_run"]] for name, one in result.items()}
    assert kinds["cut"] == []
    assert kinds["gather"] == ["all_gather"]
    assert kinds["sum"] == ["all_reduce"]
    assert kinds["scatter"] == ["reduce_scatter"]
