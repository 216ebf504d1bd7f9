"""Tensors on a mesh, made all three ways."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

import shardlang as sl
from tests.world import World, torch_mesh


def three_ways() -> tuple[Any, ...]:
    mesh = torch_mesh((2, 2), ("a", "b"))
    rank = dist.get_rank()
    value = torch.arange(40).view(8, 5)
    whole = sl.distribute(value, "[n/a d/~b]", mesh)
    sent = sl.distribute(value if rank == 2 else torch.zeros_like(value), "[n/a d/~b]", mesh, source_rank=2)
    blocks = sl.from_local(value.chunk(4)[rank], "[n/a/b d]", mesh)
    filled = sl.full("i64[8/a 5]{+b}", 3, mesh)
    program = sl.zeros("bf16[d/a (2 k/b)]", mesh, sizes={"d": 4, "k": 2}, requires_grad=True)
    return (
        type(whole) is DTensor and list(whole.placements) == [Shard(0), Shard(1)],
        torch.equal(whole.full_tensor(), value),
        torch.equal(sent.full_tensor(), value),
        list(blocks.placements) == [Shard(0), Shard(0)] and torch.equal(blocks.full_tensor(), value),
        blocks.shape == (8, 5) and blocks.stride() == (5, 1),
        list(filled.placements) == [Shard(0), Partial()] and torch.equal(filled.full_tensor(), torch.full((8, 5), 3)),
        type(program) is sl.ShardTensor and program.requires_grad and program.dtype == torch.bfloat16,
        program.shape == (4, 4) and torch.equal(program.full_tensor(), torch.zeros(4, 4, dtype=torch.bfloat16)),
        list(sl.ones("[4 4]", mesh).placements) == [Replicate(), Replicate()],
        sl.empty("[4 4/b]", mesh, dtype=torch.int8).to_local().shape == (4, 2),
    )


def test_global_tensors_local_blocks_and_factories(world: World) -> None:
    assert world.run(three_ways) == [(True,) * 10] * 4


def from_a_program() -> tuple[Any, ...]:
    program = sl.loads("let d = 6\nmesh pod = a:2 * b:2\nfn f(x: [d/a]) -> [d/a]")
    made = program.full("f32[d/a 4]", 2.5), program.zeros("i8[d]"), program.randn("[d/b d/a]", seed=1)
    mesh = program.mesh("pod").device_mesh("cpu")
    same = sl.randn("[6 6]", mesh, seed=1)
    return (
        made[0].device_mesh.mesh_dim_names == ("a", "b"),
        torch.equal(made[0].full_tensor(), torch.full((6, 4), 2.5)),
        made[1].dtype == torch.int8 and made[1].shape == (6,),
        torch.equal(made[2].full_tensor(), same.full_tensor()),
    )


def test_a_program_makes_tensors_from_its_constants(world: World) -> None:
    assert world.run(from_a_program) == [(True,) * 4] * 4


def by_rules() -> tuple[Any, ...]:
    program = sl.loads(
        """
        let d = 6
        mesh pod = a:2 * b:2
        mesh line = r:4
        rules on pod {
          vocab -> a
          width -> b else whole
        }
        fn f on pod (x: [vocab width]) -> [vocab width]
        """
    )
    sizes = {"vocab": 4, "width": 6, "n": 5}
    layouts = [
        sl.layout_of(program.zeros(spec, mesh=mesh, sizes=sizes))
        for spec, mesh in (
            ("[vocab width]", "pod"),
            ("[vocab/. width]", "pod"),
            ("[width/a vocab/b]", "pod"),
            ("[vocab width n]", program.mesh("pod").device_mesh()),
            ("[vocab width]", "line"),
        )
    ]
    uneven = sl.layout_of(program.ones("[vocab width]", mesh="pod", sizes={"vocab": 2, "width": 5}))
    random = program.randn("[vocab d]", mesh="pod", sizes=sizes, seed=3)
    whole = program.randn("[vocab d]", mesh="line", sizes=sizes, seed=3)
    try:
        program.zeros("[vocab d]", mesh="pod", sizes={"vocab": 3})
        code = ""
    except sl.ShardlangError as error:
        code = error.codes[0]
    return [str(x) for x in (*layouts, uneven)], torch.equal(random.full_tensor(), whole.full_tensor()), code


def test_a_programs_factories_split_dims_as_its_rules_say(world: World) -> None:
    """A dim that names no axis and is not held whole; where a rule does not divide and says no more, it is an error."""
    specs = ["[4/a 6/b]", "[4 6/b]", "[6/a 4/b]", "[4/a 6/b 5]", "[4 6]", "[2/a 5]"]
    assert world.run(by_rules) == [(specs, True, "SL0302")] * 4


def random_numbers(spec: str, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    mesh = torch_mesh((2, 2), ("a", "b"))
    return (
        sl.randn(spec, mesh, seed=seed, sizes={"n": 6, "d": 5}).full_tensor(),
        sl.rand(spec, mesh, seed=seed, sizes={"n": 6, "d": 5}).full_tensor(),
    )


def test_one_seed_gives_one_tensor_on_any_mesh(world: World) -> None:
    """case 32"""
    first = world.run(random_numbers, "[n d]", 7)
    for spec in ("[n/a d]", "[n d/~b]", "[n/~a/~b d]", "[n/b d/~a]", "[(3 2/a) d]", "[n d]{+a}"):
        for normal, uniform in world.run(random_numbers, spec, 7):
            assert torch.equal(normal, first[0][0])
            assert torch.equal(uniform, first[0][1])
    other = world.run(random_numbers, "[n d]", 8)
    assert not torch.equal(other[0][0], first[0][0])


def uneven_blocks(rows: list[int]) -> Any:
    """case 2: chunks of 2, 2, 1, 0 rows, the global shape not given"""
    mesh = torch_mesh((4,), ("a",))
    try:
        x = sl.from_local(torch.ones(rows[dist.get_rank()], 10), "[n/~a d]", mesh)
    except sl.ShardlangError as error:
        return error.codes[0], error.diagnostics[0].notes[0]
    return tuple(x.shape), tuple(x.full_tensor().shape)


def test_every_rank_learns_the_shape_of_uneven_blocks(world: World) -> None:
    assert world.run(uneven_blocks, [2, 2, 1, 0]) == [((5, 10), (5, 10))] * 4


def test_blocks_that_make_no_tensor_are_one_diagnostic_on_all_ranks(world: World) -> None:
    answers = world.run(uneven_blocks, [2, 1, 2, 0])
    assert answers[0] == ("SL0712", "rank 0 has [2 10]; rank 1 has [1 10]; rank 2 has [2 10]; rank 3 has [0 10]")
    assert answers == [answers[0]] * 4


def refusals() -> list[str]:
    mesh = torch_mesh((2, 2), ("a", "b"))
    codes = []
    attempts: list[Any] = [
        lambda: sl.zeros("[n d]", mesh, sizes={"n": 2}),
        lambda: sl.zeros("f32[4]", mesh, dtype=torch.int8),
        lambda: sl.zeros("[5/a]", mesh),
        lambda: sl.distribute(torch.tensor(1.0), "[n/a]", mesh),
        lambda: sl.from_local(torch.ones(3, 2), "[n/a d]", mesh, shape=(4, 2)),
        lambda: sl.from_local(torch.ones(2, 2), "bf16[n/a d]", mesh),
    ]
    for attempt in attempts:
        try:
            attempt()
            codes.append("none")
        except sl.ShardlangError as error:
            codes += error.codes
    return codes


def test_faults_have_codes(world: World) -> None:
    """case 12 among them: a scalar asked to split a dim"""
    assert world.run(refusals) == [["SL0305", "SL0710", "SL0302", "SL0304", "SL0703", "SL0710"]] * 4


def copies(spoil: bool) -> Any:
    mesh = torch_mesh((2, 2), ("a", "b"))
    value = torch.arange(8.0)
    if spoil and dist.get_rank() == 3:
        value[7] = 0
    x = sl.distribute(value, "[n/b]", mesh)
    try:
        return sl.check_copies(x) is x
    except sl.ShardlangError as error:
        return error.codes[0], error.diagnostics[0].message


def test_copies_that_differ_are_found_when_asked(world: World) -> None:
    assert world.run(copies, False) == [True] * 4
    assert world.run(copies, True) == [("SL0708", "rank 1 and rank 3 hold different copies of a block of `[8/b]`")] * 4
