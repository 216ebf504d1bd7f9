"""A call takes the program of a former one only where nothing differs that a program depends on."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

import shardlang as sl
from shardlang.diagnostics import ShardlangError
from shardlang.lower import torch_private
from shardlang.mesh import Axis, Mesh
from shardlang.trace.capture import erased
from tests.world import World, torch_mesh

ALONE = Mesh("alone", (Axis("tp", 1),))


@sl.sharded("(x: [b d]) -> [b d]", ALONE)
def scaled(x: torch.Tensor, by: Any) -> torch.Tensor:
    return x * by if isinstance(by, int | float) else x * sum(by)


def test_numbers_that_are_equal_in_python_make_programs_of_their_own() -> None:
    x = torch.arange(4).view(2, 2)
    assert [scaled(x, by).dtype for by in (2, 2.0, True, 2)] == [torch.int64, torch.float32, torch.int64, torch.int64]
    assert [(1 / scaled(torch.ones(1, 1), by)).item() for by in (0.0, -0.0)] == [float("inf"), float("-inf")]


def test_a_list_of_numbers_counts_by_its_members() -> None:
    x = torch.ones(2, 2)
    given = [1, 2]
    assert scaled(x, given).tolist() == [[3.0, 3.0]] * 2
    given.append(3)
    assert scaled(x, given).tolist() == [[6.0, 6.0]] * 2
    assert scaled(x, (1, 2)).tolist() == [[3.0, 3.0]] * 2


def test_an_argument_without_a_hash_is_refused() -> None:
    with pytest.raises(ShardlangError) as caught:
        scaled(torch.ones(2, 2), {1, 2})
    assert caught.value.codes == ("SL0531",)


def test_the_default_dtype_counts() -> None:
    @sl.sharded("(x: [d]) -> [d]", ALONE)
    def shifted(x: torch.Tensor) -> torch.Tensor:
        return x + torch.ones(4)

    x = torch.arange(4)
    assert shifted(x).dtype == torch.float32
    torch.set_default_dtype(torch.float64)
    try:
        assert shifted(x).dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert shifted(x).dtype == torch.float32


def test_whether_a_module_is_in_training_counts() -> None:
    drop = nn.Dropout(0.5)

    @sl.sharded("(x: [d]) -> [d]", ALONE)
    def dropped(x: torch.Tensor) -> torch.Tensor:
        kept: torch.Tensor = drop(x)
        return kept

    x = torch.ones(64)
    assert dropped(x).eq(0).any()
    drop.eval()
    assert dropped(x).equal(x)
    drop.train()
    assert dropped(x).eq(0).any()


def test_what_a_first_call_in_inference_mode_makes_serves_training() -> None:
    @sl.sharded("(x: [b d]) -> [b d]", ALONE)
    def weighed(x: torch.Tensor) -> torch.Tensor:
        return x * torch.arange(4.0)

    with torch.inference_mode():
        weighed(torch.ones(2, 4))
    x = torch.ones(2, 4, requires_grad=True)
    weighed(x).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [[0.0, 1.0, 2.0, 3.0]] * 2
    with torch.no_grad():
        assert not weighed(x).requires_grad
    assert weighed(x).requires_grad
    assert not weighed(x.detach()).requires_grad
    assert weighed(x.detach().requires_grad_()).requires_grad


def test_a_plain_tensor_counts_as_it_is_now() -> None:
    @sl.sharded("(x: [b d]) -> [b d]", ALONE)
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return x * torch.full((x.shape[0], 1), 2, dtype=x.dtype)

    x = torch.ones(2, 4)
    assert doubled(x).shape == (2, 4)
    x.resize_(3, 4).fill_(1)
    assert doubled(x).equal(torch.full((3, 4), 2.0))
    x.data = torch.ones(5, 4, dtype=torch.float64)
    assert doubled(x).equal(torch.full((5, 4), 2.0, dtype=torch.float64))


def by_autocast() -> list[bool]:
    """The same function in and out of autocast, with what is rewritten where it is split, beside one device."""
    mesh = torch_mesh((2, 2), ("dp", "tp"))
    torch.manual_seed(0)
    x, w, v = torch.randn(8, 16), torch.randn(16, 8), torch.randn(8, 6)
    aims = torch.randint(0, 8, (8,))

    def body(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor, t: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = F.layer_norm(x @ w, (8,)) + torch.softmax(x @ w, -1)
        return sl.reshard(F.silu(h) @ v, "[b/dp f]"), F.cross_entropy(x @ w, t)

    signature = "(x: [b/dp d], w: [d k/tp], v: [k/tp f], t: [b/dp]) -> ([b/dp f], [])"
    compiled = sl.sharded(signature, mesh, auto=True)(body)
    split = [[Shard(0), Replicate()], [Replicate(), Shard(1)], [Replicate(), Shard(0)], [Shard(0), Replicate()]]
    found = []
    for dtype in (None, torch.bfloat16, None):
        placed = [distribute_tensor(t, mesh, p) for t, p in zip((x, w, v, aims), split, strict=True)]
        for t in placed[:3]:
            t.requires_grad_()
        alone = [t.clone().requires_grad_() for t in (x, w, v)]
        with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
            made = compiled(*placed)
            with erased():
                due = body(*alone, aims)
        (made[0].sum() + made[1]).full_tensor().backward()
        (due[0].sum() + due[1]).backward()
        near = {"rtol": 1e-5, "atol": 1e-5} if dtype is None else {"rtol": 0.1, "atol": 0.1}
        for got, want in zip(made, due, strict=True):
            found.append(got.dtype == want.dtype and torch.allclose(got.full_tensor(), want, **near))
        for given, whole in zip(placed[:3], alone, strict=True):
            assert isinstance(given.grad, DTensor)
            assert whole.grad is not None
            found.append(torch.allclose(given.grad.full_tensor(), whole.grad, **near))
    return found


def test_autocast_counts_and_casts_what_it_casts_on_one_device(world: World) -> None:
    assert world.run(by_autocast) == [[True] * 15] * 4


def test_autocast_inside_a_body_is_refused() -> None:
    @sl.sharded("(x: [b d]) -> [b d]", ALONE)
    def product(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return x @ x

    with pytest.raises(ShardlangError) as caught:
        product.program_for(torch.ones(4, 4))
    assert caught.value.codes == ("SL0530",)
    assert caught.value.diagnostics[0].span is not None
    assert not torch.is_autocast_enabled("cpu")


def test_autocast_that_changes_nothing_may_be_switched_inside() -> None:
    @sl.sharded("(x: [b d]) -> [b d]", ALONE)
    def product(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            return x @ x

    x = torch.eye(4)
    assert product(x).equal(x)
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(ShardlangError) as caught:
        product(x)
    assert caught.value.codes == ("SL0530",)


def records() -> list[Any]:
    """A function of DTensors after one of their records was changed: whole, split, in place, made anew."""
    mesh = torch_mesh((4,), ("tp",))

    @sl.sharded("(x: [b d], w: [d f], v: [f]) -> [b f]", mesh, auto=True)
    def net(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return x @ w * v

    numbers = torch.arange(64.0).view(8, 8)
    x, w, v = (distribute_tensor(t, mesh, [Replicate()]) for t in (numbers, numbers.t().contiguous(), numbers[0]))
    due = numbers @ numbers.t() * numbers[0]
    found: list[Any] = []

    def holds(due: torch.Tensor = due) -> None:
        """Twice, so that the second is found again."""
        found.append(all(net(x, w, v).full_tensor().equal(due) for _ in range(2)))

    holds()
    w = distribute_tensor(numbers.t().contiguous(), mesh, [Shard(1)])
    holds()
    x = DTensor.from_local(numbers / 4, mesh, [Partial()], run_check=False)
    holds()
    x = DTensor.from_local(numbers.clone(), mesh, [Replicate()], run_check=False)
    holds()
    # Another record and block in the same tensor, as in-place operators of DTensor set them.
    rows = distribute_tensor(numbers, mesh, [Shard(0)])
    x._local_tensor = rows.to_local()  # type: ignore[attr-defined]  # what no public call does
    x._spec = torch_private.spec_of(rows)  # type: ignore[attr-defined]
    holds()
    # A record changed in place: by itself, and with its hash asked for in between.
    for asked in (False, True):
        v = distribute_tensor(numbers[0], mesh, [Shard(0)])
        holds()
        spec = torch_private.spec_of(v)
        spec.placements, spec.shard_order = (Replicate(),), ()
        v._local_tensor = numbers[0].clone()  # type: ignore[attr-defined]
        if asked:
            hash(spec)
        holds()
    # Layers with weights of their own, each found again by its own.
    weights = [distribute_tensor(numbers[i].clone(), mesh, [Shard(0) if i % 2 else Replicate()]) for i in range(8)]
    for _ in range(2):
        for i, one in enumerate(weights):
            found.append(net(x, w, one).full_tensor().equal(numbers @ numbers.t() * numbers[i]))
    return found


def test_a_record_that_changed_is_not_taken_for_what_it_was(world: World) -> None:
    assert world.run(records) == [[True] * 25] * 4


def test_records_that_say_the_same_are_found_without_looking_at_them_all() -> None:
    """What the records of one call are compared by: identity, then, for a few, what they say."""
    from shardlang.runtime.recent import FEW, Recent

    class Record:
        def __init__(self, says: int) -> None:
            self.says = says
            self._hash: int | None = None
            self.compared = 0

        def __hash__(self) -> int:
            self._hash = hash(self.says)
            return self._hash

        def __eq__(self, other: object) -> bool:
            self.compared += 1
            return isinstance(other, Record) and self.says == other.says

    class Given:
        def __init__(self, says: int) -> None:
            self._spec = Record(says)

    recent = Recent()
    given = [Given(i) for i in range(100)]
    found = object()
    recent.keep(given, "rest", found)
    assert recent.find(given, "rest") is found
    assert sum(g._spec.compared for g in given) == 0
    assert recent.find(given, "other") is None
    assert recent.find(given[:-1], "rest") is None
    few = [Given(i) for i in range(FEW)] + given[FEW:]
    assert recent.find(few, "rest") is found
    assert recent.find([Given(-1), *given[1:]], "rest") is None
    assert recent.find([Given(i) for i in range(100)], "rest") is None
    changed = copy.copy(given)
    given[50]._spec.says, given[50]._spec._hash = 7, None
    assert recent.find(changed, "rest") is None
    hash(given[50]._spec)
    assert recent.find(changed, "rest") is None
