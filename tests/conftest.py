"""Fixtures that every room's tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.world import World

# How long an example takes says more of the machine's other work than of ours. `make test` draws the same examples each
# time, so that what it says is about the change at hand; `make nightly` (--hypothesis-profile explore) draws others.
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", settings.get_profile("explore"), derandomize=True)
settings.load_profile("same")


@pytest.fixture(scope="session")
def world() -> Iterator[World]:
    """One world of 4 gloo ranks for the whole session; see ``tests/world.py``."""
    with World(4) as ranks:
        yield ranks
