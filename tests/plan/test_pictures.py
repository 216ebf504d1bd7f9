"""``shardlang viz`` and the drawings: every cell shows its holders."""

from __future__ import annotations

import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings

from shardlang import testing
from shardlang.cli import main
from shardlang.cli.calibrate import latency_text, rate_text
from shardlang.layout import Layout
from shardlang.plan.search import plan_transition
from shardlang.report.drawing import layout_svg, plan_svg
from shardlang.report.picture import picture, picture_text, ranks_text
from tests.plan.drawn import mesh_of


def viz(*args: str) -> str:
    result = CliRunner().invoke(main, ["viz", *args])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_text_shows_the_grid_and_every_rank() -> None:
    out = viz("[8/a 8/b]", "--mesh", "a:2 * b:2")
    assert "|  0  |  1  |" in out
    assert "|  2  |  3  |" in out
    assert "3     a=1 b=1  4x4          4:8    4:8" in out


def test_of_a_large_mesh_the_first_ranks_are_shown_and_others_when_asked_for() -> None:
    args = ("[8192/a 8192/b]", "--mesh", "a:128 * b:64")
    out = viz(*args)
    assert len(out.splitlines()) < 80
    assert out.endswith("and 8,128 more; `--ranks A..B` shows others\n")
    assert viz(*args, "--ranks", "8191").splitlines()[-1] == "8191  a=127 b=63  64x128       8128:8192  8064:8192"
    result = CliRunner().invoke(main, ["viz", *args, "--ranks", "8190..9000"])
    assert result.exit_code == 2
    assert "the mesh has ranks 0..8191" in result.output


def test_a_fused_weight_shows_its_stripes() -> None:
    assert picture_text(Layout.whole(mesh_of(4), (8,)))[1].split() == ["|", "0-3", "|"]
    out = viz("[(3 4/t)]", "--mesh", "t:2")
    assert [line.split("|")[1].strip() for line in out.splitlines() if ":" in line and "|" in line] == list("010101")


@pytest.mark.parametrize("form", ["svg", "html"])
@pytest.mark.parametrize("spec", ["[8/a 8/b 4/c]{+d}", "[8/a 8] => [8 8/b]", "[]"])
def test_drawings_are_well_formed(form: str, spec: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    viz(spec, "--mesh", "a:2 * b:2 * c:2 * d:2", "--format", form, "-o", str(out))
    text = out.read_text()
    if form == "html":
        assert text.startswith("<!doctype html>")
        text = text[text.index("<svg") : text.index("</svg>") + 6]
    ET.fromstring(text)


@settings(deadline=None, max_examples=40)
@given(testing.layouts())
def test_every_rank_that_holds_anything_is_in_some_cell(layout: Layout) -> None:
    grid = picture(layout)
    if grid is not None:
        shown = {rank for row in grid.cells for cell in row for rank in cell}
        holding = {r for r in layout.mesh.ranks if 0 not in layout.local_shape(r)}
        assert holding <= shown
    ET.fromstring(layout_svg(layout))


@settings(deadline=None, max_examples=15)
@given(testing.transitions())
def test_plans_are_drawn(change: tuple[Layout, Layout]) -> None:
    ET.fromstring(plan_svg(plan_transition(*change, "f64")))


def test_ranks_are_written_short() -> None:
    assert ranks_text((0, 1, 2, 3, 6)) == "0-3 6"
    assert ranks_text((0, 1, 5)) == "0 1 5"
    assert ranks_text(()) == ""


def test_measured_links_are_written_in_the_language() -> None:
    from shardlang.source import Source
    from shardlang.syntax.parse import parse

    for rate in (3e3, 4.04e8, 4.5e11, 1e12):
        for latency in (1e-8, 3e-6, 8e-4, 6.97e-3):
            text = f"link x = {rate_text(rate)}, {latency_text(latency)}"
            assert parse(Source("links", text)).decls


def test_calibrate_prints_a_link_a_name() -> None:
    command = [sys.executable, "-m", "shardlang", "calibrate", "--mesh", "a:2@x * b:1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"link x = [\d.]+ [GMk]B/s, [\d.]+ [mu]s\n", done.stdout)


def test_calibrate_without_a_gpu_or_the_ranks_says_so() -> None:
    result = CliRunner().invoke(main, ["calibrate", "--mesh", "a:4", "--nproc", "3"])
    assert result.exit_code == 1
    assert "error[SL0311]" in result.stderr


def test_a_fault_of_a_drawn_spec_is_told_once_and_of_the_tensor() -> None:
    done = CliRunner().invoke(main, ["viz", "[7/a]", "--mesh", "a:2"])
    assert done.exit_code == 1
    assert done.stderr.count("error[SL0302]") == 1
    assert "in the tensor" in done.stderr
