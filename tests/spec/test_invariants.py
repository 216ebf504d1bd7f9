"""The invariants that the chapters of the language reference end with."""

import random
import re
from collections.abc import Sequence
from itertools import combinations

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from shardlang.check import check
from shardlang.check.program import Program
from shardlang.diagnostics import ShardlangError
from shardlang.layout import Layout
from shardlang.mesh import Link, Mesh
from shardlang.source import Source
from shardlang.syntax import tree
from shardlang.syntax.parse import parse
from tests.conformance import reference
from tests.conformance.generate import MESHES, SHAPES
from tests.spec.examples import layout_of, mesh_of, plan_of
from tests.syntax.texts import DESIGN

WHOLE_FILE = DESIGN.replace("transfer llama => llama_serve", "transfer llama => llama")
seeds = st.integers(0, 10_000)


def program(text: str) -> Program:
    return check(parse(Source("file.shard", text)), nproc=64)


def said(built: Program) -> str:
    """What a program says, without where it says it."""
    parts = [built.links, built.meshes, built.lets, built.fns, built.reshards, built.models]
    texts = [repr(sorted(part.items())) for part in parts]
    texts += [repr(sorted(map(repr, part))) for part in (built.transfers, built.budgets, built.rules)]
    return re.sub(r"Span\(source=Source\([^()]*\), start=\d+, end=\d+\)", "Span", " ".join(texts))


def declarations(text: str) -> list[str]:
    return [decl.span.text for decl in parse(Source("file.shard", text)).decls]


@given(st.permutations(declarations(WHOLE_FILE)))
@settings(max_examples=20, deadline=None)
def test_the_order_of_declarations_changes_nothing(parts: Sequence[str]) -> None:
    assert said(program("\n".join(parts))) == said(program(WHOLE_FILE))


def test_the_order_of_lines_in_a_model_changes_nothing_but_their_order() -> None:
    lines = ["param a : [d/tp e]", "param otherwise : whole", "fsdp a over dp", "freeze b", "checkpoint a"]

    def built(order: Sequence[str]) -> object:
        model = program("mesh pod = dp:? * tp:2\nmodel m on pod {\n" + "\n".join(order) + "\n}").models["m"]
        groups = (model.params, model.fsdp, model.freeze, model.checkpoint)
        return [sorted(line.pattern.text if hasattr(line, "pattern") else line.text for line in g) for g in groups]

    for seed in range(10):
        shuffled = random.Random(seed).sample(lines, len(lines))
        assert built(shuffled) == built(lines)


def test_blanks_line_ends_and_comments_between_words_mean_nothing() -> None:
    loose = re.sub(r" +", "  # a comment: [x/tp] {\r\n\t ", re.sub(r"#[^\n]*", "", WHOLE_FILE))
    # Quantities are words of their own, with at most a blank inside.
    loose = re.sub(r"(\d)\s+#[^\n]*\n\s*(GB/s|us|GiB)", r"\1 \2", loose)
    assert said(program(loose)) == said(program(WHOLE_FILE))


@pytest.mark.parametrize("new", ["unused", "mesh", "param", "whole_", "_1"])
def test_a_name_may_be_replaced_by_an_unused_one(new: str) -> None:
    text = "mesh pod = dp:16 * tp:4\nlet d = 8\nfn f(x: [b/dp d/tp]) -> [b/dp d]\n"
    for old in ("pod", "dp", "tp", "d", "f", "x", "b"):
        renamed = program(re.sub(rf"\b{old}\b", new, text))
        assert said(renamed) == said(program(text)).replace(f"'{old}'", f"'{new}'")


def test_diagnostics_come_in_the_order_of_the_text() -> None:
    with pytest.raises(ShardlangError) as caught:
        program("mesh a = x:2@no\nfn f(x: [d/y]) -> [d/x e/x]\nlet b = c\nrules on z { }\nbudget q { }\n")
    starts = [d.span.start for d in caught.value.diagnostics if d.span]
    assert len(starts) >= 5
    assert starts == sorted(starts)


def test_a_spec_without_cuts_and_pending_axes_is_whole() -> None:
    mesh = mesh_of("a:2 * b:2")
    assert layout_of("[8 6]", mesh).equivalent(Layout.whole(mesh, (8, 6)))


