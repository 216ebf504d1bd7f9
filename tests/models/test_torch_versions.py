"""What an older torch cannot do is said with a code, and only where it is needed."""

from __future__ import annotations

import pytest
from torch import nn

from shardlang import loads
from shardlang.check.model import check_model
from shardlang.diagnostics import ShardlangError
from shardlang.lower.facts import facts_of
from shardlang.lower.model import LoweredModel, lower_model
from shardlang.runtime import apply


def lowered(module: nn.Module, line: str) -> LoweredModel:
    text = f"mesh m = dp:2\nmodel net on m {{\n  param otherwise : whole\n  {line}\n}}\n"
    return lower_model(check_model(loads(text).declared_model(), facts_of(module)))


def test_fsdp_under_a_torch_without_it_on_the_whole_mesh_is_SL0639(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apply, "mesh_dims", None)
    module = nn.Linear(4, 4)
    with pytest.raises(ShardlangError) as raised:
        apply.group(lowered(module, "fsdp root over dp"), module, None)
    assert raised.value.codes == ("SL0639",)
    apply.group(lowered(module, ""), module, None)  # a model without `fsdp` lines needs no more than torch 2.11
