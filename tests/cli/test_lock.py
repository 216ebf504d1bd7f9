"""``shardlang lock`` and ``diff``: what a file comes down to, and what a change of it means."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from shardlang.cli import main
from shardlang.report.lock import lock_text, read_lock

TEXT = """link ib = 50 GB/s, 12 us
mesh pod = dp:2@ib * tp:4
split pod.tp = t0:2 * t1:2
rules on pod {
  f -> tp
}
reshard turn on pod: f32[8192/dp/tp 8192] => [8192 8192/dp/tp]
reshard later on pod: [n/dp] => [n]
model net on pod {
  param layers.*.up.weight   : [f d]
  param layers.*.down.weight : [d f] grad {+dp}
  param otherwise            : whole
  call layers.* (x: [... b/dp d]) -> (y: [b/dp _ d]{+tp}, _)
  fsdp layers.* over dp { param bf16 }
}
"""


CALL = "(x: [... b/dp d]) -> (y: [b/dp _ d], _)"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a file and a checkpoint of its parameters."""
    monkeypatch.chdir(tmp_path)
    shapes = {f"layers.{i}.{n}.weight": s for i in range(3) for n, s in (("up", [64, 16]), ("down", [16, 64]))}
    shapes["head"] = [8]
    header = json.dumps({n: {"dtype": "F32", "shape": s, "data_offsets": [0, 0]} for n, s in shapes.items()}).encode()
    (tmp_path / "w.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    (tmp_path / "m.shard").write_text(TEXT)
    return tmp_path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, [*arguments, "--checkpoint", "w.safetensors"])


def test_a_lock_says_what_a_file_comes_down_to(folder: Path) -> None:
    result = run("lock", "m.shard")
    assert result.exit_code == 0, result.stderr
    assert result.stdout == lock_text(read_lock("m.lock", result.stdout.encode()))
    lines = result.stdout.splitlines()
    assert lines[:3] == ["# shardlang lock 1", "", "mesh pod = dp:2@ib * tp:4(t0:2 * t1:2) ranks 0..7"]
    assert "  call layers.0 (x: [... b/dp d]) -> (y: [b/dp _ d]{+tp}, _)" in lines
    assert "  with layers.0 fsdp over dp reshard yes param bf16" in lines
    assert "reshard later" in lines
    assert lines[lines.index("reshard later") + 1] == "  open n"
    assert lines[lines.index("reshard turn") + 1].split()[1] == "dp/tp"
    assert "  param layers.0.up.weight f32 [64/tp 16] stored 512 fsdp layers.0 gathers 512 by ib" in lines, (
        result.stdout
    )
    assert "  param head f32 [8] stored 32 fsdp - gathers 0 by -" in lines


def test_the_same_file_gives_the_same_lock(folder: Path) -> None:
    assert run("lock", "m.shard").stdout == run("lock", "m.shard").stdout
    assert run("lock", "m.shard", "-o", "m.lock").exit_code == 0
    assert run("lock", "m.shard", "--check", "m.lock").exit_code == 0
    assert (run("diff", "m.lock", "m.shard").exit_code, run("diff", "m.lock", "m.shard").stdout) == (0, "")


def test_comments_and_order_make_no_difference(folder: Path) -> None:
    (folder / "n.shard").write_text("# a comment\n" + TEXT.replace("[f d]", "[ f   d/. ]"))
    assert run("diff", "m.shard", "n.shard").exit_code == 0


def changed(folder: Path, old: str, new: str, *options: str) -> list[str]:
    """What ``diff`` says of a change of the text."""
    assert old in TEXT
    (folder / "n.shard").write_text(TEXT.replace(old, new))
    result = run("diff", "m.shard", "n.shard", *options)
    assert result.exit_code == 1, result.output
    return result.stdout.splitlines()


def test_layers_that_change_alike_are_one_line(folder: Path) -> None:
    lines = changed(folder, "{ param bf16 }", "{ param f32 }")
    assert (
        "model `net`: `layers.*.up.weight` (3 parameters) gathers 1.5 KiB more (1.5 KiB -> 3 KiB) a step on ib" in lines
    )
    assert "model `net`: memory for gathered: 4 KiB more (4 KiB -> 8 KiB)" in lines


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        (
            "dp:2@ib",
            "dp:4@ib",
            "mesh `pod`: dp:2@ib * tp:4(t0:2 * t1:2) ranks 0..7 -> dp:4@ib * tp:4(t0:2 * t1:2) ranks 0..15",
        ),
        (
            "[f d]",
            "[f/t0 d]",
            "model `net`: `layers.*.up.weight` (3 parameters) is laid out [64/t0 16], before [64/tp 16]",
        ),
        ("fsdp layers.*", "fsdp root", "model `net`: `head` is gathered with `root`, before with nothing"),
        (
            "(y: [b/dp _ d]{+tp}, _)",
            "(y: [b/dp _ d], _)",
            "model `net`: call layers.0: (x: [... b/dp d]) -> (y: [b/dp _ d]{+tp}, _) -> " + CALL,
        ),
        ("reshard later", "reshard sooner", "reshard `later` is gone"),
        ("model net", "model neat", "model `neat` is new"),
    ],
)
def test_a_change_is_said_in_words(folder: Path, old: str, new: str, line: str) -> None:
    assert line in changed(folder, old, new)


