"""``shardlang plan``: output, exit codes, no torch."""

from __future__ import annotations

import json
import subprocess
import sys

from click.testing import CliRunner

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
