"""The algebra of layouts against the plainest definition: every element is held by exactly one coordinate of the axes
that split, and blocks are ``torch.chunk``'s, nested."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardlang.layout import Cut, Dim, Factor, Layout, Pending, chunk, intersect_runs, join_runs, take_runs
from shardlang.mesh import Axis, Mesh

PAIR = Mesh("pair", (Axis("a", 2), Axis("b", 2)))
POD = Mesh("pod", (Axis("dp", 2), Axis("tp", 4)), {"tp": (Axis("t0", 2), Axis("t1", 2))})


def blocks(layout: Layout) -> list[set[int]]:
    """Each rank's elements of a one-dim tensor."""
    return [{i for a, b in layout.runs(rank)[0] for i in range(a, b)} for rank in layout.mesh.ranks]


def one_dim(mesh: Mesh, *factors: Factor, flat: tuple[Cut, ...] = ()) -> Layout:
    return Layout(mesh, (Dim(tuple(factors), flat),))


def test_first_axis_written_is_the_major_cut() -> None:
    assert blocks(one_dim(PAIR, Factor(8, ("a", "b")))) == [{0, 1}, {2, 3}, {4, 5}, {6, 7}]
    assert blocks(one_dim(PAIR, Factor(8, ("b", "a")))) == [{0, 1}, {4, 5}, {2, 3}, {6, 7}]


def test_a_fused_weight_gives_each_rank_its_own_part_of_every_segment() -> None:
    assert blocks(one_dim(PAIR, Factor(3), Factor(2, ("a",)), Factor(2)))[2] == {2, 3, 6, 7, 10, 11}


def test_a_flat_cut_crosses_the_factors_of_the_local_dim() -> None:
    fused = one_dim(PAIR, Factor(3), Factor(2, ("a",)), Factor(2), flat=(Cut("b"),))
    assert blocks(fused) == [{0, 1, 4}, {5, 8, 9}, {2, 3, 6}, {7, 10, 11}]


def test_an_uneven_cut_chunks_as_torch_does() -> None:
    mesh = Mesh("m", (Axis("a", 4),))
    assert blocks(one_dim(mesh, Factor(5), flat=(Cut("a", uneven=True),))) == [{0, 1}, {2, 3}, {4}, set()]


def test_an_uneven_cut_over_a_split_axis_is_one_cut() -> None:
    whole = one_dim(POD, Factor(5), flat=(Cut("tp", uneven=True),))
    nested = one_dim(POD, Factor(5), flat=(Cut("t0", uneven=True), Cut("t1", uneven=True)))
    assert blocks(whole)[:4] == [{0, 1}, {2, 3}, {4}, set()]
    assert blocks(nested)[:4] == [{0, 1}, {2}, {3}, {4}]
    assert not whole.equivalent(nested)


def test_a_sub_axis_is_part_of_its_parents_coordinate() -> None:
    parent = one_dim(POD, Factor(8, ("tp",)))
    parts = one_dim(POD, Factor(8, ("t0", "t1")))
    assert parent.equivalent(parts)
    assert [POD.coordinates(r)["t0"] for r in range(8)] == [0, 0, 1, 1, 0, 0, 1, 1]


def test_an_axis_of_size_one_changes_nothing() -> None:
    mesh = Mesh("m", (Axis("a", 2), Axis("b", 1)))
    assert one_dim(mesh, Factor(4, ("b", "a"))).equivalent(one_dim(mesh, Factor(4, ("a",))))
    assert Layout(mesh, (), (Pending("b", "sum"),)).equivalent(Layout(mesh, ()))


def test_an_uneven_cut_that_divides_equals_the_even_one() -> None:
    assert one_dim(PAIR, Factor(4), flat=(Cut("a", uneven=True),)).equivalent(one_dim(PAIR, Factor(4, ("a",))))


def test_an_uneven_cut_that_divides_equals_the_even_one_by_sub_axes() -> None:
    uneven = one_dim(POD, Factor(8), flat=(Cut("tp", uneven=True),))
    assert uneven.equivalent(one_dim(POD, Factor(8, ("t0", "t1"))))
    after = one_dim(POD, Factor(5), flat=(Cut("dp", uneven=True), Cut("t0", uneven=True)))
    assert not after.equivalent(one_dim(POD, Factor(5), flat=(Cut("t0", uneven=True), Cut("dp", uneven=True))))


