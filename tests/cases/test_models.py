"""Cases from the field: models that other tools refuse, or train wrong. Each trains beside one device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor, nn
from torch.nn import functional as F

import shardlang as sl
from shardlang.cli import main
from shardlang.mesh import Axis, Mesh
from tests.models.law import Outcome, train_beside
from tests.world import World

HEAD = "mesh m = dp:2 * tp:2\nmodel net on m {\n"


def trained(world: World, lines: str, *parts: Any) -> Outcome:
    """Under these lines, two steps; every rank found the same."""
    found = world.run(train_beside, HEAD + lines + "\n}\n", *parts, 2)
    assert all(o.losses == found[0].losses for o in found)
    assert found[0].holds()
    return found[0]


class Ends(nn.Module):
    """A tied weight at both ends; ``vocab`` rows of ``width``."""

    def __init__(self, vocab: int, width: int = 4, tied: bool = True) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.output = nn.Linear(width, vocab, bias=False)
        if tied:
            self.output.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.output(torch.tanh(self.embed(tokens)))


def seven_tied() -> nn.Module:
    return Ends(7)


def gpt2_ends() -> nn.Module:
    return Ends(50257, tied=False)


def all_seven(step: int) -> dict[str, Tensor]:
    tokens = (torch.arange(28).view(4, 7) + step) % 7
    return {"tokens": tokens, "targets": (tokens + 1) % 7}


def far_tokens(step: int) -> dict[str, Tensor]:
    """On both sides of the cut, which is after row 25129, and the last row."""
    tokens = torch.tensor([[0, 25127, 25128, 25129], [25130, 50255, 50256, 7 + step]])
    return {"tokens": tokens, "targets": tokens.flip(1)}


def next_token(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, Any]:
    logits = model(batch["tokens"]).flatten(0, 1)
    return F.cross_entropy(logits, batch["targets"].flatten(), reduction="sum"), batch["targets"].numel()


@pytest.mark.parametrize(
    ("param", "out"), [("whole", "v"), ("[v/~tp d]", "v/~tp")], ids=["by_fsdp_alone", "tensor_parallel_ends"]
)
def test_cases_33_and_34_tied_ends_of_seven_rows_are_one_parameter_in_one_group(
    world: World, param: str, out: str
) -> None:
    found = trained(
        world,
        f"param output.weight : {param}\n call root (tokens: [n/dp s]) -> [n/dp s {out}]\n fsdp root over dp",
        seven_tied, all_seven, next_token,
    )  # fmt: skip
    assert found.parameters == 1
    assert set(found.placements) == {"embed.weight", "output.weight"}
    assert found.worst_weight < 1e-4
    assert sum(t.count for t in found.sent if (t.kind, t.axes) == ("reduce_scatter", ("dp",))) == 1


class TwoDtypes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 6)
        self.down = nn.Linear(6, 4, dtype=torch.bfloat16)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.up(x).to(torch.bfloat16)).float()


def rows_of(width: int, step: int) -> dict[str, Tensor]:
    """Small integers: products and sums of them with the weights below are exact in bfloat16."""
    x = (torch.arange(4.0 * width).view(4, width) + step) % 3 - 1
    return {"x": x, "y": x.new_zeros(())}


def fours(step: int) -> dict[str, Tensor]:
    return rows_of(4, step)


def fives(step: int) -> dict[str, Tensor]:
    return rows_of(5, step)


def squares(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, int]:
    return model(batch["x"]).square().sum(), 4


def test_case_35_float32_and_bfloat16_layers_are_grouped_apart(world: World) -> None:
    text = HEAD + "param otherwise : whole\n call root (x: [n/dp d]) -> [n/dp d]\n fsdp root over dp\n}\n"
    for found in world.run(train_beside, text, TwoDtypes, fours, squares, 2):
        assert found.holds(0.02)  # bfloat16 has 8 bits, and two ranks sum in another order than one
        assert sum(t.count for t in found.sent if (t.kind, t.axes) == ("reduce_scatter", ("dp",))) == 2


class FourByFive(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(20.0).view(4, 5) / 16)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)


@pytest.mark.parametrize("fsdp", ["", "fsdp root over dp"])
def test_case_36_a_weight_of_4_by_5_is_split_by_its_five_columns(world: World, fsdp: str) -> None:
    lines = f"param weight : [e d/~tp]\n call root (x: [n/dp d]) -> [n/dp e]\n {fsdp}"
    assert "Shard(dim=1)" in trained(world, lines, FourByFive, fives, squares).placements["weight"]


def test_case_39_a_pattern_in_vain_is_an_error_of_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "attention_net.py").write_text(
        "import torch\n\ndef build():\n    block = torch.nn.ModuleDict({'attention': torch.nn.ModuleDict("
        "{n: torch.nn.Linear(4, 4) for n in ('wq', 'wk')})})\n    return torch.nn.ModuleDict({'layers': "
        "torch.nn.ModuleList([block])})\n"
    )
    file = tmp_path / "net.shard"
    file.write_text(HEAD + "param layers.*.attention.wqq.weight : [f/tp d]\n param otherwise : whole\n}\n")
    done = CliRunner().invoke(main, ["check", "net.shard", "--model", "attention_net:build"])
    assert done.exit_code == 1
    assert "SL0601" in done.stderr
    assert "did you mean `layers.*.attention.wq.weight`" in done.stderr


class Rotated(nn.Module):
    """With a table that is neither parameter nor buffer, and a mask that comes as an argument no line names."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.linspace(-1, 1, 4)
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        turned = x * self.table + x.roll(2, -1) * (1 - self.table)
        return self.linear(turned if mask is None else turned.masked_fill(mask, 0.0))


def masked(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, int]:
    mask = torch.tensor([False, True, False, False])
    return model(batch["x"], mask).square().sum(), 4


ROTATED = "param linear.weight : [f/tp d]\n param otherwise : whole\n call root (x: [n/dp d]) -> [n/dp d]{}\n"


def test_case_40_a_plain_mask_and_a_plain_table_are_taken_as_whole(world: World) -> None:
    trained(world, ROTATED.format(" eager") + " fsdp root over dp", Rotated, fours, masked)


def test_case_40_where_a_call_is_compiled_a_plain_mask_and_a_plain_table_are_whole_too(world: World) -> None:
    trained(world, ROTATED.format("") + " fsdp root over dp", Rotated, fours, masked)


def test_case_40_a_tensor_that_a_signature_leaves_out_is_named() -> None:
    @sl.sharded("(x: [n/a d]) -> [n/a d]", Mesh("m", (Axis("a", 2),)))
    def masked_rows(x: Any, mask: Any) -> Any:
        return x.masked_fill(mask, 0.0)

    with pytest.raises(sl.ShardlangError) as caught:
        masked_rows.program_for(torch.ones(4, 4), torch.ones(4, dtype=torch.bool))
    assert caught.value.codes == ("SL0522",)
    assert "`mask`" in caught.value.diagnostics[0].message


def test_case_43_a_vocabulary_of_50257_over_two(world: World) -> None:
    lines = "param {embed,output}.weight : [v/~tp d]\n call root (tokens: [n/dp s]) -> [n/dp s v/~tp]"
    trained(world, lines, gpt2_ends, far_tokens, next_token)
