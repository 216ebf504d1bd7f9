"""Models that others wrote, their code untouched, train on meshes as on one device: ten steps, every loss and norm, all
gradients of the first and last step, and all weights in the end."""

from __future__ import annotations

import pytest

from tests.models.law import Outcome
from tests.models.real import NAMES, beside_tp_plan, train_real
from tests.world import World

MESHES = ("dp:2 * tp:2", "dp:1 * tp:4")
TOLERANCE = 1e-5
"""Relative; of losses and norms to themselves, of gradients and weights to the greatest element. In float32."""
SECONDS = 240.0
"""For one model on one mesh, on a busy machine; on a quiet one it takes 5 to 10, and the ranks once 10 to import."""

pytestmark = pytest.mark.timeout(SECONDS + 60)


def trained(world: World, name: str, mesh: str) -> Outcome:
    """What the first rank found, all ranks having found the same."""
    found = world.run(train_real, name, mesh, timeout=SECONDS)
    assert all(o.losses == found[0].losses and o.norms == found[0].norms for o in found)
    return found[0]


def holds(found: Outcome) -> bool:
    return found.holds(TOLERANCE) and max(found.worst_gradient, found.worst_weight) <= TOLERANCE


def test_llama_trains_as_on_one_device(world: World) -> None:
    found = trained(world, "llama", "dp:2 * tp:2")
    assert holds(found)
    assert found.losses[-1] < found.losses[0]


@pytest.mark.nightly
@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("name", NAMES)
def test_a_model_trains_as_on_one_device(world: World, name: str, mesh: str) -> None:
    found = trained(world, name, mesh)
    assert holds(found)
    assert len(found.losses) == 10
    assert found.meshes == 1


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["llama", "bert", "t5"])
def test_a_model_trains_alike_where_nothing_of_it_is_compiled(world: World, name: str) -> None:
    found = world.run(train_real, name, "dp:2 * tp:2", 3, True, timeout=SECONDS)
    assert all(holds(o) for o in found)


def test_llama_trains_as_by_transformers_own_tp_plan(world: World) -> None:
    for found in world.run(beside_tp_plan, timeout=SECONDS):
        assert found.pop("split") == 16  # of 21: all weights but the norms are split by their plan
        assert max(found.values()) <= TOLERANCE
