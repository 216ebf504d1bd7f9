"""Ranks agree before they send: on plan, dtype and the fit of their blocks, at the first use of each.

One small collective on a group for words, so that a rank that comes with another plan meets the others here and not
in the middle of a transfer. What was agreed once is not asked again, unless ``SHARDLANG_AGREE`` says so: ``first``
(the default), ``always``, ``never``. This is control traffic and not in any plan's bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from shardlang.diagnostics import ShardlangError, sl07_runtime
from shardlang.runtime import faults, turns, watch, words

if TYPE_CHECKING:
    from shardlang.runtime.distributed import ReadyPlan

_sequence: Counter[tuple[int, ...]] = Counter()


def mode() -> str:
    """``first``, ``always`` or ``never``."""
    return os.environ.get("SHARDLANG_AGREE", "first")


def wanted(check: bool | None) -> bool:
    """Are ranks to agree now? An explicit ``check`` of a call wins over the mode."""
    return mode() != "never" if check is None else check


def agree(plans: Sequence[ReadyPlan], blocks: Sequence[torch.Tensor]) -> None:
    """Returns where all ranks of some plans (of the same ranks) have the same ones and dtypes, and blocks that fit.

    Raises ShardlangError, the same on all ranks: SL0701 with both sides where they differ, SL0703 and SL0716 for a
    block that does not fit, SL0702 for a rank that does not come.
    """
    ranks = plans[0].ranks
    if len(ranks) == 1 or dist.get_backend() == "fake":
        return
    said = [f"{_name(b.dtype)} {p.plan.source} => {p.plan.target}" for p, b in zip(plans, blocks, strict=True)]
    misfit = next((i for i, (p, b) in enumerate(zip(plans, blocks, strict=True)) if not p.fits(b)), None)
    _sequence[ranks] += 1
    account: dict[str, Any] = {
        "said": said,
        "hashes": [p.plan.hash for p in plans],
        "call": _sequence[ranks],
        "misfit": None if misfit is None else [misfit, list(blocks[misfit].shape), blocks[misfit].device.type],
    }
    watch.ensure()
    shown = f"{_all_of(said)}, for the first time"
    try:
        with turns.taken(ranks, shown):
            told = words.tell(words.group_for_words(ranks), "agreement", json.dumps(account).encode(), shown)
    except words.Differ as error:
        raise faults.apart(ranks, error) from error
    except RuntimeError as error:
        raise faults.lost(plans[0], -1, error) from error
    if told is None and misfit is None:
        return
    accounts = [account] * len(ranks) if told is None else [json.loads(t) for t in told]
    first = accounts[0]
    for rank, other in zip(ranks, accounts, strict=True):
        if any(other[k] != first[k] for k in ("said", "hashes", "call")):
            faults.dissolve(ranks)
            raise ShardlangError(sl07_runtime.ranks_disagree(ranks[0], rank, *_differ(first, other)))
    for rank, other in zip(ranks, accounts, strict=True):
        if other["misfit"] is not None:
            index, shape, device = other["misfit"]
            raise ShardlangError(plans[index].misfit(tuple(shape), device, rank))


def _differ(one: dict[str, Any], other: dict[str, Any]) -> tuple[str, str]:
    """The two sides of the first difference, in words."""
    for i, (mine, theirs) in enumerate(zip(one["said"], other["said"], strict=False)):
        if mine != theirs or one["hashes"][i] != other["hashes"][i]:
            which = f"tensor {i} of {{}}: " if len(one["said"]) > 1 or len(other["said"]) > 1 else ""
            calls = f" (call {one['call']})", f" (call {other['call']})"
            return (
                which.format(len(one["said"])) + mine + calls[0],
                which.format(len(other["said"])) + theirs + calls[1],
            )
    mine, theirs = (f"{len(a['said'])} tensors, first {a['said'][0]} (call {a['call']})" for a in (one, other))
    return mine, theirs


def _all_of(said: list[str]) -> str:
    """All transfers of a call, told apart from others in a short text."""
    if len(said) == 1:
        return said[0]
    digest = hashlib.sha256("\n".join(said).encode()).hexdigest()[:8]
    return f"{len(said)} tensors, the first {said[0]} ({digest})"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
