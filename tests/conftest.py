"""Fixtures that every room's tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.world import World


@pytest.fixture(scope="session")
def world() -> Iterator[World]:
    """One world of 4 gloo ranks for the whole session; see ``tests/world.py``."""
    with World(4) as ranks:
        yield ranks
