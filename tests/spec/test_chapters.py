"""The language reference says what is so: its examples are run, and its grammar is the grammar."""

import re

import pytest

from shardlang.check import check
from shardlang.diagnostics import REGISTRY, ShardlangError
from shardlang.diagnostics.explanations import Fence
from shardlang.layout import Layout
from shardlang.plan.plan import Plan
from shardlang.source import Source
from shardlang.syntax.format import format_source
from shardlang.syntax.grammar import grammar_text
from shardlang.syntax.parse import parse
from tests.spec.examples import SPEC, block_text, examples, layout_of, mesh_of, plan_of
from tests.spec.grammar_chapter import chapter

CHAPTERS = sorted(path.name for path in SPEC.glob("*.md"))


def word(fence: Fence, prefix: str) -> str | None:
    return next((w.removeprefix(prefix) for w in fence.words if w.startswith(prefix)), None)


@pytest.mark.parametrize("name", examples("shard"))
def test_example_of_a_file_is_right_or_fails_with_its_code(name: str) -> None:
    fence = examples("shard")[name]
    source = Source(name, fence.text)
    nproc = word(fence, "nproc=")
    size = int(nproc) if nproc else None
    if "wrong" in fence.words:
        with pytest.raises(ShardlangError) as caught:
            check(parse(source), nproc=size)
        assert set(caught.value.codes) == {word(fence, "SL") and f"SL{word(fence, 'SL')}"}, str(caught.value)
    else:
        check(parse(source), nproc=size)
        assert format_source(source) == fence.text


@pytest.mark.parametrize("name", examples("blocks"))
def test_example_of_blocks_is_what_every_rank_holds(name: str) -> None:
    mesh_line, spec, *rows = examples("blocks")[name].text.splitlines()
    layout: Layout = layout_of(spec, mesh_of(mesh_line.removeprefix("mesh ")))
    assert rows == [f"{rank}: {block_text(layout, rank)}" for rank in layout.mesh.ranks]


@pytest.mark.parametrize("name", examples("plan"))
def test_example_of_a_plan_is_so(name: str) -> None:
    mesh_line, change, *facts = examples("plan")[name].text.splitlines()
    objective = next((f.split()[1] for f in facts if f.startswith("objective ")), "time")
    plan = plan_of(change, mesh_of(mesh_line.removeprefix("mesh ")), objective)
    for fact in facts:
        assert holds(fact, plan), (fact, plan.to_json())


def holds(fact: str, plan: Plan) -> bool:
    """``steps KIND ..``, ``NAME = VALUE``, ``NAME <= VALUE``, or ``NAME <= SHARE whole``, a share of the tensor."""
    words = fact.split()
    if words[0] == "objective":
        return True
    if words[0] == "steps":
        return [s.kind for s in plan.steps] == words[1:]
    name, relation, value, *unit = words
    limit = float(value)
    if unit:
        # Shares are written with four digits.
        limit = (limit + 5e-5) * plan.source.numel * plan.itemsize
    found = getattr(plan, name)
    return bool(found == limit if relation == "=" else found <= limit)


def test_the_chapter_on_the_grammar_is_generated_from_it() -> None:
    assert (SPEC / "grammar.md").read_text(encoding="utf-8") == chapter(grammar_text()), (
        "run `python -m tests.spec.grammar_chapter`"
    )


@pytest.mark.parametrize("name", CHAPTERS)
def test_links_between_chapters_lead_somewhere(name: str) -> None:
    text = (SPEC / name).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (SPEC / target).exists(), target


@pytest.mark.parametrize("name", CHAPTERS)
def test_codes_in_chapters_are_registered(name: str) -> None:
    text = (SPEC / name).read_text(encoding="utf-8")
    assert set(re.findall(r"SL\d{4}", text)) <= set(REGISTRY)


@pytest.mark.parametrize("name", [c for c in CHAPTERS if c not in ("README.md", "grammar.md", "notation.md")])
def test_chapter_ends_with_its_invariants(name: str) -> None:
    headings = re.findall(r"^## (.*)$", (SPEC / name).read_text(encoding="utf-8"), re.MULTILINE)
    assert headings[-1] == "Invariants"


def test_every_chapter_is_in_the_table() -> None:
    table = (SPEC / "README.md").read_text(encoding="utf-8")
    for name in CHAPTERS:
        assert name == "README.md" or f"({name})" in table
