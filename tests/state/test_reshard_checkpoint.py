"""Checkpoints written anew by one process: the same tensors, the ranks' own files, each byte read once."""

from __future__ import annotations

import json
import tempfile
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

import shardlang as sl
from shardlang.cli import main
from shardlang.layout import Layout
from shardlang.mesh import Axis, Mesh
from shardlang.runtime.checkpoint_files import read_metadata
from shardlang.runtime.reshard_checkpoint import open_checkpoint, write_checkpoint
from shardlang.runtime.simulate import shard
from shardlang.runtime.state import state_dict
from tests.state import runs
from tests.state.layouts import layouts, meshes
from tests.state.simulated import load_rank, numbered, save_all

SERVE = """
mesh serve = tp:4
mesh grid = dp:2 * tp:2
model net on serve {
  param up.weight   : [f/~tp d]
  param big.weight  : [n m/tp]
  param qkv         : [(3 kv/tp 3) c]
  param otherwise   : whole
}
model stored on grid {
  param big.weight  : [n/tp m]
  param otherwise   : whole
  fsdp root over dp
}
"""


def ran(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["reshard-checkpoint", *map(str, arguments)])
    return result.exit_code, result.output


def trained(folder: Path) -> runs.Net:
    net = runs.Net()
    optimizer = runs.optimizer_of(net)
    runs.stepped(net, optimizer)
    state = state_dict(net, optimizer, extra={"step": 3})
    runs.fill(state)
    sl.save(state, folder)
    return net


def loaded(folder: Path) -> list[str]:
    """What differs after a checkpoint is loaded on one device."""
    net = runs.Net()
    optimizer = runs.optimizer_of(net)
    assert sl.load_state(state_dict(net, optimizer), folder) == {"step": 3}
    return runs.differing(state_dict(net, optimizer))


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_any_layouts_become_any_others_and_each_byte_is_read_once(data: st.DataObject) -> None:
    first, second = data.draw(meshes(6)), data.draw(meshes(6))
    source = {f"t{i}": data.draw(layouts(mesh=first)) for i in range(2)}
    target = {key: data.draw(layouts(mesh=second, shape=layout.shape)) for key, layout in source.items()}
    values = {key: numbered(layout.shape) for key, layout in source.items()}
    staging = data.draw(st.sampled_from([16, 1 << 20]))
    with tempfile.TemporaryDirectory() as folder:
        before, after = Path(folder) / "before", Path(folder) / "after"
        save_all(before, {key: (values[key], source[key]) for key in source}, {"extra.step": 7})
        opened = open_checkpoint(before)
        report = write_checkpoint(opened, target, after, staging)
        size = sum(v.nbytes for v in values.values())
        assert (report.bytes_read, report.bytes_written) == (size, size)
        assert report.largest_piece <= staging
        for rank in second.ranks:
            found, _ = load_rank(after, {k: (v, torch.float32) for k, v in target.items()}, rank)
            assert all(torch.equal(found[k], shard(values[k], target[k])[rank]) for k in target)


def test_a_trained_checkpoint_is_written_for_a_serving_mesh(tmp_path: Path) -> None:
    trained(tmp_path / "in")
    (tmp_path / "serve.shard").write_text(SERVE)
    code, output = ran(tmp_path / "in", tmp_path / "out", "--to", f"{tmp_path / 'serve.shard'}:net")
    assert code == 0, output
    assert "for 4 ranks of `serve` (tp:4)" in output
    assert loaded(tmp_path / "out") == []
    chunks = read_metadata(tmp_path / "out").state_dict_metadata["model.qkv"].chunks
    assert sorted(c.offsets[0] for c in chunks) == list(range(0, 36, 3))
    moment = read_metadata(tmp_path / "out").state_dict_metadata["optimizer.state.big.weight.exp_avg"].chunks
    assert [tuple(c.sizes) for c in moment] == [(200, 40)] * 4


def test_stored_layouts_are_cut_as_fsdp_does(tmp_path: Path) -> None:
    trained(tmp_path / "in")
    (tmp_path / "serve.shard").write_text(SERVE)
    code, output = ran(
        tmp_path / "in", tmp_path / "out", "--to", f"{tmp_path / 'serve.shard'}:stored", "--format", "json"
    )
    assert code == 0, output
    assert json.loads(output)["files_written"] == 4
    chunks = read_metadata(tmp_path / "out").state_dict_metadata["model.big.weight"].chunks
    assert sorted(tuple(c.sizes) for c in chunks) == [(50, 160)] * 4
    assert loaded(tmp_path / "out") == []


