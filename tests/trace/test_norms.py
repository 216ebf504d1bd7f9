"""Norms over groups and batches: what passes split, what is sent, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from shardlang.diagnostics import ShardlangError
from tests.trace.oracle import check, collectives, reals


def norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
    return F.batch_norm(x, None, None, w, b, training=True)


def test_whole_groups_of_channels_pass_a_group_norm() -> None:
    tensors = [reals(4, 8, 3), reals(8), reals(8, seed=1)]
    made = check(lambda x, w, b: F.group_norm(x, 4, w, b), tensors, ["[n/dp c/tp s]", "[c/tp]", "[c/tp]"])
    assert collectives(made)["forward"] == []
    with pytest.raises(ShardlangError) as caught:
        check(lambda x, w, b: F.group_norm(x, 1, w, b), tensors, ["[n/dp c/tp s]", "[c/tp]", "[c/tp]"])
    assert caught.value.codes == ("SL0502",)


def test_a_batch_norm_in_training_sends_two_numbers_a_channel() -> None:
    tensors = [reals(4, 6, 3), reals(6), reals(6, seed=1)]
    made = check(norm, tensors, ["[n/dp c s]", "[c]", "[c]"], "dp:2")
    assert collectives(made)["forward"] == ["all_reduce dp", "all_reduce dp"]
    sent = [m.forward.bytes_received for m in made.moves if m.forward]
    assert sent == [6 * 8] * 2


def test_a_batch_norm_of_split_channels_sends_nothing() -> None:
    made = check(norm, [reals(4, 6, 3), reals(6), reals(6, seed=1)], ["[n c/tp s]", "[c/tp]", "[c/tp]"], "tp:2")
    assert collectives(made)["forward"] == []


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_batch_norm_of_narrow_numbers_is_summed_wide(dtype: torch.dtype) -> None:
    tensors = [reals(64, 4).to(dtype), reals(4).to(dtype), reals(4).to(dtype)]
    check(norm, tensors, ["[n/dp c]", "[c]", "[c]"], "dp:4", tolerance=0.02)


def test_running_statistics_that_are_arguments_are_not_changed_unseen() -> None:
    def body(x: torch.Tensor, m: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.batch_norm(x, m.detach(), v, training=True)

    with pytest.raises(ShardlangError) as caught:
        check(body, [reals(4, 6), reals(6), reals(6).abs()], ["[n c/tp]", "[c/tp]", "[c/tp]"])
    assert caught.value.codes == ("SL0512",)


def test_strides_of_a_value_that_does_not_lie_in_order_are_refused() -> None:
    with pytest.raises(ShardlangError) as caught:
        check(lambda x: torch.as_strided(x.t(), (6, 4), (4, 1)), [reals(4, 6)], ["[n/dp d]"], auto=True)
    assert caught.value.codes == ("SL0507",)
