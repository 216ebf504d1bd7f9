"""``shardlang compile``: every stage as a product, and the artefact taken back in a file's place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from shardlang import compilation
from shardlang.artefact import ARTEFACT_VERSION
from shardlang.cli import main

TEXT = """mesh m = a:2 * b:4
let d = 8192
reshard turn on m: f32[d/a/b d] => [d d/a/b]
reshard cache on m: bf16[n/a s kv/b 128] => [n/a s/b kv 128]
"""


DRAWN = """mesh m = a:2
reshard turn: f32[8/a 8] => [8 8/a]
reshard later: [n/a] => [n]
model net on m {
  param layers.*.w : [f/a d]
  param head       : whole
}
"""


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    """The header of a checkpoint of two layers and a head."""
    shapes = {"layers.0.w": [4, 2], "layers.1.w": [4, 2], "head": [3]}
    header = json.dumps({n: {"dtype": "F32", "shape": s, "data_offsets": [0, 0]} for n, s in shapes.items()}).encode()
    path = tmp_path / "w.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    return str(path)


def run(*arguments: str, stdin: str = TEXT) -> Result:
    return CliRunner().invoke(main, ["compile", *arguments], input=stdin)


def emitted(stage: str, *arguments: str) -> Any:
    result = run("-", "--emit", stage, *arguments)
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_the_tree_has_every_node_with_its_place() -> None:
    tree = emitted("ast")
    assert tree["node"] == "File"
    assert [d["node"] for d in tree["decls"]] == ["Mesh", "Let", "Reshard", "Reshard"]
    assert tree["decls"][1]["bindings"][0]["name"] == {"node": "Name", "text": "d", "span": [2, 5, 2, 6]}


def test_the_program_has_names_resolved_and_constants_folded() -> None:
    program = emitted("program", "--set", "d=4096")
    assert program["lets"] == {"d": 4096}
    assert program["reshards"]["turn"]["source"]["dims"][0]["factors"][0]["size"]["value"] == 4096
    assert program["layouts"] == {}


def test_plans_are_those_of_the_planner_and_open_ones_say_what_is_open() -> None:
    plans = emitted("plan")
    assert plans["turn"]["steps"]
    assert set(plans["turn"]) >= {"steps", "bytes_received", "bytes_bound", "collectives", "seconds", "hash"}
    assert plans["cache"] == {"open": ["n", "s", "kv"]}


def test_an_open_axis_leaves_a_plan_open() -> None:
    text = "mesh m = a:?\nreshard r: [8/a] => [8]\n"
    assert json.loads(run("-", "--emit", "plan", stdin=text).stdout) == {"r": {"open": ["a"]}}
    assert json.loads(run("-", "--emit", "plan", "--nproc", "4", stdin=text).stdout)["r"]["steps"]


def test_the_program_has_the_layouts_of_a_checkpoints_parameters(tmp_path: Path) -> None:
    header = json.dumps({"up.w": {"dtype": "BF16", "shape": [6, 4], "data_offsets": [0, 0]}}).encode()
    (tmp_path / "w.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    text = """mesh m = dp:2 * tp:2
model net on m {
  param up.w : [f/tp d]
  call up (x: [b]) -> [b]
  checkpoint up
  fsdp root over dp
  freeze up.**
}
"""
    result = run("-", "--emit", "program", "--checkpoint", str(tmp_path / "w.safetensors"), stdin=text)
    assert json.loads(result.stdout)["layouts"]["net"] == {
        "mesh": "dp:2 * tp:2",
        "sizes": {"f": 6, "d": 4},
        "parameters": {
            "up.w": {
                "shape": [6, 4],
                "dtype": "bf16",
                "layout": "[6/tp 4]",
                "block": [3, 4],
                "frozen": True,
                "line": "up.w",
            }
        },
        "tied": [],
        "compile": [],
        "groups": [{"module": "root", "over": ["dp"], "replicate": [], "parameters": 1}],
        "calls": [{"module": "up", "line": "up"}],
        "checkpoint": ["up"],
    }


def test_an_artefact_stands_for_its_file(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    assert run("-", "-o", str(path), "--set", "d=4096", "--nproc", "8").exit_code == 0
    said = json.loads(path.read_text())
    assert said["shardlang"] == ARTEFACT_VERSION
    assert said["source"] == {"name": "<stdin>", "text": TEXT}
    again = compilation.load(str(path))
    assert (again.source.text, again.sets, again.nproc) == (TEXT, {"d": 4096}, 8)
    assert run(str(path)).stdout == path.read_text()
    assert compilation.load(str(path), sets={"d": 16}).program.lets == {"d": 16}


def test_compiling_twice_gives_the_same_bytes() -> None:
    assert run("-").stdout == run("-").stdout


def test_faults_end_a_compilation() -> None:
    result = run("-", stdin="mesh m = a:2\nfn f(x: [n/b]) -> [n]")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("error[SL0201]")


def test_an_output_that_cannot_be_written_is_a_fault(tmp_path: Path) -> None:
    result = run("-", "-o", str(tmp_path / "missing" / "m.json"))
    assert result.exit_code == 1
    assert result.stderr.startswith("error[SL0225]")


def test_a_drawing_shows_every_plan_and_every_layout(checkpoint: str) -> None:
    drawn = run("-", "--emit", "svg", "--checkpoint", checkpoint, stdin=DRAWN)
    assert drawn.exit_code == 0, drawn.stderr
    parsed = ElementTree.fromstring(drawn.stdout)
    words = [e.text for e in parsed.iter("{http://www.w3.org/2000/svg}text")]
    assert {"turn", "layers.*.w", "head"} <= set(words)
    assert words.count("layers.*.w") == 1
    assert run("-", "--emit", "svg", "--checkpoint", checkpoint, stdin=DRAWN).stdout == drawn.stdout


def test_a_page_has_the_figures_beside_the_drawings(checkpoint: str) -> None:
    page = run("-", "--emit", "html", "--checkpoint", checkpoint, stdin=DRAWN)
    assert page.exit_code == 0, page.stderr
    assert page.stdout.startswith("<!doctype html>")
    for words in ("reshard turn: f32[8/a 8] =&gt; [8 8/a]", "all_to_all", "model net on a:2", "memory for optimizer"):
        assert words in page.stdout
    assert "<td>layers.*.w</td><td>f32</td><td>[4/a 2]</td><td>16 B</td>" in page.stdout


@pytest.mark.parametrize("stage", ["python", "svg", "html"])
def test_a_stage_without_a_product_is_a_fault(stage: str) -> None:
    result = run("-", "--emit", stage, stdin="let d = 1\n")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("error[SL0226]")


@pytest.mark.parametrize("arguments", [[], ["-", "--emit", "wasm"], ["-", "--no-model", "--model", "a:b"]])
def test_misuse_is_exit_2(arguments: list[str]) -> None:
    assert run(*arguments).exit_code == 2