def drawn(seed: int) -> tuple[Layout, dict[str, int]]:
    draw = random.Random(seed)
    axes = dict(draw.choice(MESHES))
    dims = reference.draw(draw, draw.choice(SHAPES), axes, uneven=True)
    return layout_of(reference.spec_text(dims), mesh_of(reference.mesh_text(axes))), axes


def elements(layout: Layout, rank: int) -> set[tuple[int, ...]]:
    found: set[tuple[int, ...]] = {()}
    for runs in layout.runs(rank):
        indices = [i for a, b in runs for i in range(a, b)]
        found = {(*head, i) for head in found for i in indices}
    return found


@given(seeds)
@settings(max_examples=60, deadline=None)
def test_blocks_are_disjoint_and_make_the_tensor(seed: int) -> None:
    layout, axes = drawn(seed)
    cuts = list(layout.cut_axes())
    blocks: dict[tuple[int, ...], set[tuple[int, ...]]] = {}
    for rank in layout.mesh.ranks:
        at = tuple(layout.mesh.coordinate(rank, axis) for axis in cuts)
        block = elements(layout, rank)
        # Ranks that differ only on axes on which the tensor is whole hold the same.
        assert blocks.setdefault(at, block) == block
    assert sum(map(len, blocks.values())) == len(set().union(*blocks.values())) == layout.numel
    assert all(not one & other for one, other in combinations(blocks.values(), 2))
    assert axes


@given(seeds)
@settings(max_examples=40, deadline=None)
def test_blocks_have_one_size_where_every_cut_is_even(seed: int) -> None:
    layout, _ = drawn(seed)
    if not any(cut.uneven for dim in layout.dims for cut in dim.flat):
        assert len({layout.local_shape(rank) for rank in layout.mesh.ranks}) == 1


def test_an_axis_of_one_rank_may_be_left_out_and_costs_nothing() -> None:
    mesh = mesh_of("one:1 * a:4")
    assert layout_of("[8/one/a]", mesh).equivalent(layout_of("[8/a]", mesh))
    assert plan_of("f32[8/one/a 8] => [8/a 8/one]", mesh).steps == ()


@given(seeds)
@settings(max_examples=40, deadline=None)
def test_a_plan_from_a_layout_to_itself_is_empty(seed: int) -> None:
    layout, axes = drawn(seed)
    plan = plan_of(f"f32{layout} => {layout}", mesh_of(reference.mesh_text(axes)))
    assert plan.steps == ()


CHANGES = (
    "[64/a 32] => [64 32/b]",
    "[64/a/b 32] => [64 32/a/b]",
    "[64 32]{+a} => [64/b 32]",
    "[64/b 32]{+a} => [64 32]",
)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("objective", ["time", "bytes"])
def test_no_plan_receives_less_than_some_rank_needs(change: str, objective: str) -> None:
    plan = plan_of(f"f32{change}", mesh_of("a:2 * b:4"), objective)
    assert plan.bytes_received >= plan.bytes_bound
    if objective == "bytes" and "{" not in change:
        assert plan.bytes_received == plan.bytes_bound


@pytest.mark.parametrize("change", CHANGES)
def test_a_faster_link_never_makes_a_plan_slower(change: str) -> None:
    def seconds(bandwidth: int) -> float:
        mesh = mesh_of("a:2 * b:4")
        axes = tuple(evolve(axis, link=Link("l", bandwidth, 10**6)) for axis in mesh.axes)
        return plan_of(f"f32{change}", Mesh("m", axes)).seconds

    times = [seconds(10**n) for n in range(6, 12)]
    assert times == sorted(times, reverse=True)


def test_every_node_of_the_tree_lies_in_its_parent() -> None:
    def hold(node: object, around: tuple[int, int]) -> None:
        span = getattr(node, "span", None)
        if span is None:
            return
        assert around[0] <= span.start <= span.end <= around[1]
        for name in node.__attrs_attrs__:  # type: ignore[attr-defined]
            value = getattr(node, name.name)
            for child in value if isinstance(value, tuple) else (value,):
                if type(child).__module__.startswith(tree.__name__.rpartition(".")[0]):
                    hold(child, (span.start, span.end))

    hold(parse(Source("file.shard", DESIGN)), (0, len(DESIGN)))
