"""PartitionSpecs as JSON: every device holds what JAX's definition gives it."""

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardlang.diagnostics import ShardlangError
from shardlang.interchange.jax_specs import import_jax
from shardlang.source import Source
from tests.interchange.layouts import indices, layouts

Entry = None | str | list[str]


def imported(mesh: Mapping[str, int], specs: Any, shapes: Any) -> str:
    return import_jax(Source("layouts.json", json.dumps({"mesh": mesh, "specs": specs, "shapes": shapes}))).text


def oracle(
    mesh: Mapping[str, int], spec: Sequence[Entry], shape: Sequence[int], device: int
) -> tuple[tuple[int, ...], ...]:
    """JAX's definition of a NamedSharding, from the mesh's array of devices alone.

    Devices fill the mesh in row-major order. A dim with axes (a, b) is cut into size(a)*size(b) equal blocks; the
    device at coordinates (i, j) of these axes has block i*size(b) + j. Dims beyond the spec are whole.
    """
    coordinates = list(itertools.product(*(range(n) for n in mesh.values())))[device]
    at = dict(zip(mesh, coordinates, strict=True))
    held = []
    for dim, size in enumerate(shape):
        entry = spec[dim] if dim < len(spec) else None
        axes = [] if entry is None else [entry] if isinstance(entry, str) else list(entry)
        block, blocks = 0, 1
        for axis in axes:
            block, blocks = block * mesh[axis] + at[axis], blocks * mesh[axis]
        length = size // blocks
        held.append(tuple(range(block * length, (block + 1) * length)))
    return tuple(held)


@st.composite
def questions(draw: st.DrawFn) -> tuple[dict[str, int], dict[str, list[Entry]], dict[str, tuple[int, ...]]]:
    """A mesh, and some parameters with specs over it whose sizes divide."""
    mesh = {axis: draw(st.integers(1, 3)) for axis in draw(st.permutations(["data", "ranks", "whole"]))}
    specs: dict[str, list[Entry]] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for name in draw(st.lists(st.sampled_from(["w", "b", "0", "1", "2", "10", "k"]), unique=True, min_size=1)):
        rank = draw(st.integers(0, 3))
        free = list(draw(st.permutations(list(mesh))))
        spec: list[Entry] = []
        for _ in range(draw(st.integers(0, rank))):
            taken = [free.pop() for _ in range(draw(st.integers(0, len(free))))]
            spec.append(
                taken[0] if len(taken) == 1 and draw(st.booleans()) else taken or draw(st.sampled_from([None, []]))
            )
        ways = [math.prod(mesh[a] for a in ([e] if isinstance(e, str) else e or [])) for e in spec]
        ways += [1] * (rank - len(spec))
        specs[name] = spec
        shapes[name] = tuple(w * draw(st.integers(1, 3)) for w in ways)
    return mesh, specs, shapes


@settings(deadline=None, max_examples=60)
@given(questions())
def test_every_device_holds_what_jax_gives_it(question: Any) -> None:
    mesh, specs, shapes = question
    text = imported(mesh, {"net": specs}, {"net": {n: list(s) for n, s in shapes.items()}})
    found = layouts(text, {f"net.{n}": s for n, s in shapes.items()})
    for name, shape in shapes.items():
        for device in range(math.prod(mesh.values())):
            assert indices(found[f"net.{name}"], device) == oracle(mesh, specs[name], shape, device), text


def test_two_axes_of_one_dim_are_major_to_minor() -> None:
    mesh = {"a": 2, "b": 2}
    text = imported(mesh, {"w": [["b", "a"], None]}, {"w": [4, 3]})
    assert "param w : [4/b/a 3]" in text
    layout = layouts(text, {"w": (4, 3)})["w"]
    assert [indices(layout, device)[0] for device in range(4)] == [(0,), (2,), (1,), (3,)]


def test_a_spec_may_stand_for_a_subtree_and_lists_of_trees_count_from_zero() -> None:
    specs = {"layers": [{"w": [None, "t"]}, {"w": [None, "t"]}], "head": ["t"]}
    shapes = {"layers": [{"w": [4, 4]}, {"w": [4, 4]}], "head": {"kernel": [4, 2], "bias": [4]}}
    text = imported({"t": 2}, specs, shapes)
    assert text == (
        "mesh mesh = t:2\n\nmodel imported on mesh {\n"
        "  param layers.*.w  : [4 4/t]\n  param head.kernel : [4/t 2]\n  param head.bias   : [4/t]\n}\n"
    )


