"""Models on meshes train as on one device: loss, norm and every gradient."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import shardlang as sl
from shardlang.lower.placements import mesh_of
from shardlang.runtime.observe import Observer
from shardlang.runtime.record import Recorder
from tests.models import nets
from tests.models.law import Outcome, train_beside
from tests.world import World, torch_mesh

LLAMA = """
mesh m = {mesh}
{extra}
let kv = {kv}, g = {g}, k = {k}
model llama on m {{
  param tok_embeddings.weight                 : [vocab/{cut}tp d]
  param layers.*.attention.wq.weight          : [(kv/{heads} g k) d]
  param layers.*.attention.{{wk,wv}}.weight     : [(kv/{heads} k) d]
  param layers.*.attention.wo.weight          : [d (kv/{heads} g k)]
  param layers.*.feed_forward.{{w1,w3}}.weight  : [f/tp d]
  param layers.*.feed_forward.w2.weight       : [d f/tp]
  param output.weight                         : [vocab/{cut}tp d]
  param otherwise                             : whole
  call root (tokens: [batch/{dp} seq]) -> [batch/{dp} seq vocab/{cut}tp]
  call tok_embeddings () -> [batch/{dp} seq/tp d]
  call layers.*.attention (x: [batch/{dp} seq d]) -> [batch/{dp} seq/tp d]
  call layers.*.feed_forward (x: [batch/{dp} seq d]) -> [batch/{dp} seq/tp d]
  call output (input: [batch/{dp} seq d]) -> [batch/{dp} seq vocab/{cut}tp]
  {groups}
}}
"""
GROUPS = "fsdp layers.* over dp { reshard yes }\n  fsdp root over dp { reshard no }"


def llama(mesh: str = "dp:2 * tp:2", groups: str = GROUPS, kv: int = 2, g: int = 2, k: int = 4, **parts: str) -> str:
    parts = {"cut": "", "dp": "dp", "extra": "", "heads": "tp", **parts}
    return LLAMA.format(mesh=mesh, groups=groups, kv=kv, g=g, k=k, **parts)


def agree(world: World, text: str, *arguments: object, **more: object) -> Outcome:
    """What the first rank found, all ranks having found the same."""
    found = world.run(train_beside, text, *arguments, *more.values())
    assert all(o.losses == found[0].losses and o.norms == found[0].norms for o in found)
    return found[0]


@pytest.mark.parametrize(
    ("mesh", "sizes"),
    [("dp:2 * tp:2", (2, 2, 4)), ("dp:4 * tp:1", (2, 2, 4)), ("dp:1 * tp:4", (4, 1, 4))],
)
def test_a_llama_trains_alike_on_any_mesh(world: World, mesh: str, sizes: tuple[int, int, int]) -> None:
    kv, g, k = sizes
    build = nets.four_kv_heads if kv == 4 else nets.llama
    found = agree(world, llama(mesh, kv=kv, g=g, k=k), build, nets.tokens, nets.next_token)
    assert found.holds()
    assert found.meshes == 1


def test_fewer_heads_than_ranks_are_split_over_a_sub_axis(world: World) -> None:
    text = llama("dp:1 * tp:4", extra="split m.tp = tp0:2 * tp1:2", heads="tp0")
    text = text.replace("(kv/tp0 g k)", "(kv/tp0 g/tp1 k)")
    assert agree(world, text, nets.llama, nets.tokens, nets.next_token).holds()


def test_three_heads_stay_whole_where_they_do_not_divide(world: World) -> None:
    text = llama(kv=3, g=1, k=4).replace("kv/tp", "kv").replace("[batch/dp seq/tp d]", "[batch/dp seq d]")
    assert agree(world, text, nets.three_heads, nets.tokens, nets.next_token).holds()


def test_a_vocabulary_that_does_not_divide_is_split_unevenly(world: World) -> None:
    found = agree(world, llama(cut="~"), nets.uneven_llama, nets.few_tokens, nets.next_token)
    assert found.holds()


def test_without_groups_gradients_are_reduced_all_the_same(world: World) -> None:
    found = agree(world, llama(groups=""), nets.llama, nets.tokens, nets.next_token)
    assert found.holds()
    assert "Shard" not in found.placements["norm.weight"]


def test_the_order_of_lines_does_not_matter(world: World) -> None:
    text = llama()
    lines = text.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("model"))
    turned = "\n".join([*lines[: at + 1], *reversed(lines[at + 1 : -1]), lines[-1]])
    first = agree(world, text, nets.llama, nets.tokens, nets.next_token)
    assert agree(world, turned, nets.llama, nets.tokens, nets.next_token) == first


DATA_PARALLEL = """
mesh m = {mesh}
model p on m {{
  param otherwise : whole
  call root (x: [n/{axes} d]) -> [n/{axes} d]
  fsdp {{up,down}} {over}
  fsdp root {over} {{ reshard no }}
}}
"""


def test_hybrid_groups_repeat_what_they_store(world: World) -> None:
    text = DATA_PARALLEL.format(mesh="dp:2 * fsdp:2", axes="dp/fsdp", over="over fsdp replicate dp")
    found = agree(world, text, nets.perceptron, nets.vectors, nets.squares)
    assert found.holds()
    kinds = {(t.kind, t.axes) for t in found.sent}
    assert {("all_gather", ("fsdp",)), ("reduce_scatter", ("fsdp",)), ("all_reduce", ("dp",))} <= kinds


def test_a_group_over_two_axes_is_one_group(world: World) -> None:
    text = DATA_PARALLEL.format(mesh="a:2 * b:2", axes="a/b", over="over a/b")
    found = agree(world, text, nets.perceptron, nets.vectors, nets.squares)
    assert found.holds()
    assert ("all_gather", ("a", "b")) in {(t.kind, t.axes) for t in found.sent}


def norms_of_ones(text: str) -> tuple[int, int, float, float]:
    """On how many meshes parameters are, how many sums a norm takes, and the norm of gradients that are all one, with
    what it should be."""
    module = nets.perceptron()
    ones = sum(p.numel() for p in module.parameters() if p.requires_grad) ** 0.5
    mesh = torch_mesh((2, 2), ("u", "v"))  # no other test's: torch flattens it
    placed = sl.loads(text).apply(module, mesh)
    trained = [p for p in placed.parameters() if p.requires_grad]
    for parameter in trained:
        parameter.grad = torch.ones_like(parameter)
    with Recorder() as recorder, Observer(mesh_of(mesh), dist.get_rank()):
        norm = sl.clip_grad_norm_(trained, 1.0)
    return len({p.device_mesh for p in trained}), len(recorder.issued), float(norm), ones


def test_a_norm_is_one_sum_though_groups_over_two_axes_store_on_a_mesh_of_their_own(world: World) -> None:
    text = DATA_PARALLEL.format(mesh="u:2 * v:2", axes="u/v", over="over u/v")
    text = text.replace("  fsdp root over u/v { reshard no }\n", "")
    for meshes, sums, norm, due in world.run(norms_of_ones, text):
        assert (meshes, sums) == (2, 1)
        assert norm == pytest.approx(due)


def test_checkpointing_computes_again_and_changes_no_bit(world: World) -> None:
    kept = agree(world, llama(), nets.llama, nets.tokens, nets.next_token)
    text = llama(groups="checkpoint layers.*\n  " + GROUPS)
    again = agree(world, text, nets.llama, nets.tokens, nets.next_token)
    assert again.holds()
    assert again.losses == kept.losses
    assert again.norms == kept.norms


def test_padding_and_ragged_rows_count_by_tokens(world: World) -> None:
    assert agree(world, llama(), nets.llama, nets.padded_tokens, nets.next_token).holds()


def test_gradients_accumulate_over_micro_batches(world: World) -> None:
    found = world.run(train_beside, llama(), nets.llama, nets.padded_tokens, nets.next_token, 3, 2)[0]
    assert found.holds()


def test_a_batch_too_small_to_split_is_not_counted_by_every_rank(world: World) -> None:
    text = llama().replace("batch/dp", "batch")
    assert agree(world, text, nets.llama, nets.one_sentence, nets.next_token).holds()


PERCEPTRON = """
mesh m = dp:2 * tp:2
model p on m {{
  param up.weight   : [f/tp d]
  param up.bias     : [f/tp]
  param down.weight : [d f/tp]
  param otherwise   : whole
  call root (x: [n/dp d]) -> [n/dp d]
  {more}
}}
"""


@pytest.mark.parametrize("more", ["", "fsdp root over dp", "fsdp {up,down} over dp\n  fsdp root over dp"])
def test_scalars_integers_buffers_and_plain_tensors_are_taken_as_they_are(world: World, more: str) -> None:
    found = agree(world, PERCEPTRON.format(more=more), nets.perceptron, nets.vectors, nets.squares)
    assert found.holds()
    assert found.meshes == 1
    assert found.placements["scale"] == "(Replicate(), Replicate())"


def test_two_dtypes_are_grouped_apart_without_being_asked(world: World) -> None:
    found = agree(world, PERCEPTRON.format(more="fsdp root over dp"), nets.mixed_perceptron, nets.vectors, nets.squares)
    assert found.holds()
    assert sum(t.count for t in found.sent if (t.kind, t.axes) == ("reduce_scatter", ("dp",))) == 2


def test_what_is_frozen_does_not_change(world: World) -> None:
    text = PERCEPTRON.format(more="freeze up.**\n  fsdp root over dp")
    found = agree(world, text, nets.perceptron, nets.vectors, nets.squares)
    assert found.holds()


TIED = """
mesh m = dp:2 * tp:2
model t on m {{
  param embed.weight  : {spec}
  param otherwise     : whole
  call root (tokens: [n/dp s]) -> [n/dp s {out}]
  call embed () -> [n/dp s d]
  {more}
}}
"""


@pytest.mark.parametrize("spec", ["whole", "[v/~tp d]"])
@pytest.mark.parametrize("more", ["", "fsdp root over dp"])
def test_tied_weights_stay_one_parameter(world: World, spec: str, more: str) -> None:
    text = TIED.format(spec=spec, out="v" if spec == "whole" else "v/~tp", more=more)
    found = agree(world, text, nets.Tied, nets.tied_tokens, nets.next_token)
    assert found.holds()
    assert found.parameters == 3


ENCODER = """
mesh m = dp:4
model e on m {
  param otherwise : whole
  call root (tokens: [n/dp s]) -> [n/dp s v]
  fsdp encoder.layers.* over dp
  fsdp root over dp { reshard no }
}
"""


def test_the_encoder_of_torch_itself_trains_alike(world: World) -> None:
    assert agree(world, ENCODER, nets.Encoder, nets.tokens, nets.next_token).holds()


UNEVEN = """
mesh m = dp:2 * tp:2
model u on m {{
  param up.weight   : [f/~tp d]
  param down.weight : [d f/~tp]
  param otherwise   : whole
  call root (x: [n/dp d]) -> [n/dp d]
  {more}
}}
"""


@pytest.mark.parametrize("more", ["", "fsdp root over dp"])
def test_weights_that_do_not_divide_are_split_all_the_same(world: World, more: str) -> None:
    assert agree(world, UNEVEN.format(more=more), nets.Uneven, nets.vectors, nets.squares).holds()


EXPERTS = """
mesh m = dp:2 * ep:2
model e on m {{
  param {{up,down}} : [experts/ep _ _]
  param otherwise : whole
  call root (x: [n/dp d]) -> [n/dp d]
  {more}
}}
"""


@pytest.mark.parametrize("more", ["", "fsdp root over dp"])
def test_experts_are_split_over_an_axis_of_their_own(world: World, more: str) -> None:
    found = agree(world, EXPERTS.format(more=more), nets.experts, nets.vectors, nets.squares)
    assert found.holds()
    assert "Shard(dim=0)" in found.placements["up"]
