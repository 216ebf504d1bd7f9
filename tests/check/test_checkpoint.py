"""Parameters from the header of a safetensors checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shardlang.check.checkpoint import checkpoint_facts
from shardlang.check.facts import Tensor
from shardlang.diagnostics import ShardlangError


def write(path: Path, header: Any, *, data: bytes = b"") -> str:
    """A file of the format, with just a header (and ``data`` for what it describes)."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return str(path)


def entry(dtype: str, *shape: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [0, 0]}


def test_a_header_gives_names_shapes_and_dtypes(tmp_path: Path) -> None:
    header = {"__metadata__": {"format": "pt"}, "a.w": entry("F32", 4, 8), "a.s": entry("BF16"), "b": entry("U16", 3)}
    found = checkpoint_facts(write(tmp_path / "x.safetensors", header))
    assert found.parameters == {"a.w": Tensor((4, 8), "f32"), "a.s": Tensor((), "bf16"), "b": Tensor((3,), "u16")}
    assert found.modules == ("", "a")
    assert found.shapes_known


def test_a_real_checkpoint_is_read(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    from safetensors.numpy import save_file

    save_file({"w": numpy.arange(6, dtype="int32").reshape(2, 3)}, tmp_path / "x.safetensors")
    assert checkpoint_facts(str(tmp_path / "x.safetensors")).parameters == {"w": Tensor((2, 3), "i32")}


def test_an_index_gathers_the_headers_of_its_files(tmp_path: Path) -> None:
    write(tmp_path / "1.safetensors", {"a": entry("F32", 2), "c": entry("F16", 1)})
    write(tmp_path / "2.safetensors", {"b": entry("F32", 3)})
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"b": "2.safetensors", "a": "1.safetensors"}}))
    assert checkpoint_facts(str(index)).parameters == {"b": Tensor((3,), "f32"), "a": Tensor((2,), "f32")}


def test_an_index_without_its_files_gives_names_alone(tmp_path: Path) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"layers.0.w": "1.safetensors"}}))
    found = checkpoint_facts(str(index))
    assert (list(found.parameters), found.modules, found.shapes_known) == (
        ["layers.0.w"],
        ("", "layers", "layers.0"),
        False,
    )


def test_only_the_header_is_read(tmp_path: Path) -> None:
    path = tmp_path / "big.safetensors"
    write(path, {"w": entry("F32", 1 << 20, 1 << 10)})
    with path.open("r+b") as file:
        file.truncate(1 << 32)
    assert checkpoint_facts(str(path)).parameters["w"].shape == (1 << 20, 1 << 10)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "it does not begin with the length of a header"),
        (b"nonsense", "it does not begin with the length of a header"),
        (b"\x09\0\0\0\0\0\0\0{}", "it ends within its header"),
        (b"\x02\0\0\0\0\0\0\0[]", "its header is no JSON object"),
        (b"\x03\0\0\0\0\0\0\0{a}", "its header is no JSON"),
        (b"\x02\0\0\0\0\0\0\0\xff\xfe", "its header is no JSON"),
        (b'\x07\0\0\0\0\0\0\0{"a":1}', "its entry for `a` has no shape and dtype"),
        (b'\x20\0\0\0\0\0\0\0{"a":{"dtype":"F","shape":[-1]}} ', "its entry for `a` has no shape and dtype"),
    ],
)
def test_what_is_no_checkpoint_is_a_fault(tmp_path: Path, data: bytes, reason: str) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(data)
    with pytest.raises(ShardlangError) as caught:
        checkpoint_facts(str(path))
    (found,) = caught.value.diagnostics
    assert found.code == "SL0614"
    assert found.message.endswith(reason)


@pytest.mark.parametrize("text", ["{}", '{"weight_map": 3}', '{"weight_map": {"a": 3}}', "[", "[" * 100_000])
def test_what_is_no_index_is_a_fault(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.safetensors.index.json"
    path.write_text(text)
    with pytest.raises(ShardlangError) as caught:
        checkpoint_facts(str(path))
    assert caught.value.codes == ("SL0614",)


def test_a_file_that_an_index_names_and_is_missing_is_a_fault(tmp_path: Path) -> None:
    write(tmp_path / "1.safetensors", {"a": entry("F32", 2)})
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"b": "2.safetensors", "a": "1.safetensors"}}))
    with pytest.raises(ShardlangError) as caught:
        checkpoint_facts(str(index))
    assert "2.safetensors" in caught.value.diagnostics[0].message
    index.write_text(json.dumps({"weight_map": {"b": "1.safetensors"}}))
    with pytest.raises(ShardlangError) as caught:
        checkpoint_facts(str(index))
    assert "`b` is not in `1.safetensors`" in caught.value.diagnostics[0].message


def test_a_missing_file_is_a_fault(tmp_path: Path) -> None:
    with pytest.raises(ShardlangError) as caught:
        checkpoint_facts(str(tmp_path / "x.safetensors"))
    assert caught.value.codes == ("SL0614",)
