"""Ranks agree before they send: on plan, dtype and the fit of their blocks, at the first use of each.

One small collective on a group of its own, so that a rank that comes with another plan meets the others here and not
in the middle of a transfer. What was agreed once is not asked again, unless ``SHARDLANG_AGREE`` says so: ``first``
(the default), ``always``, ``never``. This is control traffic and not in any plan's bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from shardlang.diagnostics import ShardlangError, sl07_runtime
from shardlang.runtime import faults
from shardlang.runtime.groups import Group, group_of

if TYPE_CHECKING:
    from shardlang.runtime.distributed import ReadyPlan

_TEXT = 2048
"""Bytes that a rank's account may have, once ranks differ."""
_sequence: Counter[tuple[int, ...]] = Counter()


def mode() -> str:
    """``first``, ``always`` or ``never``."""
    return os.environ.get("SHARDLANG_AGREE", "first")


def wanted(check: bool | None) -> bool:
    """Are ranks to agree now? An explicit ``check`` of a call wins over the mode."""
    return mode() != "never" if check is None else check


def agree(plan: ReadyPlan, block: torch.Tensor, fits: bool) -> None:
    """Returns where all ranks of a plan have the same plan and dtype, and blocks that fit.

    Raises ShardlangError, the same on all ranks: SL0701 with both sides where they differ, SL0703 for a block that does
    not fit, SL0702 for a rank that does not come.
    """
    if len(plan.ranks) == 1 or dist.get_backend() == "fake":
        return
    said = {
        "what": f"{plan.plan.source} => {plan.plan.target}",
        "dtype": str(block.dtype).removeprefix("torch."),
        "hash": plan.plan.hash,
    }
    try:
        accounts = exchange_accounts(plan.ranks, said, {"shape": list(block.shape), "fits": fits})
    except RuntimeError as error:
        raise faults.lost(plan, -1, error) from error
    if accounts is None:
        return
    first = accounts[0]
    for rank, other in zip(plan.ranks, accounts, strict=True):
        if any(other[k] != first[k] for k in ("what", "dtype", "hash", "sequence")):
            raise ShardlangError(sl07_runtime.ranks_disagree(plan.ranks[0], _told(first), rank, _told(other)))
    for rank, other in zip(plan.ranks, accounts, strict=True):
        if not other["fits"]:
            due = plan.plan.source.local_shape(plan.team.logical(rank))
            raise ShardlangError(
                sl07_runtime.block_of_wrong_size(str(plan.plan.source), tuple(other["shape"]), due, rank)
            )


def exchange_accounts(ranks: tuple[int, ...], same: dict[str, Any], own: dict[str, Any]) -> list[dict[str, Any]] | None:
    """What every rank says, by rank, where anything is amiss; ``None`` where all say ``same`` and ``own["fits"]``."""
    _sequence[ranks] += 1
    same = same | {"sequence": _sequence[ranks]}
    digest = hashlib.sha256(json.dumps(same, sort_keys=True).encode()).digest()[:16] + bytes([own["fits"]])
    group = group_of(ranks)
    answers = gather_bytes(group, digest.ljust(24, b"\0"))
    if all(a == answers[0] for a in answers) and own["fits"]:
        return None
    text = json.dumps(same | own).encode()
    if len(text) > _TEXT:
        text = json.dumps({k: v[:200] if isinstance(v, str) else v for k, v in (same | own).items()}).encode()
    return [json.loads(a.rstrip(b"\0")) for a in gather_bytes(group, text.ljust(_TEXT, b"\0"))]


def gather_bytes(group: Group, mine: bytes) -> list[bytes]:
    """Equally many bytes of every rank, in the group's order."""
    given = torch.frombuffer(bytearray(mine), dtype=torch.uint8)
    got = [torch.empty_like(given) for _ in range(group.size)]
    dist.all_gather(got, given, group.handle)
    return [bytes(g.tolist()) for g in got]


def _told(account: dict[str, Any]) -> str:
    return f"{account['dtype']} {account['what']} (call {account['sequence']})"
