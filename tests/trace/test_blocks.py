"""Blocks of networks: values and gradients of one device, with the collectives that one writes by hand."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import pytest

import shardlang as sl
from shardlang.trace.compile import modelled_time
from shardlang.trace.program import LocalProgram
from tests.trace.networks import BERT, LLAMA, bert, bert_tensors, llama, llama_tensors
from tests.trace.oracle import check, collectives


def reshard(x: Any, spec: str) -> Any:
    return sl.reshard(x, spec) if spec else x


def step(body: Any, stay: str, use: str = "") -> Any:
    made = partial(body, reshard=reshard, stay=stay, use=use)
    made.__name__ = body.__name__  # type: ignore[attr-defined]  # a partial has no name of its own
    return made


def count(made: LocalProgram, axis: str = "tp") -> dict[str, dict[str, int]]:
    """How many collectives of each kind go over an axis."""
    return {
        d: dict(Counter(k.split()[0] for k in kinds if axis in k.split()[1].split("/")))
        for d, kinds in collectives(made).items()
    }


def test_llama_with_tensor_parallelism_reduces_twice_a_layer() -> None:
    made = check(step(llama, "[b/dp s d]", "[b/dp s d]"), llama_tensors(), LLAMA, results=["[]"])
    # The embedding, two for the layer, two for the loss; back: two for the layer and one for the head.
    assert count(made) == {"forward": {"all_reduce": 5}, "backward": {"all_reduce": 3}}


def test_llama_with_sequence_parallelism_gathers_and_scatters() -> None:
    made = check(step(llama, "[b/dp s/tp d]", "[b/dp s d]"), llama_tensors(), LLAMA, results=["[]"])
    both = count(made)
    assert both["forward"] == {"reduce_scatter": 3, "all_gather": 3, "all_reduce": 2}
    # Gathers and scatters change places; the three norms' weights are whole and used on a split sequence.
    assert both["backward"] == {"all_gather": 3, "reduce_scatter": 3, "all_reduce": 3}


def test_llama_by_itself_takes_no_more_modelled_time_than_by_hand() -> None:
    made = check(step(llama, ""), llama_tensors(), LLAMA, results=["[]"], auto=True)
    for between in ("[b/dp s d]", "[b/dp s/tp d]"):
        by_hand = check(step(llama, between, "[b/dp s d]"), llama_tensors(), LLAMA, results=["[]"])
        assert modelled_time(made) <= modelled_time(by_hand)


def test_llama_by_the_nearest_ways_has_the_collectives_of_the_one_by_hand() -> None:
    made = check(step(llama, ""), llama_tensors(), LLAMA, results=["[]"], auto="near")
    assert count(made) == {"forward": {"all_reduce": 5}, "backward": {"all_reduce": 3}}


@pytest.mark.parametrize("mesh", ["dp:1 * tp:2", "dp:4 * tp:1", "dp:1 * tp:1"])
def test_llama_on_other_meshes(mesh: str) -> None:
    check(step(llama, "[b/dp s d]", "[b/dp s d]"), llama_tensors(), LLAMA, mesh, results=["[]"])


@pytest.mark.parametrize("mesh", ["dp:2 * tp:2", "dp:1 * tp:4"])
def test_bert_with_fused_projection_biases_and_a_mask(mesh: str) -> None:
    made = check(step(bert, "[b/dp s d]"), bert_tensors(), BERT, mesh, results=["[b/dp s d]"])
    assert count(made) == {"forward": {"all_reduce": 2}, "backward": {"all_reduce": 2}}


def test_one_gradient_reduction_serves_all_uses_of_a_value() -> None:
    def attention_like(x: Any, wq: Any, wk: Any, wv: Any) -> Any:
        return x @ wq, x @ wk, x @ wv

    x, *weights = (t for t in bert_tensors()[:1] + [bert_tensors()[4]] * 3)
    made = check(attention_like, [x, *weights], ["[b s d]", "[d q/tp]", "[d q/tp]", "[d q/tp]"])
    assert collectives(made) == {"forward": [], "backward": ["all_reduce tp"]}


def test_a_gathered_value_that_is_used_split_gets_its_gradient_by_reduce_scatter() -> None:
    def gathered(x: Any, w: Any) -> Any:
        return sl.reshard(x, "[b s d]") @ w

    made = check(gathered, [bert_tensors()[0], bert_tensors()[4]], ["[b s/tp d]", "[d q/tp]"])
    assert collectives(made) == {"forward": ["all_gather tp"], "backward": ["reduce_scatter tp"]}
