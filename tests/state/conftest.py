"""A world of six, for trainers and servers in one launch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.world import World


@pytest.fixture(scope="package")
def six() -> Iterator[World]:
    with World(6) as ranks:
        yield ranks