def test_parameters_of_one_form_share_a_line_only_where_they_share_the_spec() -> None:
    specs = {"h": [{"w": ["t"]}, {"w": ["t"]}, {"w": []}, {"w": ["t"]}], "q": {"a": ["t"], "b": ["t"]}}
    shapes = {"h": [{"w": [2]}] * 4, "q": {"a": [2], "b": [2]}}
    text = imported({"t": 2}, specs, shapes)
    lines = [" ".join(line.split()) for line in text.splitlines() if "param" in line]
    assert lines == [
        "param h.[0..1].w : [2/t]",
        "param h.3.w : [2/t]",
        "param h.2.w : whole",
        "param q.{a,b} : [2/t]",
    ]


GOOD: dict[str, Any] = {"mesh": {"a": 2, "b": 2}, "specs": {"w": ["a"]}, "shapes": {"w": [4]}}
FAULTS: list[tuple[str, dict[str, Any], str]] = [
    ("SL0251", {"mesh": []}, "[]"),
    ("SL0251", {"mesh": {}}, "{}"),
    ("SL0251", {"mesh": {"a": 0}}, "0"),
    ("SL0251", {"mesh": {"a": True}}, "true"),
    ("SL0251", {"mesh": {"a": 2**62, "b": 4}}, '{"a": 4611686018427387904, "b": 4}'),
    ("SL0254", {"mesh": {"2d": 2}}, '"2d"'),
    ("SL0251", {"more": 1}, '"more"'),
    ("SL0251", {"specs": {"w": {"v": []}}}, '{"v": []}'),
    ("SL0251", {"specs": {"w": None}}, "null"),
    ("SL0251", {"specs": {"w": [3]}}, "3"),
    ("SL0251", {"shapes": {"w": [-4]}}, "-4"),
    ("SL0251", {"shapes": {"w": 4}}, "4"),
    ("SL0254", {"specs": {"w/x": ["a"]}, "shapes": {"w/x": [4]}}, '"w/x"'),
    ("SL0254", {"specs": {"root": ["a"]}, "shapes": {"root": [4]}}, '"root"'),
    ("SL0254", {"specs": {"otherwise": ["a"]}, "shapes": {"otherwise": [4]}}, '"otherwise"'),
    ("SL0255", {"specs": {"w": ["a"], "v": []}}, '"v"'),
    ("SL0256", {"specs": {"w": [None, "a"]}}, '[null, "a"]'),
    ("SL0257", {"shapes": {"w": [4], "v": [4]}}, '"v"'),
    ("SL0258", {"specs": {"w": ["?"]}}, '"?"'),
    ("SL0259", {"shapes": {"w": [5]}}, '"a"'),
    ("SL0259", {"specs": {"w": [["a", "b"]]}, "shapes": {"w": [6]}}, '["a", "b"]'),
    ("SL0201", {"specs": {"w": ["c"]}}, '"c"'),
    ("SL0203", {"specs": {"w": ["a", "a"]}, "shapes": {"w": [4, 4]}}, '"a"'),
    ("SL0203", {"specs": {"w": [["a", "a"]]}}, '"a"'),
]


@pytest.mark.parametrize(("code", "change", "place"), FAULTS)
def test_a_fault_of_the_tree_has_its_code_and_place(code: str, change: dict[str, Any], place: str) -> None:
    with pytest.raises(ShardlangError) as caught:
        import_jax(Source("x.json", json.dumps({**GOOD, **change})))
    (fault,) = caught.value.diagnostics
    assert fault.code == code
    assert fault.span is not None
    assert fault.span.text == place


@pytest.mark.parametrize("key", ["mesh", "specs", "shapes"])
def test_a_missing_key_is_named(key: str) -> None:
    with pytest.raises(ShardlangError) as caught:
        import_jax(Source("x.json", json.dumps({k: v for k, v in GOOD.items() if k != key})))
    assert caught.value.codes == ("SL0253",)
