"""Fixtures that every room's tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.world import World

# How long an example takes says more of the machine's other work than of ours.
settings.register_profile("shared", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared")


@pytest.fixture(scope="session")
def world() -> Iterator[World]:
    """One world of 4 gloo ranks for the whole session; see ``tests/world.py``."""
    with World(4) as ranks:
        yield ranks