def test_a_plan_that_changes_is_said_step_by_step(folder: Path) -> None:
    (line,) = changed(folder, "=> [8192 8192/dp/tp]", "=> [8192 8192]")
    assert line.startswith("reshard `turn`: ")
    assert " -> all_gather dp/tp " in line


def test_lines_that_change_no_layout_show_as_well(folder: Path) -> None:
    """Recomputation, compilation, how groups go, what is frozen: once for all layers."""
    more = "  checkpoint layers.*\n  compile layers.* { backend aot_eager }\n  freeze head\n"
    changed = TEXT.replace("{ param bf16 }", "{ param bf16, prefetch 1 }").replace(
        "  fsdp layers", f"{more}  fsdp layers"
    )
    (folder / "new.shard").write_text(changed)
    lines = run("diff", "m.shard", "new.shard").stdout.splitlines()
    group = "fsdp over dp reshard yes param bf16"
    assert f"model `net`: `layers.*` (3 times): {group} -> checkpoint, compile aot_eager, {group} prefetch 1" in lines
    assert "model `net`: `head`: nothing -> frozen" in lines
    assert run("diff", "new.shard", "new.shard").stdout == run("diff", "m.shard", "m.shard").stdout


LOCK = "# shardlang lock 1\nmodel net on m\n"


@pytest.mark.parametrize(
    ("old", "new", "lines"),
    [
        ("  param a f32 [8] stored 32 fsdp - gathers 0 by -\n", "", ["model `net`: `a` is gone"]),
        ("", "  param a f32 [8] stored 32 fsdp - gathers 0 by -\n", ["model `net`: `a` is new"]),
        (
            "  param a f32 [8] stored 32 fsdp - gathers 0 by -\n",
            "  param a bf16 [8] stored 16 fsdp - gathers 0 by -\n",
            ["model `net`: `a` is bf16, before f32", "model `net`: `a` stores 16 B less (32 B -> 16 B) on a rank"],
        ),
        ("  call a () -> (whole)\n", "", ["model `net`: call a: () -> (whole) -> no line"]),
        (
            "  collective all_reduce dp 2 64\n",
            "  collective all_gather dp 1 64\n",
            [
                "model `net`: all_gather over dp: 64 B more (0 B -> 64 B) a step, 0 -> 1 of them",
                "model `net`: all_reduce over dp: 64 B less (64 B -> 0 B) a step, 2 -> 0 of them",
            ],
        ),
        (
            "  collective all_reduce dp 2 64\n",
            "  collective all_reduce dp 1 64\n",
            ["model `net`: all_reduce over dp: as before (64 B) a step, 2 -> 1 of them"],
        ),
    ],
)
def test_two_locks_are_compared(folder: Path, old: str, new: str, lines: list[str]) -> None:
    (folder / "old.lock").write_text(LOCK + old)
    (folder / "new.lock").write_text(LOCK + new)
    assert run("diff", "old.lock", "new.lock").stdout.splitlines() == lines


def test_a_model_on_another_mesh_is_a_difference(folder: Path) -> None:
    (folder / "old.lock").write_text(LOCK)
    (folder / "new.lock").write_text(LOCK.replace("on m", "on n"))
    assert run("diff", "old.lock", "new.lock").stdout == "model `net`: on mesh `n`, before on `m`\n"


def test_differences_are_a_list_as_json(folder: Path) -> None:
    (folder / "n.shard").write_text(TEXT.replace("reshard later", "reshard sooner"))
    result = run("diff", "m.shard", "n.shard", "--format", "json")
    assert json.loads(result.stdout) == ["reshard `later` is gone", "reshard `sooner` is new"]


def test_a_lock_that_no_longer_agrees_is_a_fault(folder: Path) -> None:
    run("lock", "m.shard", "-o", "m.lock")
    (folder / "m.shard").write_text(TEXT.replace("{ param bf16 }", ""))
    result = run("lock", "m.shard", "--check", "m.lock")
    assert result.exit_code == 1
    assert result.stderr.startswith("error[SL0654]")
    assert "(3 parameters) gathers 1.5 KiB more" in result.stderr


@pytest.mark.parametrize(
    "text",
    [
        "",
        "mesh m = dp:2",
        "# shardlang lock 2\n",
        "# shardlang lock 1\nnonsense\n",
        "# shardlang lock 1\n  memory parameters 3\n",
        "# shardlang lock 1\nmodel net on m\n  memory parameters x\n",
        "# shardlang lock 1\nmodel net on m\n  param a f32 [2] stored 1\n",
        "# shardlang lock 1\nmodel net on m\n  wish 3\n",
        "# shardlang lock 1\nmodel\n",
        "\ufffd\0",
    ],
)
def test_what_is_no_lock_is_a_fault(folder: Path, text: str) -> None:
    (folder / "m.lock").write_text(text)
    result = run("lock", "m.shard", "--check", "m.lock")
    assert result.exit_code == 1
    assert result.stderr.startswith("error[SL0655]")


def test_misuse_is_exit_2(folder: Path) -> None:
    for arguments in (
        ["lock"],
        ["lock", "m.shard", "-o", "a", "--check", "b"],
        ["diff", "m.shard"],
        ["diff", "-", "-"],
    ):
        assert run(*arguments).exit_code == 2
