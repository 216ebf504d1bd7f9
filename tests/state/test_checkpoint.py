"""State of a model in a world of 4: saved without moving a tensor, loaded on other meshes and on one device."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import shardlang as sl
from shardlang.diagnostics import ShardlangError
from shardlang.layout import Dim, Factor, Layout, Pending
from shardlang.mesh import Axis, Mesh
from shardlang.runtime.state import Block, checked, state_dict
from tests.state import runs
from tests.world import Lost, World


@pytest.fixture(scope="module")
def saved(world: World, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A checkpoint of (dp 2, tp 2) with uneven, fused, tied, scalar and integer tensors and AdamW's state."""
    folder = str(tmp_path_factory.mktemp("checkpoint") / "step-12")
    for control, held in world.run(runs.save_run, folder, "2x2"):
        assert control < 60_000 < held
    return folder


@pytest.mark.parametrize("axes", ["tp4", "dp4", "2x2"])
def test_a_checkpoint_loads_on_another_mesh_to_the_bit(world: World, saved: str, axes: str) -> None:
    for wrong, extra, rates, done in world.run(runs.load_run, saved, axes):
        assert wrong == []
        assert extra == {"step": 12, "seed": [1, 2]}
        assert rates == [0.1, 0.2]
        assert done


def test_a_checkpoint_loads_on_one_device_to_the_bit(saved: str) -> None:
    net = runs.Net()
    optimizer = runs.optimizer_of(net, lr=0.5)
    assert sl.load_state(state_dict(net, optimizer), saved)["step"] == 12
    assert runs.differing(state_dict(net, optimizer)) == []
    assert [g["lr"] for g in optimizer.param_groups] == [0.1, 0.2]
    assert net.again.weight is net.norm.weight
    runs.stepped(net, optimizer)


def test_a_model_loads_without_its_optimizer(saved: str) -> None:
    net = runs.Net()
    sl.load_state(state_dict(net), saved)
    assert runs.differing(state_dict(net)) == []


def test_a_full_disk_on_one_rank_is_one_error_on_all_and_loses_nothing(world: World, tmp_path: Path) -> None:
    for codes, wrong in world.run(runs.broken_save_run, str(tmp_path / "c"), "2x2"):
        assert codes == ("SL0756",)
        assert wrong == []


def test_states_that_do_not_fit_are_refused_on_all_ranks_alike(world: World, saved: str) -> None:
    expected = [("SL0752",), ("SL0753",), ("SL0754",), ("SL0750",), ()]
    for found in world.run(runs.mismatch_run, saved, "tp4"):
        assert found == expected


def test_ranks_with_other_states_do_not_save(world: World, tmp_path: Path) -> None:
    assert world.run(runs.disagreeing_run, str(tmp_path / "c"), "2x2") == [("SL0760",)] * 4
    assert not list((tmp_path / "c").glob("*.distcp"))


@pytest.mark.parametrize("dies", [0, 1])
def test_a_rank_that_dies_while_saving_is_named_and_the_checkpoint_before_stays(tmp_path: Path, dies: int) -> None:
    """On every rank, in seconds, though each may wait for 300 in a collective: none waits on a rank that waits."""
    folder = tmp_path / "c"
    with World(4) as world:
        found = world.run(runs.dying_save_run, str(folder), dies, timeout=120, expect_death=True)
    assert isinstance(found.pop(dies), Lost)
    assert [answer[:2] for answer in found] == [(("SL0763",), f"rank {dies} did not come")] * 3
    assert max(answer[2] for answer in found) < 60
    held = {"w": torch.zeros(100), "step": 0}
    sl.load_state(held, folder)
    assert torch.equal(held["w"], torch.arange(100.0))
    assert held["step"] == 1


def one_step() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return model, optimizer


def test_an_object_that_is_not_plain_data_is_refused(tmp_path: Path) -> None:
    model, optimizer = one_step()
    with pytest.raises(ShardlangError) as caught:
        sl.save(state_dict(model, optimizer, extra={"hook": one_step}), tmp_path / "c")
    assert caught.value.codes == ("SL0759",)


def test_an_optimizer_of_other_parameters_is_refused() -> None:
    model, _ = one_step()
    _, foreign = one_step()
    with pytest.raises(ShardlangError) as caught:
        state_dict(model, foreign)
    assert caught.value.codes == ("SL0761",)


def test_optimizer_state_of_another_shape_is_refused() -> None:
    model, optimizer = one_step()
    optimizer.state[model.weight]["row_mean"] = torch.zeros(3)
    with pytest.raises(ShardlangError) as caught:
        state_dict(model, optimizer)
    assert caught.value.codes == ("SL0758",)


def test_a_pending_value_is_refused() -> None:
    layout = Layout(Mesh("m", (Axis("dp", 2),)), (Dim((Factor(3),)),), (Pending("dp", "sum"),))
    with pytest.raises(ShardlangError) as caught:
        checked("g", Block(torch.zeros(3), layout, 0))
    assert caught.value.codes == ("SL0757",)


def test_groups_are_matched_by_the_names_of_their_parameters(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 2)
    one = [{"params": [model.weight], "lr": 0.1}, {"params": [model.bias], "lr": 0.2}]
    sl.save(state_dict(model, torch.optim.SGD(one)), tmp_path)
    turned = torch.optim.SGD([{"params": [model.bias], "lr": 1.0}, {"params": [model.weight], "lr": 1.0}])
    sl.load_state(state_dict(model, turned), tmp_path)
    assert [g["lr"] for g in turned.param_groups] == [0.2, 0.1]
    with pytest.raises(ShardlangError) as caught:
        sl.load_state(state_dict(model, torch.optim.SGD(model.parameters(), lr=1.0)), tmp_path)
    assert caught.value.codes == ("SL0762",)


def test_a_checkpoint_of_torchs_own_state_dict_api_loads(tmp_path: Path) -> None:
    import warnings

    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

    model, optimizer = one_step()
    theirs = {"model": model.state_dict(), "optimizer": get_optimizer_state_dict(model, optimizer)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(theirs, checkpoint_id=tmp_path, no_dist=True)
    again = torch.nn.Linear(3, 2)
    fresh = torch.optim.SGD(again.parameters(), lr=7.0, momentum=0.1)
    sl.load_state(state_dict(again, fresh), tmp_path)
    assert torch.equal(again.weight, model.weight)
    assert fresh.param_groups[0]["momentum"] == 0.9
    momentum = "momentum_buffer"
    assert torch.equal(fresh.state[again.weight][momentum], optimizer.state[model.weight][momentum])


def test_a_flat_dict_of_tensors_is_a_state(tmp_path: Path) -> None:
    sl.save({"a": torch.arange(6.0), "note": "x"}, tmp_path)
    held = {"a": torch.zeros(6), "note": ""}
    sl.load_state(held, tmp_path)
    assert torch.equal(held["a"], torch.arange(6.0))
    assert held["note"] == "x"
