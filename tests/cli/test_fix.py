"""``shardlang check --fix``: the edits that are surely right, in place, and the rest reported."""

from pathlib import Path

from click.testing import CliRunner

from shardlang.cli import main


def fixed(tmp_path: Path, data: bytes) -> tuple[int, bytes]:
    file = tmp_path / "x.shard"
    file.write_bytes(data)
    return CliRunner().invoke(main, ["check", "--no-model", "--fix", str(file)]).exit_code, file.read_bytes()


def test_a_byte_order_mark_goes(tmp_path: Path) -> None:
    assert fixed(tmp_path, b"\xef\xbb\xbfmesh pod = dp:2\n") == (0, b"mesh pod = dp:2\n")


def test_line_ends_stay_as_they_are(tmp_path: Path) -> None:
    data = b"mesh pod = dp:2\r\nfn f(x: [b, s]) -> bfloat16[b]\r\n"
    assert fixed(tmp_path, data) == (0, b"mesh pod = dp:2\r\nfn f(x: [b s]) -> bf16[b]\r\n")


def test_what_no_edit_repairs_is_left(tmp_path: Path) -> None:
    for data in (b"mesh pod = dp:2\nfn f(x: [b/zz]) -> [b]\n", b"mesh p\xff = dp:2\n", b"mesh pod = [\n"):
        assert fixed(tmp_path, data) == (1, data)
