"""``shardlang run``: a model from a file to a verified training on ranks, beside its plan."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.run.commands import ROOT, run

pytestmark = pytest.mark.timeout(400)
TINY = "tests/run/tiny.shard"


def on_mesh(axes: str, path: Path) -> str:
    """The tiny model's file with another mesh line."""
    text = (ROOT / TINY).read_text().replace("dp:2 * tp:2", axes)
    (path / "tiny.shard").write_text(text)
    return str(path / "tiny.shard")


def test_ranks_train_as_one_device_does_and_send_what_was_planned(tmp_path: Path) -> None:
    arguments = ("--nproc", "4", "--steps", "4", "--fall", "0.0001", "--format", "json")
    code, out, err = run(TINY, *arguments, out=tmp_path)
    assert code == 0, err
    result = json.loads(out)
    assert result["loss_max_relative_difference"] <= 1e-5
    assert result["grad_norm_max_relative_difference"] <= 1e-5
    assert len(result["losses"]) == len(result["losses_one_device"]) == len(result["grad_norms"]) == 4
    assert result["collectives_planned"] == result["collectives_run"]
    kinds = {(c["kind"], tuple(c["axes"])) for c in result["collectives_run"]}
    assert {("all_gather", ("dp",)), ("reduce_scatter", ("dp",)), ("reduce_scatter", ("tp",))} <= kinds
    assert all(set(c) == {"kind", "axes", "count", "bytes"} for c in result["collectives_run"])
    assert len(result["memory_measured_bytes"]) == 4
    assert 0 < max(result["memory_measured_bytes"]) < result["memory_one_device_bytes"]
    assert result["seconds_per_step"] > 0
    assert json.loads((tmp_path / "tiny" / "run.json").read_text()) == result
    assert "the ranks" in err


def test_a_loss_that_has_to_fall_fails_the_run_where_it_does_not(tmp_path: Path) -> None:
    file = on_mesh("dp:1 * tp:1", tmp_path)
    code, out, err = run(file, "--nproc", "1", "--steps", "3", "--fall", "0.99", out=tmp_path / "out")
    assert code == 1
    assert "error[SL0740]: the loss falls by" in err
    assert "loss falls by" in out  # the figures are shown all the same


def test_a_step_taken_out_of_the_plan_shows(tmp_path: Path) -> None:
    """One process plans, others run; what ran does not come from the plan."""
    taken = "reduce_scatter"
    file = on_mesh("dp:1 * tp:2", tmp_path)
    whole = _artefact(file, tmp_path)
    planned = whole["steps"]["tiny"]["collectives"]
    entry = next(c for c in planned if c["kind"] == taken and c["axes"] == ["tp"])
    each = entry["bytes"] // entry["count"]
    entry["count"], entry["bytes"] = entry["count"] - 1, entry["bytes"] - each
    (tmp_path / "less.json").write_text(json.dumps(whole))
    arguments = (str(tmp_path / "less.json"), "--nproc", "2", "--steps", "2", "--format", "json")
    code, out, err = run(*arguments, out=tmp_path / "out")
    result = json.loads(out)
    assert code == 0
    assert result["collectives_planned"] == planned
    assert result["collectives_run"] != planned
    assert "SL0737" in err
    assert f"{taken} over tp" in err


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
