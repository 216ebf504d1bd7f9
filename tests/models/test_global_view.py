"""The global view puts three functions of ours in the place of torch's, for as long as it is open."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.functional import cross_entropy, embedding, scaled_dot_product_attention

import shardlang as sl
from tests.models import nets
from tests.models.test_law import agree
from tests.world import World


def found() -> list[Any]:
    """The functions as torch's own Python finds them."""
    return [F.scaled_dot_product_attention, torch.embedding, torch._C._nn.cross_entropy_loss]


def test_torchs_functions_are_back_when_the_last_view_closes() -> None:
    before = found()
    with sl.global_view():
        inside = found()
        with sl.global_view():
            pass
        assert found() == inside
    assert all(a is not b for a, b in zip(before, inside, strict=True))
    assert found() == before


def test_torchs_functions_are_back_after_a_fault() -> None:
    before = found()
    with pytest.raises(KeyError), sl.global_view():
        raise KeyError
    assert found() == before


def test_on_plain_tensors_they_are_torchs() -> None:
    torch.manual_seed(0)
    q = torch.randn(2, 3, 4, 5)
    table, rows, classes = torch.randn(7, 5), torch.tensor([[1, 6, 0]]), torch.tensor([2, 0, 4])
    with sl.global_view():
        assert torch.equal(F.scaled_dot_product_attention(q, q, q), scaled_dot_product_attention(q, q, q))
        assert torch.equal(F.embedding(rows, table), embedding(rows, table))
        assert torch.equal(nn.Embedding.from_pretrained(table)(rows), embedding(rows, table))
        assert torch.equal(F.cross_entropy(q[0, :, 0], classes), cross_entropy(q[0, :, 0], classes))


class Table(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(nets.VOCAB, nets.DIM))

    def forward(self, tokens: Tensor) -> Tensor:
        return embedding(tokens, self.weight)


class ByName(nn.Module):
    """Calls torch's Python functions by names that were imported before the view opened."""

    def __init__(self) -> None:
        super().__init__()
        self.table = Table()
        self.inner = nn.Linear(nets.DIM, 3 * nets.DIM, bias=False)
        self.output = nn.Linear(nets.DIM, nets.VOCAB, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.inner(self.table(tokens))
        q, k, v = (t.unflatten(-1, (4, -1)).transpose(1, 2) for t in x.chunk(3, dim=-1))
        return self.output(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


def entropy_by_name(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, Any]:
    logits = model(batch["tokens"]).flatten(0, 1)
    return cross_entropy(logits, batch["targets"].flatten(), reduction="sum"), batch["targets"].numel()


TEXT = """
mesh m = dp:2 * tp:2
model n on m {
  param table.weight  : [vocab/tp d]
  param inner.weight  : whole
  param output.weight : [vocab/tp d]
  call root (tokens: [batch/dp seq]) -> [batch/dp seq vocab/tp] eager
  call table () -> [batch/dp seq d] eager
}
"""


def test_code_that_imported_them_by_name_trains_alike(world: World) -> None:
    assert agree(world, TEXT, ByName, nets.tokens, entropy_by_name).holds()
