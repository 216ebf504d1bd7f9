"""Fused weights, of which each rank holds its own part of every factor: blocks that no chunk is."""

from __future__ import annotations

import pytest

from tests.models import nets
from tests.models.test_law import agree
from tests.world import World

GPT = """
mesh m = {mesh}
let h = 4, k = 4
model g on m {{
  param layers.*.weight     : {weight}
  param layers.*.bias       : [(3 h/tp k)]
  param layers.*.out.weight : [d (h/tp k)]
  param otherwise           : whole
  call root (tokens: [n/dp s]) -> [n/dp s v]
  call layers.* (x: [n/dp s d]) -> [n/dp s d]
  {groups}
}}
"""
AS_ROWS, AS_COLUMNS = "[(3 h/tp k) d]", "[d (3 h/tp k)]"


@pytest.mark.parametrize("groups", ["", "fsdp root over dp", "fsdp layers.* over dp\n  fsdp root over dp"])
@pytest.mark.parametrize("weight", [AS_ROWS, AS_COLUMNS])
def test_fused_weights_train_alike_by_their_own_heads(world: World, weight: str, groups: str) -> None:
    text = GPT.format(mesh="dp:2 * tp:2", weight=weight, groups=groups)
    build = nets.turned_gpt if weight == AS_ROWS else nets.gpt
    found = agree(world, text, build, nets.tokens, nets.next_token)
    assert found.holds()
    over_tp = {t.kind: t.bytes for t in found.sent if t.axes == ("tp",)}
    assert over_tp == {"all_reduce": 4 * 2048}  # into and out of each layer: no weight, no query, key or value moves
