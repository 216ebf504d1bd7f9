"""``sl.reshard``: the five classic transitions, what comes out, gradients, and what is refused."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard

import shardlang as sl
from tests.world import World, torch_mesh

CLASSICS = {
    "all_gather": ([Shard(0)], "[n d]", [Replicate()]),
    "all_to_all": ([Shard(0)], "[n d/tp]", [Shard(1)]),
    "chunk": ([Replicate()], "[n/tp d]", [Shard(0)]),
    "all_reduce": ([Partial()], "[n d]", [Replicate()]),
    "reduce_scatter": ([Partial()], "[n/tp d]", [Shard(0)]),
}


def square() -> Any:
    return torch_mesh((2, 2), ("a", "b"))


def classic() -> list[str]:
    mesh = torch_mesh((4,), ("tp",))
    value = torch.arange(96.0).view(8, 12)
    wrong = []
    for name, (placements, spec, expected) in CLASSICS.items():
        if placements == [Partial()]:
            x = DTensor.from_local(value * (dist.get_rank() - 1) / 2, mesh, placements)
        else:
            x = distribute_tensor(value, mesh, placements)
        y = sl.reshard(x, spec)
        checks = [
            type(y) is DTensor, list(y.placements) == expected, y.shape == value.shape, y.stride() == value.stride(),
            torch.equal(y.full_tensor(), value),
            y.to_local().untyped_storage().data_ptr() != x.to_local().untyped_storage().data_ptr(),
        ]  # fmt: skip
        if not all(checks):
            wrong.append(f"{name} {checks}")
    return wrong


def test_the_five_classic_transitions(world: World) -> None:
    assert world.run(classic) == [[]] * 4


def gradients() -> list[str]:
    mesh = square()
    value = torch.arange(40.0).view(8, 5)
    weight = torch.arange(40.0).view(8, 5).flip(0) + 1
    wrong = []
    for spec in ["[n d]", "[n/a/b d]", "[n/b d/~a]", "[n d/~b]", "[n/a d]", "[n d]{+a}", "[n/b d]{avg a}"]:
        for placements in [
            [Replicate(), Replicate()],
            [Shard(0), Shard(0)],
            [Shard(1), Replicate()],
            [Shard(1), Shard(0)],
        ]:
            x = distribute_tensor(value, mesh, placements).requires_grad_()
            y = sl.reshard(x, spec)
            z = (sl.reshard(y, "[n d]") ** 3 * distribute_tensor(weight, mesh, [Replicate()] * 2)).sum()
            (first,) = torch.autograd.grad(z.full_tensor(), x, create_graph=True)
            (second,) = torch.autograd.grad((first**2).sum().full_tensor(), x)
            dense = value.clone().requires_grad_()
            (one,) = torch.autograd.grad((dense**3 * weight).sum(), dense, create_graph=True)
            (two,) = torch.autograd.grad((one**2).sum(), dense)
            if not torch.allclose(first.full_tensor(), one) or not torch.allclose(second.full_tensor(), two):
                wrong.append(f"{placements} {spec}")
    return wrong


def test_gradients_and_their_gradients_are_those_of_one_device(world: World) -> None:
    assert world.run(gradients) == [[]] * 4


def plain() -> tuple[Any, ...]:
    mesh = square()
    value = torch.arange(40.0).view(8, 5)
    rank = dist.get_rank()
    block = value.chunk(4)[rank].clone().requires_grad_()
    whole = sl.reshard(block, "[n d] grad [n d]", mesh, source="[n/a/b d]")
    (whole * value).sum().backward()
    assert block.grad is not None
    apart = value.clone().requires_grad_()
    used = sl.reshard(apart, "[n d] grad {+a}", mesh, source="[n d]")
    total = sl.reshard(used * (rank // 2 + 1), "[n d] grad [n d]", mesh, source="[n d]{+a}")
    total.sum().backward()
    assert apart.grad is not None
    return (
        torch.equal(whole, value),
        torch.equal(block.grad, value.chunk(4)[rank]),
        torch.equal(apart.grad, torch.full((8, 5), 3.0)),
    )


def test_plain_blocks_move_and_their_gradients_follow_the_specs(world: World) -> None:
    assert world.run(plain) == [(True, True, True)] * 4


def unsaid() -> list[str]:
    """A block that becomes whole leaves the global view: what its gradient is must be said, if there is to be one."""
    mesh = square()
    block = torch.ones(4, 5).requires_grad_()
    codes = []
    for spec, source in (
        ("[n d]", "[n/a d]"),
        ("[n d]", "[n d]{+a}"),
        ("[n/a d]", "[n/b d]"),
        ("[n d/~a]", "[n/a d]"),
        ("[n d] grad {+a}", "[n/a d]"),
        ("[n/b d]", "[n d]"),
    ):
        try:
            sl.reshard(block, spec, mesh, source=source)
            codes.append("")
        except sl.ShardlangError as error:
            codes.append(error.codes[0])
        with torch.no_grad():
            sl.reshard(block, spec, mesh, source=source)
    try:
        sl.reshard_many([block], ["[n d]"], mesh, ["[n/a d]"])
    except sl.ShardlangError as error:
        codes.append(error.codes[0])
        codes += [h for h in error.diagnostics[0].helps if "differently" in h]
    return codes


def test_a_bare_block_that_becomes_whole_must_say_its_gradient(world: World) -> None:
    help_ = "write `[8 5] grad {+a}` where ranks use it differently"
    assert world.run(unsaid) == [["SL0711", "SL0711", "SL0711", "", "", "", "SL0711", help_]] * 4


def parts_of_values() -> tuple[Any, ...]:
    mesh = square()
    grads: list[Any] = []
    for spec in ("[n]{+a}", "[n]{avg a}", "[n]{avg a} grad {+b}", "[n]{max a}"):
        block = torch.arange(6.0).requires_grad_()
        value = sl.reshard(sl.from_local(block, spec, mesh), "[n]").to_local()
        try:
            value.sum().backward()
            grads.append(block.grad.tolist()[0])  # type: ignore[union-attr]
        except sl.ShardlangError as error:
            grads.append(error.codes[0])
    return tuple(grads)


def test_a_part_of_an_average_has_its_share_of_the_gradient(world: World) -> None:
    answers = world.run(parts_of_values)
    assert [a[:2] for a in answers] == [(1.0, 0.5)] * 4
    # Pending over b: the rank at 0 keeps the gradient, the other holds zero.
    assert [a[2] for a in answers] == [0.5, 0.0, 0.5, 0.0]
    assert [a[3] for a in answers] == ["SL0405"] * 4


def handles() -> tuple[Any, ...]:
    mesh = square()
    value = torch.arange(24.0).view(12, 2)
    x = distribute_tensor(value, mesh, [Shard(0), Replicate()]).requires_grad_()
    fused = sl.reshard(x, "[(3 k/a/b) d]")
    swapped = sl.reshard(fused, "[n/b/a d]")
    back = sl.reshard(swapped, "[n/a/b d]")
    (back * distribute_tensor(value, mesh, [Shard(0), Shard(0)])).sum().backward()
    own = torch.cat([value[4 * i + dist.get_rank() : 4 * i + dist.get_rank() + 1] for i in range(3)])
    return (
        type(fused) is sl.ShardTensor, torch.equal(fused.to_local(), own), torch.equal(fused.full_tensor(), value),
        torch.equal(back.full_tensor(), value), torch.equal(x.grad.full_tensor(), value),
    )  # fmt: skip


def test_layouts_that_torch_cannot_say_are_handles(world: World) -> None:
    assert world.run(handles) == [(True,) * 5] * 4


def options() -> tuple[Any, ...]:
    mesh = square()
    value = torch.arange(64.0).view(8, 8)
    x = distribute_tensor(value, mesh, [Shard(0), Shard(1)])
    flying = sl.reshard(x, "[n/b d/a]", async_op=True)
    swapped = flying.wait()
    room = torch.empty(2, 8)
    y = sl.reshard(x, "[n/a/b d]", out=room)
    same = sl.reshard(x, "[n/a d/b]")
    shared = sl.reshard(x, "[n/a d/b]", alias=True)
    storage = x.to_local().untyped_storage().data_ptr()
    return (
        torch.equal(swapped.full_tensor(), value), y is room, torch.equal(room, value.chunk(4)[dist.get_rank()]),
        same.to_local().untyped_storage().data_ptr() != storage,
        shared.to_local().untyped_storage().data_ptr() == storage,
    )  # fmt: skip


def test_async_out_and_alias(world: World) -> None:
    assert world.run(options) == [(True,) * 5] * 4


def flattened() -> list[bool]:
    """A flattened mesh turns on a merge in torch that loses rows; ours has nothing to do with it."""
    answers = []
    for sizes, shape, start, target in [
        ((2, 2), (5, 3), [Shard(0)] * 2, "[n d]"),
        ((1, 2), (5, 3), [Shard(1)] * 2, "[n d]"),
        ((2, 2), (5, 7), [Shard(0)] * 2, "[n d/~b]"),
        ((2, 2), (5, 7), [Shard(0)] * 2, "[n/~b d]"),
    ]:
        mesh = init_device_mesh("cpu", sizes, mesh_dim_names=("a", "b"))
        mesh._flatten("ab")
        if dist.get_rank() < sizes[0] * sizes[1]:
            value = torch.arange(shape[0] * shape[1]).view(shape)
            local = value
            for coordinate, size, p in zip(mesh.get_coordinate() or (), sizes, start, strict=True):
                chunks = local.chunk(size, p.dim)
                local = chunks[coordinate] if coordinate < len(chunks) else local.narrow(p.dim, 0, 0)
            x = DTensor.from_local(local, mesh, start, shape=value.shape, stride=value.stride())
            y = sl.reshard(sl.reshard(x, target), "[n d]")
            answers.append(torch.equal(y.to_local(), value))
    return answers


def test_uneven_rows_survive_a_flattened_mesh(world: World) -> None:
    assert all(all(answers) for answers in world.run(flattened))


def refusals() -> list[str]:
    mesh = square()
    x = distribute_tensor(torch.ones(8, 8), mesh, [Shard(0), Replicate()])
    odd = DTensor.from_local(torch.ones(3), mesh, [_StridedShard(0, split_factor=n) for n in (2, 3)])
    codes = []
    for attempt in (
        lambda: sl.reshard(torch.ones(2), "[n]"),
        lambda: sl.reshard(torch.ones(2), "[n]", mesh),
        lambda: sl.reshard(x, "bf16[n d]"),
        lambda: sl.reshard(x, "[n/a d/a]"),
        lambda: sl.local(x.detach().requires_grad_()),
        lambda: sl.reshard(torch.ones(3, 2), "[n d]", mesh, source="[n/~a d]", shape=(4, 2)),
        lambda: sl.reshard(x, "[(2 n/a) d]").to_dtensor(),
        lambda: sl.reshard(odd, "[n]"),
        lambda: sl.reshard(x, "[n d/a]", mesh["a"]),
        lambda: sl.loads("mesh pod = dp:8").mesh("pod").device_mesh("cpu"),
    ):
        try:
            attempt()
            codes.append("none")
        except sl.ShardlangError as error:
            codes += error.codes
    return codes


def test_faults_have_codes(world: World) -> None:
    assert (
        world.run(refusals)
        == [["SL0709", "SL0707", "SL0710", "SL0203", "SL0711", "SL0703", "SL0706", "SL0704", "SL0713", "SL0705"]] * 4
    )


def unlike_outs() -> list[Any]:
    mesh = torch_mesh((2, 2), ("a", "b"))
    x = distribute_tensor(torch.arange(64.0).view(8, 8), mesh, [Shard(0), Shard(1)])
    outs: list[Any] = [
        torch.zeros(8, 8),
        torch.zeros(1, 8),
        torch.zeros(4, 8, dtype=torch.float64),
        distribute_tensor(torch.zeros(8, 8), mesh, [Shard(0), Replicate()]),
        sl.reshard(x, "[(2 k/b) d]"),
    ]
    found = []
    for out in outs:
        before = (out.block if isinstance(out, sl.ShardTensor) else out).clone()
        try:
            sl.reshard(x, "[n/b d]", out=out)
        except sl.ShardlangError as error:
            after = out.block if isinstance(out, sl.ShardTensor) else out
            found.append((error.codes, error.diagnostics[0].message, torch.equal(before, after)))
    fits = torch.zeros(4, 8)
    sl.reshard(x, "[n/b d]", out=fits)
    return [*found, torch.equal(fits, torch.arange(64.0).view(8, 8).chunk(2)[dist.get_rank() % 2])]


def test_an_out_that_is_not_like_the_result_is_refused_and_left_alone(world: World) -> None:
    """Its values were cast, stretched, or taken for those of other placements."""
    due = "and the result in `[8/b 8]` is a block of (4, 8) float32 under R, S(0)"
    for *found, fits in world.run(unlike_outs):
        assert fits
        assert [(codes, left) for codes, _, left in found] == [(("SL0717",), True)] * 5
        assert [text for _, text, _ in found[:4]] == [
            f"`out` is a block of (8, 8) float32, {due}",
            f"`out` is a block of (1, 8) float32, {due}",
            f"`out` is a block of (4, 8) float64, {due}",
            f"`out` is a block of (4, 8) float32 under S(0), R, {due}",
        ]
