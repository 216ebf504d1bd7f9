"""A ``rule`` of a file counts for that file's functions and models, and for no other's."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import shardlang as sl
from shardlang.diagnostics import ShardlangError
from shardlang.runtime.record import Recorder
from tests.world import World, torch_mesh

SPECTRA = "fn spectrum on pod (x: [b/tp d]) -> [b/tp d]\n"
MESH = "mesh pod = tp:4\n"
RULE = "rule aten.fft_ifft: [... i!] -> [... i!]\n"


def spectrum(x: torch.Tensor) -> torch.Tensor:
    return torch.fft.ifft(x).real


def outcome(text: str) -> str:
    """The code with which a file's function is refused, or its plan's first line."""
    try:
        sl.loads(text).fn(spectrum).program_for(torch.empty(8, 6, device="meta"))
    except ShardlangError as error:
        return error.codes[0]
    return "typed"


def test_a_rule_of_one_file_does_not_count_in_another() -> None:
    assert outcome(MESH + SPECTRA) == "SL0507"
    assert outcome(MESH + RULE + SPECTRA) == "typed"
    assert outcome(MESH + SPECTRA) == "SL0507"


def test_a_rule_of_a_file_goes_before_ours_in_that_file_alone() -> None:
    sums = MESH + "fn total on pod (x: [b/tp d]) -> [d]\n"

    def total(x: torch.Tensor) -> torch.Tensor:
        return x.sum(0)

    with pytest.raises(ShardlangError) as caught:
        sl.loads(sums + "rule aten.sum: [b! d] -> [d]\n").fn(total).program_for(torch.empty(8, 6, device="meta"))
    assert caught.value.codes == ("SL0502",)
    assert sl.loads(sums).fn(total).program_for(torch.empty(8, 6, device="meta")).moves


class Spectrum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.fft.ifft(x * self.weight).real


MODEL = """model net on pod {
  param otherwise : whole
  call root (x: [b/tp d]) -> [b/tp d]
}
"""


def through_a_model(text: str) -> tuple[list[float], list[str]]:
    """On a rank: what the file's model makes of a known tensor, and the kinds of collectives that it takes."""
    mesh = torch_mesh((4,), ("tp",))
    model = sl.loads(text).apply(Spectrum(), mesh)
    x = sl.distribute(torch.arange(48.0).view(8, 6), "[n/tp d]", mesh)
    model(x)
    with Recorder() as recorder:
        made = model(x)
    return made.full_tensor().flatten().tolist(), [issued.kind for issued in recorder.issued]


def test_a_rule_of_a_file_counts_in_the_calls_of_its_models(world: World) -> None:
    want = pytest.approx(Spectrum()(torch.arange(48.0).view(8, 6)).flatten().tolist(), abs=1e-4)
    assert world.run(through_a_model, MESH + RULE + MODEL) == [(want, [])] * 4
    assert world.run(through_a_model, MESH + MODEL) == [(want, ["all_gather"])] * 4
