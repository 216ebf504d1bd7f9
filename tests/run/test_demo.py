"""The demo, on its own mesh and on the others that its file names: twenty steps as on one device."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.run.commands import ROOT, run

DEMO = ROOT / "examples/llama/llama.shard"
MESHES = {"dp:2 * tp:2": 4, "dp:4 * tp:1": 4, "dp:1 * tp:4": 4, "dp:1 * tp:2": 2, "dp:1 * tp:1": 1}


def test_the_demo_learns_in_its_first_step(tmp_path: Path) -> None:
    code, out, err = run(str(DEMO), "--steps", "2", "--fall", "0.1", "--format", "json", out=tmp_path)
    assert code == 0, err
    assert "Warning" not in err
    result = json.loads(out)
    assert result["loss_fall"] >= 0.1
    assert result["collectives_planned"] == result["collectives_run"]
    measured = max(result["memory_measured_bytes"])
    assert abs(result["memory_predicted_bytes"] / measured - 1) < 0.15


@pytest.mark.nightly
@pytest.mark.parametrize("mesh", MESHES)
def test_the_demo_trains_as_one_device_does_and_learns(mesh: str, tmp_path: Path) -> None:
    text = DEMO.read_text()
    assert "mesh pod = dp:2 * tp:2\n" in text
    (tmp_path / "llama.shard").write_text(text.replace("mesh pod = dp:2 * tp:2\n", f"mesh pod = {mesh}\n"))
    code, out, err = run(str(tmp_path / "llama.shard"), "--nproc", str(MESHES[mesh]), "--format", "json", out=tmp_path)
    assert code == 0, err
    result = json.loads(out)
    assert result["mesh"] == mesh
    assert len(result["losses"]) == 20
    assert result["loss_max_relative_difference"] <= 1e-5
    assert result["grad_norm_max_relative_difference"] <= 1e-4
    assert result["losses"][-1] < 0.9 * result["losses"][0]
    assert result["collectives_planned"] == result["collectives_run"]
