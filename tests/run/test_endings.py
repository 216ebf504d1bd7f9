"""How a run ends that does not end well: with the failed rank's own words, soon, and with no process left."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from shardlang.cli import main
from tests.run.commands import ROOT, alive, finish, run, start, wait_until

pytestmark = pytest.mark.timeout(400)
TINY = "tests/run/tiny.shard"


def two_ranks(path: Path) -> str:
    text = (ROOT / TINY).read_text().replace("dp:2 * tp:2", "dp:1 * tp:2")
    (path / "tiny.shard").write_text(text)
    return str(path / "tiny.shard")


def since_the_second_step(path: Path) -> float:
    """Seconds since the ranks reported their second step: no less than since the third went wrong."""
    return time.time() - (path / "tiny" / "ranks.progress").stat().st_mtime


def test_a_rank_that_raises_ends_the_run_with_its_own_error(tmp_path: Path) -> None:
    arguments = (two_ranks(tmp_path), "--nproc", "2", "--steps", "4")
    code, _, err = run(*arguments, out=tmp_path, TINY_FAULT="raise")
    assert since_the_second_step(tmp_path) < 30
    assert code == 1
    assert "ValueError: the third batch is spoilt" in err
    assert "tests/run/tiny.py" in err
    assert "error[SL0732]: rank 1 raised ValueError: the third batch is spoilt" in err
    assert not alive(tmp_path)


def test_a_rank_that_dies_is_named_with_the_signal(tmp_path: Path) -> None:
    process = start(two_ranks(tmp_path), "--nproc", "2", "--steps", "4", out=tmp_path, TINY_FAULT="die")
    code, _, err = finish(process)
    assert since_the_second_step(tmp_path) < 30
    assert code == 1
    assert "error[SL0732]: rank 1 was killed by SIGKILL" in err
    assert not alive(tmp_path)


def test_ctrl_c_ends_a_run_within_five_seconds(tmp_path: Path) -> None:
    process = start(two_ranks(tmp_path), "--nproc", "2", "--steps", "4", out=tmp_path, TINY_FAULT="hang")
    assert wait_until(lambda: (tmp_path / "tiny" / "ranks.progress").exists(), 90)
    assert len(alive(tmp_path)) == 3
    process.send_signal(signal.SIGINT)
    begun = time.monotonic()
    code, _, err = finish(process, 30)
    assert time.monotonic() - begun < 5
    assert code == 130
    assert "error[SL0733]: the run was ended by SIGINT" in err
    assert not alive(tmp_path)


def refused(path: Path, *arguments: str) -> str:
    """Standard error of a run that must be refused before any process starts."""
    outcome = CliRunner().invoke(main, ["run", *arguments, "--out", str(path)])
    assert outcome.exit_code == 1, outcome.output
    assert not list(path.rglob("task.json")), "a process was about to start"
    assert "Traceback" not in outcome.output
    return outcome.output


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (None, "SL0221"),
        ("mesh = 2\n", "SL01"),
        ('{"shardlang": 99}', "SL0222"),
        ("mesh m = a:2\nmodel t from no.such:build on m { param otherwise : whole }\n", "SL0612"),
        ("mesh m = a:2\nreshard r on m: f32[8/a 8/a] => [8 8]\n", "SL0203"),
        ("mesh m = a:2\nreshard r on m: f32[7/a 8] => [7 8]\n", "SL0302"),
    ],
)
def test_what_check_refuses_run_refuses(text: str | None, code: str, tmp_path: Path) -> None:
    file = tmp_path / "given.shard"
    if text is not None:
        file.write_text(text)
    assert f"error[{code}" in refused(tmp_path / "out", str(file), "--nproc", "2")


def test_a_launch_of_another_size_than_the_mesh_is_refused(tmp_path: Path) -> None:
    said = refused(tmp_path / "out", str(ROOT / TINY), "--nproc", "3")
    assert "mesh `pod` (dp:2 * tp:2) has 4 ranks, but the launch has 3" in said


def test_a_mesh_on_other_ranks_than_a_launch_has_is_refused(tmp_path: Path) -> None:
    (tmp_path / "far.shard").write_text("mesh m = a:2 ranks 2..3\nreshard r on m: f32[4/a] => [4]\n")
    said = refused(tmp_path / "out", str(tmp_path / "far.shard"))
    assert "error[SL0730]: mesh `m` is on ranks 2..3, and a run has ranks 0..1" in said


def test_a_device_that_is_not_there_is_refused(tmp_path: Path) -> None:
    import torch

    ranks = "4096"
    text = (ROOT / TINY).read_text().replace("dp:2 * tp:2", "dp:2048 * tp:2")
    if not torch.cuda.is_available():
        ranks, text = "4", (ROOT / TINY).read_text()
    (tmp_path / "tiny.shard").write_text(text)
    said = refused(tmp_path / "out", str(tmp_path / "tiny.shard"), "--nproc", ranks, "--device", "cuda")
    assert "SL0731" in said


def test_a_file_with_nothing_to_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.shard").write_text("mesh m = a:2\n")
    assert "SL0735" in refused(tmp_path / "out", str(tmp_path / "empty.shard"), "--nproc", "2")


def test_several_models_need_a_name(tmp_path: Path) -> None:
    text = (ROOT / TINY).read_text()
    (tmp_path / "two.shard").write_text(text + text[text.index("model tiny") :].replace("model tiny", "model other"))
    assert "SL0636" in refused(tmp_path / "out", str(tmp_path / "two.shard"), "--nproc", "4")


def test_open_sizes_of_reshards_are_refused(tmp_path: Path) -> None:
    (tmp_path / "open.shard").write_text("mesh m = a:2\nreshard r on m: f32[n/a 4] => [n 4/a]\n")
    assert "SL0738" in refused(tmp_path / "out", str(tmp_path / "open.shard"), "--nproc", "2")


@pytest.mark.parametrize("missing", ["batch", "loss"])
def test_a_module_without_batch_or_loss_is_refused(
    missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.run import tiny

    monkeypatch.delattr(tiny, missing)
    said = refused(tmp_path / "out", str(ROOT / TINY), "--nproc", "4")
    assert "SL0637" in said
    assert f"`{missing}`" in said


def test_a_step_that_needs_values_cannot_be_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.run import tiny

    def loss(model, batch):
        total = model(batch["tokens"]).sum()
        return total, int(batch["targets"].max())

    monkeypatch.setattr(tiny, "loss", loss)
    assert "SL0736" in refused(tmp_path / "out", str(ROOT / TINY), "--nproc", "4")


def test_an_open_axis_needs_the_number_of_ranks(tmp_path: Path) -> None:
    text = (ROOT / TINY).read_text().replace("dp:2 * tp:2", "dp:? * tp:2")
    (tmp_path / "open.shard").write_text(text)
    outcome = CliRunner().invoke(main, ["run", str(tmp_path / "open.shard"), "--out", str(tmp_path / "out")])
    assert outcome.exit_code == 2
    assert "--nproc" in outcome.output
