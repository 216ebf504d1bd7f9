"""A checkpoint of any layouts loads under any other to the bit; each rank reads what it needs; torch reads it too."""

from __future__ import annotations

import pickle
import tempfile
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import given, settings
from hypothesis import strategies as st

from shardlang.diagnostics import ShardlangError
from shardlang.layout import Dim, Factor, Layout
from shardlang.mesh import Axis, Mesh
from shardlang.runtime.checkpoint_files import METADATA, SUFFIX, CheckpointReader, CheckpointWriter, read_metadata
from shardlang.runtime.checkpoint_plan import MARK, BlockLoadPlanner, BlockSavePlanner
from shardlang.runtime.simulate import shard
from shardlang.runtime.state import Block
from tests.state.layouts import fused, layouts, meshes
from tests.state.simulated import load_rank, numbered, save_all

GRID = Mesh("grid", (Axis("dp", 2), Axis("tp", 2)))
LINE = Mesh("line", (Axis("tp", 4),))
DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn, torch.uint8]


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_a_checkpoint_loads_under_other_layouts_to_the_bit(data: st.DataObject) -> None:
    first, second = data.draw(meshes(6)), data.draw(meshes(6))
    dtype = data.draw(st.sampled_from(DTYPES))
    source = {f"t{i}": data.draw(layouts(mesh=first)) for i in range(2)}
    target = {key: data.draw(layouts(mesh=second, shape=layout.shape)) for key, layout in source.items()}
    values = {key: numbered(layout.shape, dtype) for key, layout in source.items()}
    with tempfile.TemporaryDirectory() as folder:
        save_all(Path(folder), {key: (values[key], source[key]) for key in source}, {"extra.step": 7})
        for rank in second.ranks:
            found, read = load_rank(Path(folder), {k: (v, dtype) for k, v in target.items()}, rank)
            for key, layout in target.items():
                due = shard(values[key], layout)[rank]
                assert torch.equal(found[key].view(torch.uint8) if due.dim() else found[key], _bytes(due))
            assert read == sum(block.nbytes for block in found.values())


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.uint8) if tensor.dim() else tensor


def test_each_rank_reads_no_more_than_its_block(tmp_path: Path) -> None:
    whole = Layout(GRID, (Dim((Factor(64),)), Dim((Factor(32),))))
    value = numbered((64, 32))
    save_all(tmp_path, {"w": (value, whole)}, {})
    columns = Layout(LINE, (Dim((Factor(64),)), Dim((Factor(32, ("tp",)),))))
    found, read = load_rank(tmp_path, {"w": (columns, torch.float32)}, 3)
    assert torch.equal(found["w"], value[:, 24:])
    assert read == value.nbytes // 4


