"""Budgets, and the memory they are held against."""

from __future__ import annotations

import pytest

from shardlang.check.budget import budget_faults
from shardlang.check.facts import Facts, Tensor, modules_of
from shardlang.check.memory import Memory, predict
from shardlang.check.model import check_model
from shardlang.diagnostics import Diagnostic
from shardlang.diagnostics.sl06_budgets import size_text
from tests.check.marked import assert_faults, program, unmark

HEAD = "link ib = 50 GB/s, 12 us\nlink nv = 450 GB/s, 3 us\nmesh pod = dp:2@ib * fsdp:4@nv * tp:2@nv\n"
GIVEN = {f"layers.{i}.w": Tensor((64, 32), "f32") for i in range(4)} | {
    "table": Tensor((8,), "u8"),
    "head": Tensor((16, 32), "f32"),
}
LINES = """
  param layers.*.w : [f/tp d]
  param otherwise : whole
"""


def memory(lines: str) -> Memory:
    found = program(f"{HEAD}model net on pod {{{LINES}{lines}}}")
    return predict(check_model(found.models["net"], Facts(GIVEN, modules_of(GIVEN))))


def faults(budget: str, lines: str) -> tuple[list[Diagnostic], list[str]]:
    """What breaks a budget, and what each fault points at."""
    text, spans = unmark(f"{HEAD}model net on pod {{{LINES}{lines}}}\nbudget net {{ {budget} }}")
    checked = program(text)
    layouts = check_model(checked.models["net"], Facts(GIVEN, modules_of(GIVEN)))
    found = budget_faults(checked.budgets[0], layouts)
    assert [(d.span.start, d.span.end) for d in found if d.span] == spans
    return found, [d.code for d in found]


BLOCK = 32 * 32 * 4
HEAD_BYTES = 16 * 32 * 4


def test_without_fsdp_a_rank_stores_its_blocks() -> None:
    stored = 4 * BLOCK + HEAD_BYTES
    assert memory("") == Memory(stored + 8, stored, 2 * stored, 0, 4 * stored + 8)


def test_fsdp_stores_parts_and_holds_two_groups_and_the_gradients_of_two_at_once() -> None:
    found = memory("fsdp layers.* over fsdp replicate dp\nfsdp root over fsdp { reshard no }")
    stored = BLOCK + HEAD_BYTES // 4
    assert (found.parameters, found.gradients, found.optimizer) == (stored + 2, stored, 2 * stored)
    kept = HEAD_BYTES + 8
    assert found.forward == kept + 2 * BLOCK  # one, and the buffer that it or the next comes in
    assert found.gathered == kept + 2 * BLOCK + 2 * BLOCK
    assert found.ungrouped == 0


def test_mixed_precision_halves_what_is_gathered() -> None:
    found = memory("fsdp layers.* over fsdp { param bf16, reduce f32 }")
    # Two groups and the gradients of one in bfloat16, those that are being reduced in float32.
    assert found.gathered == 3 * BLOCK // 2 + BLOCK


def test_more_prefetch_holds_more_groups() -> None:
    assert memory("fsdp layers.* over fsdp { prefetch 3 }").gathered == 4 * BLOCK + 2 * BLOCK


def test_groups_that_stay_go_as_their_gradients_come() -> None:
    assert memory("fsdp layers.* over fsdp { reshard no }").gathered == 4 * BLOCK + BLOCK


def test_frozen_and_integer_parameters_have_no_gradient() -> None:
    found = memory("freeze layers.**")
    assert (found.parameters, found.gradients) == (4 * BLOCK + HEAD_BYTES + 8, HEAD_BYTES)


def test_what_is_offloaded_is_not_on_the_device() -> None:
    found = memory("fsdp root over fsdp { offload yes }")
    assert (found.parameters, found.gradients, found.optimizer) == (0, 0, 0)
    assert found.gathered > 0


def test_a_group_of_one_rank_is_copied_and_not_gathered() -> None:
    text = f"{HEAD.replace('fsdp:4', 'fsdp:1')}model net on pod {{{LINES}fsdp layers.* over fsdp}}"
    found = predict(check_model(program(text).models["net"], Facts(GIVEN, modules_of(GIVEN))))
    assert (found.forward, found.gathered) == (BLOCK, 2 * BLOCK)


def test_a_budget_that_is_kept_is_silent() -> None:
    assert faults("memory <= 1 MiB", "fsdp layers.* over fsdp") == ([], [])


def test_a_budget_that_is_broken_says_by_how_much_and_what_would_mend_it() -> None:
    (found,), codes = faults("«memory <= 64 KiB»", "")
    assert codes == ["SL0651"]
    assert found.message == "model `net` takes at least 72.01 KiB on a rank, and its budget is 64 KiB"
    assert found.notes[0].startswith("parameters 18.01 KiB, gradients 18 KiB, optimizer 36 KiB, gathered groups 0 B")
    assert found.helps == (
        "72.01 KiB are of parameters that no `fsdp` line stores in parts: add one",
        "2 times as many ranks to share what is stored would do: name more axes after `over`",
    )


def test_a_budget_under_what_is_gathered_asks_for_smaller_groups() -> None:
    (found,), _ = faults("«memory <= 8 KiB»", "fsdp root over fsdp { reshard no }")
    assert found.helps == ("gather less at once: `reshard yes`, or an `fsdp` line for smaller modules",)


@pytest.mark.parametrize(
    ("budget", "lines", "codes"),
    [
        ("forbid all_gather on ib", "fsdp layers.* over fsdp replicate dp", []),
        ("«forbid all_reduce on ib»", "fsdp layers.* over fsdp replicate dp", ["SL0652"]),
        (
            "«forbid all_gather on ib»; «forbid reduce_scatter on ib»",
            "fsdp layers.* over dp/fsdp",
            ["SL0652", "SL0652"],
        ),
        ("forbid all_gather on ib; «forbid all_gather on nv»", "fsdp layers.* over fsdp", ["SL0652"]),
        ("forbid reduce_scatter on nv", "fsdp layers.* over fsdp freeze layers.**", []),
    ],
)
def test_a_forbidden_step_is_found_by_its_link(budget: str, lines: str, codes: list[str]) -> None:
    assert faults(budget, lines)[1] == codes


def test_a_budget_on_a_mesh_of_open_size_is_not_held() -> None:
    text = f"{HEAD.replace('dp:2', 'dp:?')}model net on pod {{{LINES}}}\nbudget net {{ memory <= 1 KiB }}"
    checked = program(text)
    layouts = check_model(checked.models["net"], Facts(GIVEN, modules_of(GIVEN)))
    (found,) = budget_faults(checked.budgets[0], layouts)
    assert (found.code, found.severity) == ("SL0656", "warning")


def test_of_two_limits_the_lower_counts() -> None:
    (found,), _ = faults("memory <= 1 GiB; «memory <= 1 KiB»", "")
    assert found.code == "SL0651"


def test_no_plan_stays_under_its_own_ends() -> None:
    assert_faults(f"{HEAD}model net on pod {{ }}\nbudget net {{ «peak <= 0.9x» }}", "SL0653")


def test_sizes_are_written_with_four_digits() -> None:
    assert [size_text(n) for n in (0, 1023, 1024, 1536, 65884126412, 2**50)] == [
        "0 B", "1023 B", "1 KiB", "1.5 KiB", "61.36 GiB", "1 PiB",
    ]  # fmt: skip
