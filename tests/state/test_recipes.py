"""The recipes in ``examples``: a run that is told to end, or killed, goes on as if nothing had been; weights serve."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.state import runs
from tests.world import Lost, World

STEPS = 4
pytestmark = pytest.mark.timeout(300)  # three worlds are started, one after the other


@pytest.fixture(scope="module")
def curve(world: World, tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of a run without interruption."""
    losses = world.run(runs.recipe_run, str(tmp_path_factory.mktemp("whole")), STEPS, None, timeout=120)
    assert losses == [losses[0]] * 4
    assert len(set(losses[0])) == STEPS
    return losses[0]


def test_a_run_that_is_told_to_end_and_then_killed_goes_on_as_if_nothing_had_been(
    world: World, curve: list[float], tmp_path: Path
) -> None:
    ended = world.run(runs.recipe_run, str(tmp_path), STEPS, (1, signal.SIGTERM))
    assert ended == [curve[:1]] * 4
    killed = world.run(runs.recipe_run, str(tmp_path), STEPS, (2, signal.SIGKILL), timeout=10, expect_death=True)
    assert isinstance(killed[2], Lost)
    again = world.run(runs.recipe_run, str(tmp_path), STEPS, None, timeout=120)
    left = len(again[0])
    assert left >= 2  # the step of the kill was not saved, nor any after it
    assert again == [curve[-left:]] * 4


def test_weights_serve_on_other_ranks(six: World) -> None:
    results = six.run(runs.serve_run, timeout=120)
    assert [lines for _, lines in results] == [1, 0, 0, 0, 0, 0]
    losses = [loss for loss, _ in results]
    assert losses[0] == pytest.approx(losses[4], rel=1e-5)
    assert len(set(losses[:4])) == len(set(losses[4:])) == 1
