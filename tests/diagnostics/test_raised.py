"""Codes whose explanation shows what needs several ranks or a whole run: here they are raised."""

import pytest
import torch
from torch import nn
from torch.distributed.tensor import Replicate, distribute_tensor

import shardlang as sl
from shardlang.check.model import check_model
from shardlang.cli.run import _faults
from shardlang.diagnostics import ShardlangError
from shardlang.lower.facts import facts_of
from shardlang.lower.model import lower_model
from tests.world import World, torch_mesh


class Doubles(nn.Module):
    """Takes and gives a tensor; its weight is in the result, so that training it would mean something."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * self.weight * x


class TwoDtypes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8, 8))
        self.scale = nn.Parameter(torch.ones(8, dtype=torch.bfloat16))


def declared(lines: str) -> str:
    return f"mesh m = a:2 * b:2\n\nmodel net on m {{\n{lines}\n}}\n"


def codes_of_call(lines: str, kind: str) -> tuple[str, ...]:
    """On every rank: the codes that a call of a placed model raises, given a plain tensor or one of another mesh."""
    mesh = torch_mesh((2, 2), ("a", "b"))
    model = sl.loads(declared(lines)).apply(Doubles(), mesh)
    x = torch.arange(18.0).reshape(6, 3)
    if kind == "other mesh":
        x = distribute_tensor(x, torch_mesh((4,), ("c",)), [Replicate()])
    try:
        model(x)
    except ShardlangError as error:
        return error.codes
    return ()


@pytest.mark.parametrize(
    ("code", "call", "kind"),
    [
        ("SL0631", "call root (x: [n (3 2/a k)]) -> [n k] eager", "plain"),
        ("SL0632", "call root (x: [n d]) -> [n d] eager", "other mesh"),
        ("SL0633", "call root (x: [n/~a d]) -> [n/~a d] eager", "plain"),
    ],
)
def test_a_call_that_cannot_be_made_is_refused_alike_on_every_rank(
    world: World, code: str, call: str, kind: str
) -> None:
    assert world.run(codes_of_call, f"  param otherwise : whole\n  {call}", kind) == [(code,)] * 4


def codes_of_losses() -> list[tuple[str, ...]]:
    """What cross entropies raise of logits whose classes are split: of indices, and of what is more than these."""
    mesh = torch_mesh((4,), ("tp",))
    logits = sl.ones("[6 8/tp]", mesh)
    indices, likely = torch.zeros(6, dtype=torch.int64), torch.full((6, 8), 1 / 8)
    found = []
    for target, options in (
        (indices, {}),
        (indices, {"label_smoothing": 0.1}),
        (indices, {"weight": torch.ones(8)}),
        (likely, {}),
    ):
        try:
            sl.cross_entropy(logits, target, **options)
            found.append(())
        except ShardlangError as error:
            found.append(error.codes)
    return found


def test_a_cross_entropy_over_split_classes_takes_class_indices_alone(world: World) -> None:
    assert world.run(codes_of_losses) == [[(), *[("SL0715",)] * 3]] * 4


def test_a_module_with_trained_parameters_of_two_dtypes_is_refused() -> None:
    program = sl.loads(declared("  param otherwise : whole\n  fsdp root over a"))
    with pytest.raises(ShardlangError) as caught:
        lower_model(check_model(program.declared_model(), facts_of(TwoDtypes())))
    assert set(caught.value.codes) == {"SL0638"}


def test_results_that_differ_from_one_devices_fail_the_run() -> None:
    """No right run brings this about, so that its result is made up here."""
    made_up = {"collectives_planned": [], "collectives_run": []}
    training = {**made_up, "loss_max_relative_difference": 1e-3, "grad_norm_max_relative_difference": float("nan")}
    assert [fault.code for fault in _faults(training, 1e-5)] == ["SL0734", "SL0734"]
    right = {**training, "loss_max_relative_difference": 1e-6, "grad_norm_max_relative_difference": 1e-6}
    assert _faults(right, 1e-5) == []


@pytest.mark.parametrize(
    ("fall", "asked", "says"),
    [
        (0.3, None, None),
        (0.3, 0.3, None),
        (0.05, 0.1, "falls by 5.0% in 20 steps, and was to fall by 10.0%"),
        (-0.02, 0.0, "rises by 2.0%"),
        (float("nan"), 0.1, "is no number"),
    ],
)
def test_a_loss_that_does_not_fall_as_asked_fails_the_run(fall: float, asked: float | None, says: str | None) -> None:
    equal = {"loss_max_relative_difference": 0.0, "grad_norm_max_relative_difference": 0.0}
    result = {"collectives_planned": [], "collectives_run": [], **equal, "loss_fall": fall, "steps": 20}
    found = _faults(result, 1e-5, asked)
    assert [fault.code for fault in found] == ([] if says is None else ["SL0740"])
    assert says is None or says in found[0].message


def test_a_reshard_that_gave_another_tensor_fails_the_run() -> None:
    one = {"collectives_planned": [], "collectives_run": []}
    found = _faults({"reshards": {"r": {**one, "equal": False}, "s": {**one, "equal": True}}}, 1e-5)
    assert [fault.code for fault in found] == ["SL0739"]
    assert "`r`" in found[0].message
