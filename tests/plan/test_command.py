"""``shardlang plan``: output, exit codes, no torch."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

import shardlang as sl
from shardlang.cli import main

KEYS = {
    "steps", "bytes_received", "bytes_sent", "bytes_bound", "largest_array_ratio", "live_peak_bytes", "collectives",
    "seconds", "hash",
}  # fmt: skip
STEP = {"kind", "axes", "bytes_received", "bytes_sent", "seconds", "layout"}


def run(*args: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, ["plan", *args])
    return result.exit_code, result.stdout, result.stderr


def test_json_has_the_keys_of_the_reference_and_no_others() -> None:
    code, out, _ = run("f32[8192/a/b 8192] => [8192 8192/a/b]", "--mesh", "a:2 * b:4", "--format", "json")
    said = json.loads(out)
    assert code == 0
    assert set(said) == KEYS
    assert [set(s) for s in said["steps"]] == [STEP]
    assert said["steps"][0]["kind"] == "all_to_all"
    assert said["bytes_received"] == said["bytes_bound"] == 8192 * 8192 * 4 // 8 * 7 // 8


def test_text_shows_steps_and_who_holds_what() -> None:
    code, out, _ = run("f32[8/a 8/b] => [8 8]", "--mesh", "a:2 * b:2", "--verify")
    assert code == 0
    assert "all_gather" in out
    assert "|  0  |  1  |" in out
    assert "certificate checked" in out


def test_links_are_declared_and_used() -> None:
    slow = run("f32[512/a 512] => [512 512]", "--mesh", "a:4@x", "--link", "x = 1 GB/s, 9 us", "--format", "json")
    fast = run("f32[512/a 512] => [512 512]", "--mesh", "a:4@x", "--link", "x = 9 GB/s, 1 us", "--format", "json")
    assert json.loads(slow[1])["seconds"] > 5 * json.loads(fast[1])["seconds"]


def test_from_one_mesh_to_another() -> None:
    code, out, _ = run(
        "f32[8/a 8] => [8 8/x]", "--mesh", "a:4", "--to", "x:2 ranks 4..5", "--format", "json", "--verify"
    )
    assert code == 0
    assert [s["kind"] for s in json.loads(out)["steps"]] == ["exchange"]


def test_faults_have_codes_and_exit_1() -> None:
    code, _, err = run("f32[8/a 8] => [8/q 8]", "--mesh", "a:4")
    assert code == 1
    assert "error[SL02" in err
    code, _, err = run("f32[8/a 8] => [8 8]", "--mesh", "a:4", "--cap", "0.5")
    assert code == 1
    assert "error[SL0403]" in err


def test_misuse_exits_2() -> None:
    assert run("f32[8/a 8] => [8 8]")[0] == 2
    assert run("f32[8/a 8] => [8 8]", "--mesh", "a:4", "--cap", "much")[0] == 2
    assert run("f32[8/a 8] => [8 8]", "--mesh", "a:4 ranks 3..4")[0] == 2


def test_no_torch_is_imported() -> None:
    code = (
        "import sys; from shardlang.cli import main\n"
        "try: main(['plan', 'f32[8/a 8] => [8 8]', '--mesh', 'a:4', '--verify'])\n"
        "except SystemExit as e: assert not e.code\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60)


def test_dtensors_planners_are_shown_beside_ours() -> None:
    """In a process of its own, since it needs a fake world."""
    command = [sys.executable, "-m", "shardlang", "plan", "f32[64/a 64/b] => [64/b 64/a]", "--mesh", "a:2 * b:2"]
    done = subprocess.run([*command, "--compare"], capture_output=True, text=True, check=True, timeout=100)
    rows = {line.split("  ")[0].strip(): line for line in done.stdout.splitlines()}
    assert "permute a/b" in rows["shardlang"]
    received = [float(rows[name].removeprefix(name).split()[0]) for name in rows if name.startswith("DTensor ")]
    assert len(received) == 2
    assert min(received) > float(rows["shardlang"].split()[1]) == 4
    done = subprocess.run(
        [*command, "--compare", "--format", "json"], capture_output=True, text=True, check=True, timeout=100
    )
    shown = json.loads(done.stdout)
    assert set(shown["compare"]) == {"dtensor_default", "dtensor_min_cost"}
    assert all(other["bytes_received"] > shown["bytes_received"] for other in shown["compare"].values())


def test_of_an_open_dim_the_cheapest_axis_is_taken() -> None:
    code, out, _ = run("f32[8192/? 8192] => [8192/b 8192]", "--mesh", "a:2 * b:4")
    assert code == 0
    assert out.startswith("f32[8192/b 8192] => [8192/b 8192]")
    assert "nothing to do" in out


def test_parts_of_an_axis_are_named_by_split() -> None:
    code, out, _ = run("f32[8/tp0 8/tp1] => [8/tp 8]", "--mesh", "dp:2 * tp:8", "--split", "tp = tp0:2 * tp1:4")
    assert code == 0
    assert out.startswith("f32[8/tp0 8/tp1] => [8/tp 8]")
    other = run("f32[8/a 8] => [8 8/x1]", "--mesh", "a:4", "--to", "x:4 ranks 4..7", "--split", "x = x0:2 * x1:2")
    assert other[0] == 0


def test_a_split_of_no_axis_or_of_another_size_is_refused() -> None:
    for split, code in (("q = q0:2 * q1:4", "SL0217"), ("tp = a:2 * b:2", "SL0313"), ("tp = a:2 b:4", "SL01")):
        found = run("f32[8/tp] => [8]", "--mesh", "tp:8", "--split", split)
        assert found[0] == 1
        assert f"error[{code}" in found[2]


def test_the_target_on_another_mesh_is_held_against_the_source() -> None:
    for change, code in (("f32[8/a 8] => [8 4]", "SL0317"), ("f32[8/a] => f16[8]", "SL0318")):
        found = run(change, "--mesh", "a:4", "--to", "x:2 ranks 4..5")
        assert found[0] == 1
        assert f"error[{code}]" in found[2]


def test_python_says_the_same_of_splits_and_open_dims() -> None:
    change, axes = "f32[8/tp0 8/?] => [8/tp 8]", "tp:8"
    plan = sl.plan(change, axes, splits={"tp": "tp0:2 * tp1:4"})
    _, out, _ = run(change, "--mesh", axes, "--split", "tp = tp0:2 * tp1:4", "--format", "json")
    assert plan.hash == json.loads(out)["hash"]
    assert str(plan.source) == "[8/tp0 8/tp1]"
    with pytest.raises(ValueError, match="has its own"):
        sl.plan("[8/a] => [8]", sl.loads("mesh m = a:4").mesh("m"), splits={"a": "x:2 * y:2"})
