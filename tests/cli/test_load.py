"""Files from Python: ``sl.load`` and what a loaded program gives by name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import shardlang as sl
from shardlang.api import LoadedProgram

TEXT = """mesh pod = dp:? * tp:2
mesh serve = tp:2 ranks 0..1
let d = 8
fn f on pod (x: [b/dp d]) -> [b/dp d]
model one on pod {
  param otherwise : whole
}
model two on serve {
  param otherwise : whole
}
"""


def code(program: LoadedProgram, method: str, name: str | None) -> str:
    with pytest.raises(sl.ShardlangError) as caught:
        getattr(program, method)(name)
    (only,) = caught.value.codes
    return only


def test_a_file_is_loaded_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "m.shard"
    path.write_text(TEXT)
    program = sl.load(path, nproc=8)
    assert program.mesh("pod").mesh.axis("dp").size == 4
    assert sl.load(str(path), sets={"d": 16}).compilation.program.lets == {"d": 16}


def test_names_are_looked_up_with_the_nearest_at_hand() -> None:
    program = sl.loads(TEXT)
    assert program.declared_fn("f").name == "f"
    assert program.declared_model("two").mesh.name == "serve"
    assert code(program, "mesh", "pad") == "SL0224"
    assert code(program, "declared_fn", "g") == "SL0224"
    assert code(program, "declared_model", "three") == "SL0224"
    assert code(program, "declared_model", None) == "SL0224"
    assert code(sl.loads("mesh m = a:2"), "declared_model", None) == "SL0224"


def test_an_open_axis_takes_its_size_from_the_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "6")
    assert sl.loads(TEXT).mesh("pod").mesh.axis("dp").size == 3
    assert sl.loads(TEXT, nproc=2).mesh("pod").mesh.axis("dp").size == 1
    assert sl.loads("mesh m = a:2").mesh("m").mesh.size == 2
    monkeypatch.setenv("WORLD_SIZE", "five")
    assert sl.loads(TEXT).mesh("pod").mesh.axis("dp").open


def test_every_fault_is_raised_at_once() -> None:
    with pytest.raises(sl.ShardlangError) as caught:
        sl.loads("mesh m = a:2@x\nfn f(x: [b/c]) -> [b]", name="mine")
    assert caught.value.codes == ("SL0204", "SL0201")
    assert "--> mine:2:12" in str(caught.value)
    for text in ("\0", "#" * (1 << 21)):
        with pytest.raises(sl.ShardlangError):
            sl.loads(text)


def test_loading_imports_no_torch() -> None:
    program = f"import sys, shardlang as sl\nsl.loads({TEXT!r}).mesh('pod')\nassert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], timeout=60, check=True)
