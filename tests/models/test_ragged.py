"""The last batch of a run is smaller than the others, and divides by nothing: every row counts once."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor, nn
from torch.nn import functional as F

from tests.models import nets
from tests.models.test_law import agree, llama
from tests.world import World


def last_is_short(step: int) -> dict[str, Tensor]:
    return nets.tokens(step, batch=(8, 8, 5)[step])


def last_is_one_row(step: int) -> dict[str, Tensor]:
    """Less than there are ranks: one of them has none."""
    return nets.tokens(step, batch=(8, 3, 1)[step])


def last_is_short_and_padded(step: int) -> dict[str, Tensor]:
    batch = nets.tokens(step, batch=(8, 6, 3)[step])
    for row in range(len(batch["targets"])):
        batch["targets"][row, row + 1 :] = -100
    return batch


def next_token(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, Any]:
    """Without flattening rows and positions, which DTensor refuses where rows are cut unevenly."""
    logits = model(batch["tokens"]).transpose(1, 2)
    return F.cross_entropy(logits, batch["targets"], reduction="sum"), (batch["targets"] != -100).sum()


@pytest.mark.parametrize("batches", [last_is_short, last_is_one_row, last_is_short_and_padded])
@pytest.mark.parametrize("mesh", ["dp:2 * tp:2", pytest.param("dp:4 * tp:1", marks=pytest.mark.nightly)])
def test_a_ragged_batch_trains_as_on_one_device(world: World, mesh: str, batches: object) -> None:
    text = llama(mesh, dp="~dp")
    text = text.replace("over ~dp", "over dp")
    assert agree(world, text, nets.llama, batches, next_token).holds()
