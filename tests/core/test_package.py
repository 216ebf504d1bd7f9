"""The package's face: every name is there, and is what it says whatever was imported before."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

import shardlang as sl


def test_every_public_name_is_found() -> None:
    for name in sl.__all__:
        assert getattr(sl, name) is not None, name


def test_plan_is_the_function_though_a_room_has_its_name() -> None:
    code = "import shardlang.plan.search, shardlang as sl; print(sl.plan('f32[4/a] => [4]', 'a:2').collectives)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "1\n", done.stderr


def test_importing_the_package_imports_no_torch() -> None:
    code = "import shardlang as sl, sys; sl.plan('f32[4/a] => [4]', 'a:2'); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "False\n", done.stderr


@pytest.mark.parametrize("wrong", [{"objective": "speed"}, {"cap": float("nan")}, {"cap": -1.0}])
def test_a_plan_for_no_objective_or_cap_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        sl.plan("[8/a] => [8]", "a:2", **wrong)


def test_a_plan_prints_as_one_line_of_its_steps() -> None:
    text = str(sl.plan("f32[8/a] => [8]", "a:2"))
    assert text.startswith("f32[8/a] => [8]: all_gather a to [8]; 16 B received, ")


def test_dir_shows_the_public_names_only() -> None:
    assert dir(sl) == sorted(sl.__all__)
