"""Weights to another model's layouts: what arrives is what was there, in rounds that fit, with nothing sent twice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from shardlang.cli import main
from shardlang.diagnostics import ShardlangError
from shardlang.layout import Dim, Factor, Layout
from shardlang.mesh import Axis, Mesh
from shardlang.runtime.simulate import shard
from shardlang.runtime.state import Block, State
from shardlang.runtime.transfer import _agreed, _Side, _side, pack, transfer, unpack
from shardlang.runtime.transfer_plan import TransferPlan, kept, plan_transfer, receives, sends
from tests.state import runs
from tests.state.layouts import layouts, meshes
from tests.state.simulated import numbered
from tests.world import World

DTYPES = [torch.float32, torch.bfloat16, torch.uint8, torch.int64]
CPU = torch.device("cpu")


@st.composite
def moves(draw: st.DrawFn) -> dict[str, tuple[torch.dtype, Layout, Layout]]:
    """A few tensors from one mesh to another, which may share some ranks, all, or none."""
    first = draw(meshes(6))
    second = draw(meshes(6))
    second = Mesh("other", second.axes, second.splits, draw(st.integers(0, 6)))
    found = {}
    for i in range(draw(st.integers(1, 4))):
        source = draw(layouts(mesh=first))
        found[f"t{i}"] = (
            draw(st.sampled_from(DTYPES)), source, draw(layouts(mesh=second, shape=source.shape))
        )  # fmt: skip
    return found


def planned(tensors: dict[str, tuple[torch.dtype, Layout, Layout]], staging: int) -> TransferPlan:
    return plan_transfer({n: (d.itemsize, s, t) for n, (d, s, t) in tensors.items()}, staging)


@settings(deadline=None, max_examples=50)
@given(moves(), st.sampled_from([8, 64, 1 << 20]))
def test_every_rank_gets_its_block_to_the_bit(
    tensors: dict[str, tuple[torch.dtype, Layout, Layout]], staging: int
) -> None:
    plan = planned(tensors, staging)
    source: dict[int, dict[str, Block]] = {}
    target: dict[int, dict[str, Block]] = {}
    for name, (dtype, before, after) in tensors.items():
        for rank, block in shard(numbered(before.shape, dtype), before).items():
            source.setdefault(rank, {})[name] = Block(block, before, rank)
        for rank in after.mesh.ranks:
            local = torch.zeros(after.local_shape(rank), dtype=dtype)
            target.setdefault(rank, {})[name] = Block(local, after, rank)
    total = 0
    for rank in plan.ranks:
        for tensor in plan.tensors:
            own = list(kept(tensor, rank))
            if own:
                unpack(own, pack(own, source[rank], CPU), target[rank])
    for parts in plan.rounds:
        wires = {}
        for rank in plan.ranks:
            given_pieces = sends(parts, rank)
            packed = pack(given_pieces, source.get(rank, {}), CPU)
            at = 0
            for piece in given_pieces:
                wires.setdefault((rank, piece.receiver), []).append(packed[at : at + piece.nbytes])
                at += piece.nbytes
        for rank in plan.ranks:
            pieces = receives(parts, rank)
            arrived = [w for (_, to), held in sorted(wires.items()) if to == rank for w in held]
            unpack(pieces, torch.cat(arrived) if arrived else torch.empty(0, dtype=torch.uint8), target.get(rank, {}))
            total += sum(w.numel() for w in arrived)
    assert total == plan.bytes_moved
    for name, (dtype, _, after) in tensors.items():
        for rank, block in shard(numbered(after.shape, dtype), after).items():
            assert torch.equal(target[rank][name].local, block)


@settings(deadline=None, max_examples=50)
@given(moves(), st.sampled_from([64, 512]))
def test_a_rank_never_packs_more_than_the_bound(
    tensors: dict[str, tuple[torch.dtype, Layout, Layout]], staging: int
) -> None:
    plan = planned(tensors, staging)
    ranks = len(plan.ranks)
    for parts in plan.rounds:
        for rank in plan.ranks:
            packed = sum(p.nbytes for p in [*sends(parts, rank), *receives(parts, rank)])
            # One element to everybody is the least that a round can hold.
            assert packed <= max(staging, 8 * ranks)
            assert packed <= plan.staging_peak


@settings(deadline=None, max_examples=50)
@given(moves())
def test_a_rank_receives_what_it_lacks_and_no_more(tensors: dict[str, tuple[torch.dtype, Layout, Layout]]) -> None:
    plan = planned(tensors, 1 << 20)
    for rank in plan.ranks:
        due = 0
        for dtype, before, after in tensors.values():
            if rank in after.mesh.ranks:
                wanted = torch.zeros(after.shape, dtype=torch.bool)
                _mark(wanted, after, rank, True)
                if rank in before.mesh.ranks:
                    _mark(wanted, before, rank, False)
                due += int(wanted.sum()) * dtype.itemsize
        assert plan.traffic[rank][0] == due


def _mark(held: torch.Tensor, layout: Layout, rank: int, value: bool) -> None:
    index = [torch.tensor([i for a, b in runs for i in range(a, b)], dtype=torch.int64) for runs in layout.runs(rank)]
    if held.dim():
        held[torch.meshgrid(*index, indexing="ij")] = value
    else:
        held.fill_(value)


def test_rounds_are_few_where_they_can_be() -> None:
    line, grid = Mesh("line", (Axis("tp", 4),)), Mesh("grid", (Axis("dp", 2), Axis("tp", 2)))
    rows = Layout(line, (Dim((Factor(64, ("tp",)),)), Dim((Factor(64),))))
    columns = Layout(grid, (Dim((Factor(64),)), Dim((Factor(64, ("tp",)),))))
    tensors = {f"w{i}": (4, rows, columns) for i in range(300)}
    assert plan_transfer(tensors, 1 << 30).collectives == 1
    plan = plan_transfer(tensors, 1 << 20)
    assert plan.collectives <= 2 * plan.bytes_moved / len(plan.ranks) / (1 << 19) + 1
    assert plan.hash == plan_transfer(tensors, 1 << 20).hash != plan_transfer(tensors, 1 << 30).hash


def test_the_plan_says_what_every_rank_receives_and_sends() -> None:
    line = Mesh("line", (Axis("tp", 2),))
    other = Mesh("other", (Axis("tp", 2),), first_rank=2)
    layout = [Layout(m, (Dim((Factor(8, ("tp",)),)),)) for m in (line, other)]
    plan = plan_transfer({"w": (4, *layout)}, 1 << 20)
    assert plan.traffic == {0: (0, 16), 1: (0, 16), 2: (16, 0), 3: (16, 0)}
    assert "rank 2    receives" in str(plan)
    assert plan.to_json()["bytes_moved"] == 32


@pytest.mark.parametrize("serve", ["2x2 to 4", "2x2 to 2 others", "4 to 2x2"])
def test_a_trainers_weights_go_to_a_server_in_bounded_rounds(six: World, serve: str) -> None:
    results = six.run(runs.transfer_run, serve, 4096)
    assert [len(text) for _, text, *_ in results] == [1, 0, 0, 0, 0, 0]
    for wrong, _, _, _, largest, plan in results:
        assert wrong == []
        assert largest <= plan["staging_peak"] <= 4096
        assert plan == results[0][5]
    traffic = {t["rank"]: (t["received"], t["sent"]) for t in results[0][5]["traffic"]}
    for rank, (_, _, received, sent, _, _) in enumerate(results):
        assert (received, sent) == traffic.get(rank, (0, 0))


def test_the_command_prints_the_plan_that_runs(six: World, tmp_path: Path) -> None:
    file = tmp_path / "serve.shard"
    file.write_text(runs.TRANSFER)
    result = CliRunner().invoke(main, ["transfer", str(file), "--staging", "4KiB", "--format", "json"])
    assert result.exit_code == 0, result.output
    planned = json.loads(result.output)
    assert list(planned) == ["trainer => four", "trainer => two"]
    for way in ("2x2 to 4", "2x2 to 2 others"):
        assert six.run(runs.transfer_run, way, 4096)[0][5] == planned[" => ".join(runs.WAYS[way])]
    result = CliRunner().invoke(main, ["transfer", str(file)])
    assert "trainer => two: 7 tensors, 6 ranks" in result.output, result.output


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_file_that_declares_no_transfer_is_told_so(tmp_path: Path, form: str) -> None:
    file = tmp_path / "one.shard"
    file.write_text("mesh a = tp:2\nmodel net on a { param otherwise : whole }")
    result = CliRunner().invoke(main, ["transfer", str(file), "--format", form])
    assert result.exit_code == 1
    assert "SL0772" in result.output
    assert "declares no transfer" in result.output


def test_a_side_on_another_mesh_than_declared_is_refused(six: World) -> None:
    outside = [("SL0771", "SL0635")] * 4
    assert six.run(runs.misplaced_run) == [*outside, ("SL0635",), ("SL0635",)]


def test_models_that_differ_are_refused() -> None:
    with pytest.raises(ShardlangError) as caught:
        transfer(torch.nn.Linear(3, 2), torch.nn.Linear(3, 2, dtype=torch.bfloat16))
    assert set(caught.value.codes) == {"SL0767"}
    with pytest.raises(ShardlangError) as caught:
        transfer(None, torch.nn.Linear(3, 2))
    assert caught.value.codes == ("SL0768",)


def test_one_device_copies_to_itself() -> None:
    one, other = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    plan = transfer(one, other)
    assert torch.equal(one.weight, other.weight)
    assert plan.bytes_moved == 0


def test_sides_that_ranks_see_differently_are_refused() -> None:
    mesh = Mesh("m", (Axis("tp", 2),))
    facts = {"w": ("f32", Layout.whole(mesh, (3,)))}
    side, other = _Side(facts, (0, 1)), _Side({}, (0, 1))
    for reports in ([(side, side), (other, side)], [(side, side), (None, side)]):
        with pytest.raises(ShardlangError) as caught:
            _agreed(reports)
        assert caught.value.codes == ("SL0760",)


def test_a_mesh_of_scattered_ranks_is_refused() -> None:
    mesh = Mesh("m", (Axis("tp", 2),))
    state = State({"w": Block(torch.zeros(3), Layout.whole(mesh, (3,)), 0)}, {}, (0, 2), {})
    with pytest.raises(ShardlangError) as caught:
        _side(state)
    assert caught.value.codes == ("SL0769",)
