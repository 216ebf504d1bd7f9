"""Deliberately wrong rules are caught: each kind of thing that a rule says, said wrongly of several operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from attrs import evolve

import shardlang as sl
from shardlang.diagnostics import ShardlangError
from shardlang.trace.call import Call
from shardlang.trace.rule import Rule, group
from shardlang.trace.rules import RULES, load
from tests.trace.oracle import reals

X, Y, CUBE = reals(4, 6), reals(4, 6, seed=1), reals(4, 2, 6)
Mutation = Callable[[Rule], Rule]


def nothing_is_whole(rule: Rule) -> Rule:
    return evolve(rule, whole=frozenset())


def nothing_is_owed(rule: Rule) -> Rule:
    return evolve(rule, contract=frozenset())


def linear_in_all(rule: Rule) -> Rule:
    return evolve(rule, linear=(frozenset(range(len(rule.inputs))),))


def linear_in_the_first(rule: Rule) -> Rule:
    return evolve(rule, linear=(group(0),))


def literals_stay_global(rule: Rule) -> Rule:
    return evolve(rule, literals=None)


MUTATIONS: list[tuple[str, Mutation, Callable[..., Any], tuple[torch.Tensor, ...]]] = [
    ("aten.cumsum", nothing_is_whole, lambda x: x.cumsum(1), (X,)),
    ("aten.sort", nothing_is_whole, lambda x: x.sort(1).values, (X,)),
    ("aten.flip", nothing_is_whole, lambda x: x.flip(1), (X,)),
    ("aten.roll", nothing_is_whole, lambda x: x.roll(1, 1), (X,)),
    ("aten.cat", nothing_is_whole, lambda x, y: torch.cat([x, y], 1), (X, Y)),
    ("aten.layer_norm", nothing_is_whole, lambda x: F.layer_norm(x, (6,)), (CUBE,)),
    ("aten.argmax", nothing_is_whole, lambda x: x.argmax(1), (X,)),
    ("aten.var", nothing_is_whole, lambda x: x.var(1), (X,)),
    ("aten.tril", nothing_is_whole, lambda x: x.tril(), (X,)),
    ("aten.slice", nothing_is_whole, lambda x: x[:, 1:3], (X,)),
    ("aten.scatter_add", nothing_is_whole, lambda x, y: x.scatter_add(1, torch.ones(4, 6).long(), y), (X, Y)),
    ("aten.matmul", nothing_is_owed, lambda x, w: x @ w, (X, reals(6, 8))),
    ("aten.linear", nothing_is_owed, F.linear, (CUBE, reals(8, 6))),
    ("aten.sum", nothing_is_owed, lambda x: x.sum(1), (X,)),
    ("aten.amax", nothing_is_owed, lambda x: x.detach().amax(1), (X,)),
    ("aten.mul", linear_in_all, lambda x, y: x * y, (X, Y)),
    ("aten.exp", linear_in_the_first, torch.exp, (X,)),
    ("aten.relu", linear_in_the_first, torch.relu, (X,)),
    ("aten.maximum", linear_in_all, torch.maximum, (X, Y)),
    ("aten.view", literals_stay_global, lambda x: x.view(4, 3, 2), (X,)),
    ("aten.expand", literals_stay_global, lambda x: x[:, None].expand(4, 3, 6), (X,)),
]


@pytest.mark.parametrize(
    ("name", "mutation", "function", "tensors"), MUTATIONS, ids=lambda v: getattr(v, "__name__", str(v)[:24])
)
def test_a_rule_that_says_it_wrongly_is_caught(
    name: str, mutation: Mutation, function: Any, tensors: tuple[torch.Tensor, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    load()
    sl.check_rule(None, function, *tensors, tolerance=1e-9)
    right = RULES[name]

    def wrong(call: Call) -> Rule | None:
        rule = right(call)
        return rule if rule is None else mutation(rule)

    monkeypatch.setitem(RULES, name, wrong)
    with pytest.raises(ShardlangError) as caught:
        sl.check_rule(None, function, *tensors, tolerance=1e-9)
    assert caught.value.codes == ("SL0517",)