def test_torch_itself_reads_a_fused_and_uneven_checkpoint(tmp_path: Path) -> None:
    layout = fused(GRID, heads=4, width=3, columns=5, tp="tp", dp="dp")
    value = numbered(layout.shape)
    save_all(tmp_path, {"qkv": (value, layout)}, {"step": 3})
    state = {"qkv": torch.zeros(layout.shape), "step": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.load(state, checkpoint_id=tmp_path, no_dist=True)
    assert torch.equal(state["qkv"], value)
    assert state["step"] == 3


def test_a_checkpoint_that_torch_wrote_loads_by_parts(tmp_path: Path) -> None:
    value = numbered((8, 6))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save({"w": value, "t": value.t()}, checkpoint_id=tmp_path, no_dist=True)
    columns = Layout(LINE, (Dim((Factor(8, ("tp",)),)), Dim((Factor(6),))))
    rows = Layout(LINE, (Dim((Factor(6),)), Dim((Factor(8, ("tp",)),))))
    found, _ = load_rank(tmp_path, {"w": (columns, torch.float32), "t": (rows, torch.float32)}, 2)
    assert torch.equal(found["w"], value[4:6])
    assert torch.equal(found["t"], value.t()[:, 4:6])


def test_a_save_over_a_checkpoint_leaves_only_the_new_files(tmp_path: Path) -> None:
    layout = Layout(GRID, (Dim((Factor(8, ("dp",)),)),))
    save_all(tmp_path, {"w": (numbered((8,)), layout)}, {})
    before = {p.name for p in tmp_path.iterdir()}
    save_all(tmp_path, {"w": (numbered((8,), first=100), layout)}, {})
    after = {p.name for p in tmp_path.iterdir()}
    assert before & after == {METADATA}
    assert len(after) == len(before)
    found, _ = load_rank(tmp_path, {"w": (Layout.whole(Mesh("one", ()), (8,)), torch.float32)}, 0)
    assert torch.equal(found["w"], numbered((8,), first=100))


def test_a_save_that_breaks_off_leaves_the_checkpoint_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = Layout(GRID, (Dim((Factor(8, ("dp",)),)),))
    save_all(tmp_path, {"w": (numbered((8,)), layout)}, {})
    for broken in ("torch.save", "pickle.dump", "pathlib.Path.replace"):
        with monkeypatch.context() as patch:
            patch.setattr(broken, _full_disk)
            with pytest.raises(OSError, match="no space"):
                save_all(tmp_path, {"w": (numbered((8,), first=100), layout)}, {})
        found, _ = load_rank(tmp_path, {"w": (Layout.whole(Mesh("one", ()), (8,)), torch.float32)}, 0)
        assert torch.equal(found["w"], numbered((8,)))


def _full_disk(*_: object, **__: object) -> None:
    raise OSError(28, "no space left on device")


def saved(folder: Path) -> Layout:
    layout = Layout(GRID, (Dim((Factor(8, ("dp",)),)), Dim((Factor(100),))))
    save_all(folder, {"w": (numbered((8, 100)), layout)}, {"step": 1})
    return layout


def load(folder: Path, layout: Layout) -> None:
    for rank in layout.mesh.ranks:
        load_rank(folder, {"w": (layout, torch.float32)}, rank)


def test_a_folder_without_metadata_is_no_checkpoint(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "absent"):
        with pytest.raises(ShardlangError) as caught:
            read_metadata(folder)
        assert caught.value.codes == ("SL0750",)


def test_metadata_that_is_cut_short_or_not_ours_is_refused(tmp_path: Path) -> None:
    saved(tmp_path)
    file = tmp_path / METADATA
    good = file.read_bytes()
    for bad in (b"", good[:50], good[:-5], b"nonsense", pickle.dumps({"a": 1}), pickle.dumps(CheckpointReader)):
        file.write_bytes(bad)
        with pytest.raises(ShardlangError) as caught:
            read_metadata(tmp_path)
        assert caught.value.codes == ("SL0750",)


def test_metadata_that_would_run_code_is_refused(tmp_path: Path) -> None:
    saved(tmp_path)

    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return exec, (f"open({str(tmp_path / 'sprung')!r}, 'w')",)

    (tmp_path / METADATA).write_bytes(pickle.dumps(Trap()))
    with pytest.raises(ShardlangError) as caught:
        read_metadata(tmp_path)
    assert caught.value.codes == ("SL0750",)
    assert not (tmp_path / "sprung").exists()


def test_a_newer_version_is_refused(tmp_path: Path) -> None:
    saved(tmp_path)
    metadata = read_metadata(tmp_path)
    metadata.planner_data[MARK] = {"version": 99}
    (tmp_path / METADATA).write_bytes(pickle.dumps(metadata))
    with pytest.raises(ShardlangError) as caught:
        read_metadata(tmp_path)
    assert caught.value.codes == ("SL0751",)


def test_a_file_cut_short_or_lost_is_found_before_anything_is_read(tmp_path: Path) -> None:
    layout = saved(tmp_path)
    files = sorted(tmp_path.glob(f"*{SUFFIX}"), key=lambda p: p.stat().st_size)
    held = files[-1].read_bytes()
    for text in (held[: len(held) // 2], b""):
        files[-1].write_bytes(text)
        with pytest.raises(ShardlangError) as caught:
            load(tmp_path, layout)
        assert caught.value.codes == ("SL0755",)
    files[-1].unlink()
    with pytest.raises(ShardlangError) as caught:
        load(tmp_path, layout)
    assert caught.value.codes == ("SL0755",)


def test_a_file_outside_the_folder_is_not_read(tmp_path: Path) -> None:
    layout = saved(tmp_path)
    metadata = read_metadata(tmp_path)
    for info in metadata.storage_data.values():
        info.relative_path = "../" + info.relative_path
    (tmp_path / METADATA).write_bytes(pickle.dumps(metadata))
    with pytest.raises(ShardlangError) as caught:
        load(tmp_path, layout)
    assert caught.value.codes == ("SL0750",)


def test_chunks_that_are_not_stored_are_named(tmp_path: Path) -> None:
    layout = saved(tmp_path)
    metadata = read_metadata(tmp_path)
    metadata.state_dict_metadata["w"].chunks.pop()
    (tmp_path / METADATA).write_bytes(pickle.dumps(metadata))
    with pytest.raises(ShardlangError) as caught:
        load(tmp_path, layout)
    assert caught.value.codes == ("SL0764",)


def test_the_planners_serve_torchs_own_save_and_load(tmp_path: Path) -> None:
    layout = Layout.whole(Mesh("one", ()), (4, 3))
    state = {"w": Block(numbered((4, 3)), layout, 0), "step": 5}
    again = {"w": Block(torch.zeros(4, 3), layout, 0), "step": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(state, storage_writer=CheckpointWriter(tmp_path, 0), planner=BlockSavePlanner(), no_dist=True)
        dcp.load(again, storage_reader=CheckpointReader(tmp_path), planner=BlockLoadPlanner(), no_dist=True)
    assert torch.equal(again["w"].local, numbered((4, 3)))
    assert again["step"] == 5
