"""The chapters on other notations: the counts are those of the texts, and the imports write what they show."""

import re

import pytest

from shardlang.check import check
from shardlang.check.facts import Facts, Tensor
from shardlang.check.model import check_model
from shardlang.diagnostics.explanations import fences
from shardlang.interchange.jax_specs import import_jax
from shardlang.interchange.tp_plan import import_hf
from shardlang.source import Source
from shardlang.syntax.parse import parse
from tests.spec.examples import SPEC
from tests.spec.notation import count, table, texts


def test_the_table_of_lines_and_tokens_is_counted() -> None:
    assert table() in (SPEC / "notation.md").read_text(encoding="utf-8"), "run `python -m tests.spec.notation`"


def test_every_notation_of_the_table_has_its_column_and_its_text() -> None:
    headings = list(texts())
    assert [h.partition(",")[0] for h in headings] == [
        "This language",
        "JAX",
        "seqax",
        "Shardy",
        "torchtitan",
        "transformers",
    ]
    columns = re.search(r"^\| \| (.*) \|$", (SPEC / "notation.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert columns is not None
    assert len(columns[1].split(" | ")) == len(headings)


@pytest.mark.parametrize(
    ("text", "counted"),
    [
        ("", (0, 0)),
        ("# only a comment\n\n", (0, 0)),
        ("mesh pod = dp:4 * tp:2  # why", (1, 10)),
        ('x = P("dp", None)\n// note\ny', (2, 11)),
        ("#sdy.sharding<@m>", (1, 8)),
        ("k = d//(kv*g)", (1, 10)),
    ],
)
def test_a_token_is_a_word_a_number_or_a_sign(text: str, counted: tuple[int, int]) -> None:
    assert count(text) == counted


@pytest.mark.parametrize(("kind", "read"), [("jax", import_jax), ("hf", import_hf)])
def test_the_import_that_the_chapter_shows_is_what_is_written(kind: str, read: type) -> None:
    shown = list(fences((SPEC / "import.md").read_text(encoding="utf-8")))
    at = next(i for i, f in enumerate(shown) if f.language == "json" and kind in f.words)
    result = read(Source("x.json", shown[at].text))
    assert result.diagnostics == ()
    assert result.text == shown[at + 1].text


def test_our_text_gives_each_rank_whole_groups_of_the_heads_that_the_jax_text_gives_it() -> None:
    program = check(parse(Source("x", texts()["This language"].text)))
    d, kv, g, k = 4096, 8, 4, 128
    shapes = {"wq": (kv * g * k, d), "wk": (kv * k, d), "wv": (kv * k, d), "wo": (d, kv * g * k)}
    parameters = {f"attention.{name}.weight": Tensor(shape, "bf16") for name, shape in shapes.items()}
    layouts = check_model(program.models["block"], Facts(parameters, ("", "norm", "attention"))).parameters
    for rank in range(8):
        # P("dp", "tp", ..) over [d, kv, ..]: the rank's part of the kv heads is that of its coordinate on tp, rank % 2
        heads = range(rank % 2 * kv // 2, (rank % 2 + 1) * kv // 2)
        for name, unit, dim in (("wq", g * k, 0), ("wk", k, 0), ("wv", k, 0), ("wo", g * k, 1)):
            runs = layouts[f"attention.{name}.weight"].layout.runs(rank)
            assert runs[dim] == ((heads[0] * unit, (heads[-1] + 1) * unit),)
            assert runs[1 - dim] == ((0, d),)