def test_factors_that_only_multiply_are_one_dim() -> None:
    assert one_dim(PAIR, Factor(2, ("a",)), Factor(3)).equivalent(one_dim(PAIR, Factor(6, ("a",))))


@pytest.mark.parametrize(
    ("dims", "pending"),
    [
        ((Dim((Factor(4, ("a",)),)), Dim((Factor(4, ("a",)),))), ()),
        ((Dim((Factor(4, ("a",)),)),), (Pending("a", "sum"),)),
        ((Dim((Factor(5, ("a",)),)),), ()),
        ((Dim((Factor(4),), (Cut("a"), Cut("a"))),), ()),
    ],
)
def test_a_breach_of_the_invariants_is_refused(dims: tuple[Dim, ...], pending: tuple[Pending, ...]) -> None:
    with pytest.raises(ValueError, match=r"axis a"):
        Layout(PAIR, dims, pending)


def test_a_sub_axis_beside_its_parent_is_refused() -> None:
    with pytest.raises(ValueError, match="t0"):
        Layout(POD, (Dim((Factor(8, ("tp",)),)), Dim((Factor(8, ("t0",)),))))


@st.composite
def one_dim_layouts(draw: st.DrawFn) -> Layout:
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    mesh = Mesh("m", tuple(Axis(f"x{i}", n) for i, n in enumerate(sizes)))
    names = draw(st.permutations([a.name for a in mesh.axes]))
    used = names[: draw(st.integers(0, len(names)))]
    split = draw(st.integers(0, len(used)))
    factors = []
    for _ in range(draw(st.integers(1, 3))):
        cuts = tuple(n for n in used[:split] if draw(st.booleans()))
        used_now = set(cuts)
        used = [n for n in used if n not in used_now]
        split = max(0, split - len(cuts))
        factors.append(Factor(draw(st.integers(0, 3)) * math.prod(mesh.axis(n).size for n in cuts), cuts))
    return one_dim(mesh, *factors, flat=tuple(Cut(n, uneven=True) for n in used))


@given(one_dim_layouts())
def test_blocks_partition_the_dim_over_the_axes_that_cut_it(layout: Layout) -> None:
    cutting = set(layout.cut_axes())
    held: dict[int, set[tuple[int, ...]]] = {}
    for rank, block in zip(layout.mesh.ranks, blocks(layout), strict=True):
        where = tuple(layout.mesh.coordinate(rank, a.name) for a in layout.mesh.axes if a.name in cutting)
        for i in block:
            held.setdefault(i, set()).add(where)
    assert set(held) == set(range(layout.shape[0]))
    assert all(len(owners) == 1 for owners in held.values())


@given(one_dim_layouts())
def test_the_first_rank_holds_a_largest_block(layout: Layout) -> None:
    assert layout.block_numel() == max(len(b) for b in blocks(layout))


@given(one_dim_layouts())
def test_holders_are_the_ranks_whose_block_has_the_element(layout: Layout) -> None:
    held = blocks(layout)
    for i in range(layout.shape[0]):
        assert layout.holders((i,)) == tuple(r for r in layout.mesh.ranks if i in held[r])


@given(st.integers(0, 40), st.integers(1, 9))
def test_chunks_cover_a_range_in_order(n: int, ways: int) -> None:
    parts = [chunk(n, ways, i) for i in range(ways)]
    assert [i for a, b in parts for i in range(a, b)] == list(range(n))


@given(st.sets(st.integers(0, 30)), st.sets(st.integers(0, 30)), st.integers(0, 10), st.integers(0, 10))
def test_run_arithmetic_is_set_arithmetic(left: set[int], right: set[int], start: int, length: int) -> None:
    def runs(s: set[int]) -> tuple[tuple[int, int], ...]:
        return join_runs((i, i + 1) for i in sorted(s))

    assert intersect_runs(runs(left), runs(right)) == runs(left & right)
    assert take_runs(runs(left), start, start + length) == runs(set(sorted(left)[start : start + length]))