def test_a_mesh_alone_spreads_what_is_stored(tmp_path: Path) -> None:
    trained(tmp_path / "in")
    (tmp_path / "mesh.shard").write_text("mesh pod = a:3")
    code, output = ran(tmp_path / "in", tmp_path / "out", "--to", tmp_path / "mesh.shard", "--staging", "1KiB")
    assert code == 0, output
    assert "the largest piece 640 B" in output  # one row of 160 columns
    assert loaded(tmp_path / "out") == []


def test_a_checkpoint_is_written_over_itself(tmp_path: Path) -> None:
    trained(tmp_path / "in")
    (tmp_path / "mesh.shard").write_text("mesh pod = a:3")
    code, output = ran(tmp_path / "in", tmp_path / "in", "--to", tmp_path / "mesh.shard")
    assert code == 0, output
    assert loaded(tmp_path / "in") == []


def test_safetensors_go_in_and_out(tmp_path: Path) -> None:
    net = trained(tmp_path / "in")
    code, output = ran(tmp_path / "in", tmp_path / "out", "--as", "safetensors")
    assert code == 0, output
    assert "left out" in output
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert torch.equal(found["qkv"], net.qkv)
    (tmp_path / "serve.shard").write_text(SERVE)
    save_file(found, tmp_path / "theirs.safetensors")
    code, output = ran(tmp_path / "theirs.safetensors", tmp_path / "back", "--to", f"{tmp_path / 'serve.shard'}:net")
    assert code == 0, output
    again = runs.Net()
    sl.load_state(state_dict(again), tmp_path / "back")
    assert runs.differing(state_dict(again)) == []


def test_a_checkpoint_of_torchs_is_read_by_parts_where_it_can_be(tmp_path: Path) -> None:
    value = numbered((8, 6))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save({"w": value, "t": value.t(), "step": 4}, checkpoint_id=tmp_path / "in", no_dist=True)
    opened = open_checkpoint(tmp_path / "in")
    assert not opened.tensors["w"].arrays[0]().pickled
    assert opened.tensors["t"].arrays[0]().pickled
    mesh = Mesh("m", (Axis("a", 3),))
    held = {"w": Layout.whole(mesh, (8, 6)), "t": Layout.whole(mesh, (6, 8))}
    report = write_checkpoint(opened, held, tmp_path / "out", 64)
    assert report.bytes_read == 2 * value.nbytes
    found, _ = load_rank(tmp_path / "out", {k: (v, torch.float32) for k, v in held.items()}, 0)
    assert torch.equal(found["w"], value)
    assert torch.equal(found["t"], value.t())


@pytest.mark.parametrize(
    ("text", "name", "code"),
    [
        ("mesh m = a:2\nmodel net on m { param up.weght : whole }", "", "SL0601"),
        ("mesh m = a:?\nmodel net on m { param otherwise : whole }", "", "SL0316"),
        ("mesh m = a:2\nmodel net on m { param otherwise : whole }", ":other", "SL0224"),
        ("mesh m = a:2\nmodel net on m { param up.weight : [f/a d]\n param otherwise : whole }", "", "SL0302"),
    ],
)
def test_what_does_not_fit_is_refused_and_writes_nothing(tmp_path: Path, text: str, name: str, code: str) -> None:
    trained(tmp_path / "in")
    (tmp_path / "serve.shard").write_text(text)
    status, output = ran(tmp_path / "in", tmp_path / "out", "--to", f"{tmp_path / 'serve.shard'}{name}")
    assert status == 1
    assert f"[{code}]" in output
    assert "Traceback" not in output
    assert not (tmp_path / "out").exists()


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    sl.save(state_dict(torch.nn.Linear(3, 2)), tmp_path / "in")
    (tmp_path / "m.shard").write_text(
        "mesh m = a:2\nmodel net from examples.llama.model:build on m { param otherwise : whole }"
    )
    status, output = ran(tmp_path / "in", tmp_path / "out", "--to", tmp_path / "m.shard")
    assert (status, "[SL0752]" in output) == (1, True), output


def test_usage_is_told(tmp_path: Path) -> None:
    assert ran(tmp_path, tmp_path / "out")[0] == 2
    assert ran(tmp_path, tmp_path / "out", "--as", "safetensors", "--staging", "much")[0] == 2
    status, output = ran(tmp_path / "absent", tmp_path / "out", "--as", "safetensors")
    assert (status, "[SL0750]" in output) == (1, True), output
