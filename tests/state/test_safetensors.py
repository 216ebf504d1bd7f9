"""Weights in and out of safetensors: what others write loads by slices, what is written others read, on any mesh."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

import shardlang as sl
from shardlang.diagnostics import ShardlangError
from shardlang.layout import Layout
from shardlang.mesh import Mesh
from shardlang.runtime import safetensors_files
from shardlang.runtime.chunks import owned
from shardlang.runtime.state import Block, State, state_dict
from shardlang.runtime.stored_arrays import write_box
from tests.state import runs
from tests.state.layouts import layouts
from tests.state.simulated import numbered
from tests.world import World


def filled() -> runs.Net:
    net = runs.Net()
    runs.fill(state_dict(net))
    return net


def expected() -> dict[str, torch.Tensor]:
    tensors = {k.removeprefix("model."): b.local.clone() for k, b in state_dict(filled()).blocks.items()}
    assert len(tensors) == 8
    return tensors


@settings(deadline=None, max_examples=60)
@given(layouts(), st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.bool]))
def test_the_owned_chunks_of_any_layout_write_the_array(layout: Layout, dtype: torch.dtype) -> None:
    value = numbered(layout.shape, dtype)
    with tempfile.TemporaryFile() as file:
        file.truncate(16 + value.nbytes)
        for rank in layout.mesh.ranks:
            for chunk in owned(layout, rank, 0):
                part = value[tuple(slice(a, b) for a, b in chunk.box)].contiguous()
                write_box(file.fileno(), 16, layout.shape, chunk.box, part)
        file.seek(0)
        assert file.read() == bytes(16) + bytes(value.contiguous().view(-1).view(torch.uint8).tolist())


def test_what_is_written_the_library_reads(tmp_path: Path) -> None:
    sl.save_safetensors(filled(), tmp_path)
    found = load_file(tmp_path / "model.safetensors")
    assert {k: v.dtype for k, v in found.items()} == {k: v.dtype for k, v in expected().items()}
    assert all(torch.equal(found[k], v) for k, v in expected().items())


def test_what_the_library_writes_loads(tmp_path: Path) -> None:
    save_file(expected(), tmp_path / "x.safetensors")
    net = runs.Net()
    sl.load_safetensors(net, tmp_path / "x.safetensors")
    assert runs.differing(state_dict(net)) == []


def test_a_misaligned_file_loads(tmp_path: Path) -> None:
    header = json.dumps({"w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}).encode()
    header += b" " * (-len(header) % 8 + 3)
    value = numbered((2, 3))
    data = bytes(value.view(-1).view(torch.uint8).tolist())
    (tmp_path / "x.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + data)
    held = torch.zeros(2, 3)
    layout = Layout.whole(Mesh("one", ()), (2, 3))
    sl.load_safetensors(State({"w": Block(held, layout, 0)}, {}, (0,), {}), tmp_path / "x.safetensors")
    assert torch.equal(held, value)


@pytest.mark.parametrize("limit", [safetensors_files.FILE_LIMIT, 2000])
def test_ranks_write_their_own_blocks_and_read_them_on_another_mesh(world: World, tmp_path: Path, limit: int) -> None:
    for control, held in world.run(runs.export_run, str(tmp_path), "2x2", limit):
        assert control < 60_000 < held
    files = sorted(p.name for p in tmp_path.iterdir())
    assert ("model.safetensors.index.json" in files) == (limit == 2000)
    found: dict[str, torch.Tensor] = {}
    for file in tmp_path.glob("*.safetensors"):
        found |= load_file(file)
    assert found.keys() == expected().keys()
    assert all(torch.equal(found[k], v) for k, v in expected().items())
    assert world.run(runs.import_run, str(tmp_path), "tp4") == [[]] * 4


def test_an_export_over_another_leaves_only_the_new_files(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    net = filled()
    kept = {"config.json"}
    sl.save_safetensors(net, tmp_path, file_limit=2000)
    first = {p.name for p in tmp_path.iterdir()}
    sl.save_safetensors(net, tmp_path, file_limit=2000)
    second = {p.name for p in tmp_path.iterdir()}
    assert first & second == kept | {"model.safetensors.index.json"}
    assert len(first) == len(second)
    sl.save_safetensors(net, tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == kept | {"model.safetensors"}
    sl.save_safetensors(net, tmp_path, file_limit=2000)
    assert not (tmp_path / "model.safetensors").exists()
    again = runs.Net()
    sl.load_safetensors(again, tmp_path)
    assert runs.differing(state_dict(again)) == []


def test_an_export_that_fails_leaves_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sl.save_safetensors(filled(), tmp_path)
    before = (tmp_path / "model.safetensors").read_bytes()
    monkeypatch.setattr("os.pwrite", _full_disk)
    with pytest.raises(ShardlangError) as caught:
        sl.save_safetensors(runs.Net(), tmp_path)
    assert caught.value.codes == ("SL0756",)
    assert (tmp_path / "model.safetensors").read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["model.safetensors"]


def _full_disk(*_: object) -> int:
    raise OSError(28, "No space left on device")


def codes(model: torch.nn.Module, path: Path, **options: bool) -> tuple[str, ...]:
    try:
        sl.load_safetensors(model, path, **options)
    except ShardlangError as error:
        return error.codes
    return ()


def test_a_wider_model_takes_narrower_weights_and_rounds_only_when_told(tmp_path: Path) -> None:
    narrow, wide = torch.nn.Linear(3, 2, dtype=torch.bfloat16), torch.nn.Linear(3, 2)
    sl.save_safetensors(narrow, tmp_path)
    assert codes(wide, tmp_path) == ()
    assert torch.equal(wide.weight, narrow.weight.float())
    sl.save_safetensors(wide, tmp_path)
    assert set(codes(narrow, tmp_path)) == {"SL0765"}
    assert codes(narrow, tmp_path, convert=True) == ()


def test_names_and_shapes_that_differ_are_refused(tmp_path: Path) -> None:
    sl.save_safetensors(torch.nn.Linear(3, 2), tmp_path)
    assert codes(torch.nn.Linear(3, 2, bias=False), tmp_path) == ("SL0753",)
    assert codes(torch.nn.Linear(3, 2, bias=False), tmp_path, strict=False) == ()
    assert codes(torch.nn.Linear(4, 2), tmp_path) == ("SL0754",)
    assert codes(torch.nn.Sequential(torch.nn.Linear(3, 2)), tmp_path) == ("SL0752", "SL0753")


def test_a_tied_parameter_is_found_under_any_of_its_names(tmp_path: Path) -> None:
    tensors = expected()
    tensors["again.weight"] = tensors.pop("norm.weight")
    save_file(tensors, tmp_path / "model.safetensors")
    net = runs.Net()
    sl.load_safetensors(net, tmp_path)
    assert runs.differing(state_dict(net)) == []


def test_files_that_are_cut_short_are_refused(tmp_path: Path) -> None:
    sl.save_safetensors(torch.nn.Linear(3, 2), tmp_path)
    file = tmp_path / "model.safetensors"
    good = file.read_bytes()
    found = []
    for length in (len(good) - 1, 20, 5, 0):
        file.write_bytes(good[:length])
        found.append(codes(torch.nn.Linear(3, 2), tmp_path))
    assert found == [("SL0755",), ("SL0614",), ("SL0614",), ("SL0614",)]
