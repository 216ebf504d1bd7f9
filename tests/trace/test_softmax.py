"""Softmax along a split dim: by the greatest and the sum, and nothing else is sent."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.trace.oracle import check, collectives, reals

X = reals(4, 6)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.softmax(x, -1),
        lambda x: torch.log_softmax(x, 1),
        lambda x: F.softmin(x, dim=1),
        lambda x: torch.softmax(x.float(), -1, dtype=torch.float64),
    ],
    ids=["softmax", "log_softmax", "softmin", "with a dtype"],
)
@pytest.mark.parametrize("spec", ["[a/dp b/tp]", "[a b/dp/tp]", "[a b/~tp]"])
def test_softmax_along_a_split_dim_is_that_of_one_device(function: Any, spec: str) -> None:
    tensors = [reals(4, 6) if "dp/tp" not in spec else reals(4, 8)]
    assert check(function, tensors, [spec])


def test_softmax_along_a_split_dim_sends_two_small_reductions_each_way() -> None:
    made = check(lambda x: torch.softmax(x, -1), [X], ["[a/dp b/tp]"])
    sent = collectives(made)
    assert sent["forward"] == ["all_reduce tp", "all_reduce tp"]
    assert set(sent["backward"]) <= {"all_reduce tp"}
    assert len(sent["backward"]) <= 2


def test_softmax_along_a_whole_dim_sends_nothing() -> None:
    assert collectives(check(lambda x: torch.softmax(x, -1), [X], ["[a/dp/tp b]"])) == {"forward": [], "backward": []}


def test_a_half_precision_softmax_is_summed_in_single() -> None:
    made = check(lambda x: torch.softmax(x.bfloat16(), -1).float(), [X.float() * 4], ["[a/dp b/tp]"], tolerance=5e-3)
    assert any("float32" in str(node.args) for node in made.graph.nodes if "to.dtype" in str(node.target))


def test_one_softmax_of_a_vocabulary_that_leaves_a_rank_empty() -> None:
    assert check(lambda x: torch.log_softmax(x, -1), [reals(4, 5)], ["[a b/~tp]"], "tp:4")
