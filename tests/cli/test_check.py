"""``shardlang check``: what it reports, in which form, with which exit code."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from shardlang.cli import main
from shardlang.diagnostics import ShardlangError
from shardlang.syntax.reading import read_bytes

GOOD = "mesh m = dp:2 * tp:2\nfn f(x: [b/dp d]) -> [b/dp d]\n"
BAD = "mesh m = dp:2 * tp:2\nfn f(x: [b/dp d/dp]) -> [b/dq d]\n"
NET = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(4, 6, bias=False)
        self.down = torch.nn.Linear(6, 4, bias=False)

def build():
    print("building")
    return Net()

def broken():
    raise ValueError("no such size\\nsecond line")

def number():
    return 3

three = 3
"""
MODEL = """mesh m = dp:2 * tp:2
model net on m {
  param up.weight   : [f/tp d]
  param down.weight : [d f/tp]
}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working directory; what is imported from it is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def run(*arguments: str, stdin: str | bytes = "") -> Result:
    return CliRunner().invoke(main, ["check", *arguments], input=stdin)


def codes(result: Result) -> list[str]:
    """The codes of a JSON answer."""
    return [d["code"] for d in json.loads(result.stdout)]


def test_a_right_file_says_nothing(folder: Path) -> None:
    (folder / "m.shard").write_text(GOOD)
    result = run("m.shard")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")


def test_faults_are_shown_on_standard_error(folder: Path) -> None:
    (folder / "m.shard").write_text(BAD)
    result = run("m.shard")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith("error[SL0203]: mesh axis `dp` splits two dims of `x`\n --> m.shard:2:17\n")
    assert "error[SL0201]: mesh `m` has no axis `dq`" in result.stderr


def test_json_is_a_list_on_standard_output(folder: Path) -> None:
    result = run("-", "--format", "json", stdin=BAD)
    assert result.exit_code == 1
    assert result.stderr == ""
    first = json.loads(result.stdout)[0]
    assert first["code"] == "SL0203"
    assert first["severity"] == "error"
    assert first["span"] == {"file": "<stdin>", "line": 2, "column": 17, "end_line": 2, "end_column": 19}
    assert first["labels"][0]["text"] == "first used here"
    assert set(first) == {"code", "severity", "message", "span", "labels", "notes", "helps"}


def test_a_right_file_is_an_empty_list_as_json() -> None:
    result = run("-", "--format", "json", stdin=GOOD)
    assert (result.exit_code, json.loads(result.stdout)) == (0, [])


def test_github_gets_one_command_a_fault() -> None:
    result = run("-", "--format", "github", stdin=BAD)
    assert result.exit_code == 1
    assert [line.partition(" ")[0] for line in result.stdout.splitlines()] == ["::error", "::error"]


def test_several_files_are_checked_together(folder: Path) -> None:
    for name in ("a.shard", "b.shard"):
        (folder / name).write_text(BAD)
    result = run("a.shard", "b.shard", "c.shard", "--format", "json")
    assert result.exit_code == 1
    assert codes(result) == ["SL0203", "SL0201", "SL0203", "SL0201", "SL0221"]


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"mesh m = \xff", "SL0102"),
        (b"mesh m = a:2\0", "SL0103"),
        (b"this is not the language", "SL0111"),
        (b"{", "SL0223"),
        (b'{"a": 1}', "SL0223"),
        (b'{"shardlang": 99}', "SL0222"),
        (b'{"shardlang": true}', "SL0222"),
        (b'{"shardlang": 1}', "SL0223"),
        (b'{"shardlang": 1, "source": {"name": "m", "text": ""}, "sets": {"d": -1}}', "SL0223"),
        (b'{"shardlang": 1, "source": {"name": "m", "text": ""}, "nproc": 0}', "SL0223"),
        (b'{"shardlang": 1, "source": {"name": "m", "text": ""}, "model": 3}', "SL0223"),
        (b"#" * (1 << 20) + b"#", "SL0101"),
    ],
)
def test_what_is_no_text_of_the_language_is_a_fault(data: bytes, code: str) -> None:
    result = run("-", "--format", "json", stdin=data)
    assert result.exit_code == 1
    assert codes(result) == [code]


def test_what_cannot_be_read_is_a_fault(folder: Path) -> None:
    (folder / "model.shard").write_text(GOOD)
    result = run("modle.shard")
    assert result.exit_code == 1
    assert result.stderr == (
        "error[SL0221]: cannot read `modle.shard`: there is no such file\n  = help: did you mean `model.shard`?\n"
    )
    assert "it is a directory" in run(str(folder)).stderr
    assert "embedded null" in run("a\0b").stderr


def test_a_closed_standard_input_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(ShardlangError) as caught:
        read_bytes("-")
    assert caught.value.codes == ("SL0221",)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["-", "--set", "d"],
        ["-", "--set", "d=x"],
        ["-", "--set", "d=-1"],
        ["-", "--set", "=1"],
        ["-", "--set", "d=1", "--set", "d=2"],
        ["-", "--nproc", "0"],
        ["-", "--format", "xml"],
        ["-", "--no-model", "--model", "a:b"],
        ["-", "--checkpoint", "x", "--model", "a:b"],
        ["-", "--fix"],
        ["-", "--nonsense"],
    ],
)
def test_misuse_is_exit_2(arguments: list[str]) -> None:
    result = run(*arguments, stdin=GOOD)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "Usage:" in result.stderr


def test_set_overrides_a_let() -> None:
    text = "mesh m = tp:4\nlet d = 6\nfn f(x: [d/tp]) -> [d/tp]\n"
    assert codes(run("-", "--format", "json", stdin=text)) == ["SL0302", "SL0302"]
    assert run("-", "--set", "d=8", stdin=text).exit_code == 0
    assert codes(run("-", "--set", "e=8", "--format", "json", stdin="let d = 1")) == ["SL0206"]


def test_nproc_sizes_an_open_axis() -> None:
    text = "mesh m = dp:? * tp:2\nfn f(x: [8/dp]) -> [8/dp]\n"
    assert run("-", stdin=text).exit_code == 0
    assert run("-", "--nproc", "8", stdin=text).exit_code == 0
    assert codes(run("-", "--nproc", "6", "--format", "json", stdin=text)) == ["SL0302", "SL0302"]
    assert codes(run("-", "--nproc", "7", "--format", "json", stdin=text)) == ["SL0311"]


def test_a_model_is_built_without_memory_and_checked(folder: Path) -> None:
    (folder / "net.py").write_text(NET)
    (folder / "m.shard").write_text(MODEL)
    result = run("m.shard", "--model", "net:build")
    assert (result.exit_code, result.stdout) == (0, "")
    (folder / "m.shard").write_text(MODEL.replace("[d f/tp]", "[f/tp d]"))
    result = run("m.shard", "--model", "net:build", "--format", "json")
    assert codes(result) == ["SL0301", "SL0301"]


def test_from_in_the_file_gives_the_model(folder: Path) -> None:
    (folder / "net.py").write_text(NET)
    (folder / "m.shard").write_text(MODEL.replace("model net", "model net from net:build").replace("up.w", "up.x"))
    result = run("m.shard", "--format", "json")
    assert codes(result) == ["SL0601", "SL0603"]
    assert run("m.shard", "--no-model").exit_code == 0


@pytest.mark.parametrize(
    ("reference", "code", "text"),
    [
        ("missing:build", "SL0612", "there is no module `missing`"),
        ("net.sub:build", "SL0612", "there is no module `net.sub`"),
        ("net.py:build", "SL0612", "`net.py` is a file, not a module"),
        ("./net.py:build", "SL0612", "`./net.py` is a file, not a module"),
        (":build", "SL0612", "it is not of the form `package.module:function`"),
        ("net:bild", "SL0612", "module `net` has no `bild`"),
        ("net:three", "SL0612", "`three` cannot be called"),
        ("net", "SL0612", "it is not of the form `package.module:function`"),
        ("faulty:build", "SL0612", "ZeroDivisionError: division by zero"),
        ("unwritten:build", "SL0612", "SyntaxError: "),
        ("leaving:build", "SL0612", "SystemExit: 3"),
        ("needy:build", "SL0612", "ModuleNotFoundError: No module named 'nowhere_at_all'"),
        ("net:broken", "SL0613", "ValueError: no such size"),
        ("net:number", "SL0613", "it gives int, not a torch.nn.Module"),
    ],
)
def test_a_model_that_cannot_be_had_is_a_fault(folder: Path, reference: str, code: str, text: str) -> None:
    (folder / "net.py").write_text(NET)
    (folder / "faulty.py").write_text("1 / 0")
    (folder / "unwritten.py").write_text("def build(")
    (folder / "leaving.py").write_text("import sys\nsys.exit(3)")
    (folder / "needy.py").write_text("import nowhere_at_all")
    (folder / "m.shard").write_text(MODEL)
    result = run("m.shard", "--model", reference, "--format", "json")
    assert result.exit_code == 1
    (found,) = json.loads(result.stdout)
    assert found["code"] == code
    assert text in found["message"]
    assert "Traceback" not in result.output


def test_the_place_of_a_faulty_reference_is_shown(folder: Path) -> None:
    (folder / "m.shard").write_text("mesh m = dp:2\nmodel net from missing.net:build on m {\n}\n")
    (found,) = json.loads(run("m.shard", "--format", "json").stdout)
    assert (found["span"]["line"], found["span"]["column"], found["span"]["end_column"]) == (2, 16, 33)


def test_a_model_for_a_file_without_one_is_a_fault() -> None:
    assert codes(run("-", "--model", "net:build", "--format", "json", stdin=GOOD)) == ["SL0615"]
    assert codes(run("-", "--checkpoint", "x.safetensors", "--format", "json", stdin=GOOD)) == ["SL0615"]


def test_a_checkpoint_stands_for_the_model(folder: Path) -> None:
    (folder / "m.shard").write_text(MODEL)
    header = json.dumps(
        {
            n: {"dtype": "F32", "shape": s, "data_offsets": [0, 0]}
            for n, s in (("up.weight", [6, 4]), ("down.weight", [4, 8]))
        }
    ).encode()
    (folder / "w.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    result = run("m.shard", "--checkpoint", "w.safetensors", "--format", "json")
    assert codes(result) == ["SL0301"]
    assert codes(run("m.shard", "--checkpoint", "m.shard", "--format", "json")) == ["SL0614"]


def test_an_index_without_its_files_is_a_warning(folder: Path) -> None:
    (folder / "m.shard").write_text(MODEL)
    names = {"weight_map": {"up.weight": "1.safetensors", "down.weight": "1.safetensors"}}
    (folder / "w.safetensors.index.json").write_text(json.dumps(names))
    result = run("m.shard", "--checkpoint", "w.safetensors.index.json")
    assert result.exit_code == 0
    assert result.stderr.startswith("warning[SL0616]")


def test_fix_makes_the_edits_that_are_surely_right(folder: Path) -> None:
    path = folder / "m.shard"
    path.write_text(
        "link nvlink = 450 GB/s, 3 us\nmesh pod = dp:2@nvlnik * tp:2@nvlink\nfn f on Pod (x: float32[b/dp]) -> [b]\n"
    )
    result = run("m.shard", "--fix")
    assert result.exit_code == 0, result.stderr
    assert path.read_text() == (
        "link nvlink = 450 GB/s, 3 us\nmesh pod = dp:2@nvlink * tp:2@nvlink\nfn f on Pod (x: f32[b/dp]) -> [b]\n"
    ).replace("Pod", "pod")


def test_fix_leaves_what_is_not_surely_right(folder: Path) -> None:
    path = folder / "m.shard"
    path.write_text(BAD)
    result = run("m.shard", "--fix")
    assert result.exit_code == 1
    assert path.read_text() == BAD


def test_without_a_look_at_models_the_text_is_still_checked() -> None:
    result = run("-", "--no-model", stdin=BAD)
    assert result.exit_code == 1
    assert "SL0203" in result.stderr


TRANSFER = """mesh m = dp:2 * tp:2
model train from net:build on m {
  param up.weight   : [f/tp d]
  param down.weight : [d f/tp]
}
model serve on m {
  param up.weight   : [f/tp d]
  param otherwise   : whole
}
transfer train => serve
"""


def test_a_model_without_from_takes_that_of_the_other_side_of_a_transfer(folder: Path) -> None:
    (folder / "net.py").write_text(NET)
    (folder / "m.shard").write_text(TRANSFER)
    assert run("m.shard").exit_code == 0
    (folder / "m.shard").write_text(
        TRANSFER.replace("param up.weight   : [f/tp d]\n  param o", "param x : whole\n  param o")
    )
    assert codes(run("m.shard", "--format", "json")) == ["SL0601"]


def test_the_models_of_a_transfer_have_the_same_parameters(folder: Path) -> None:
    (folder / "net.py").write_text(
        NET + "\ndef narrow():\n    net = Net()\n    net.up = torch.nn.Linear(4, 2)\n    return net\n"
    )
    (folder / "m.shard").write_text(TRANSFER.replace("model serve on", "model serve from net:narrow on"))
    (found,) = json.loads(run("m.shard", "--format", "json").stdout)
    assert found["code"] == "SL0617"
    assert found["notes"] == ["in one of them only: `up.bias`", "of another shape: `up.weight`"]
