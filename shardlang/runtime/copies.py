"""Are whole values whole? An opt-in look at whether ranks that should hold the same block do."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from shardlang.diagnostics import ShardlangError, sl07_runtime
from shardlang.lower import torch_private
from shardlang.runtime import words
from shardlang.runtime.faults import told_apart
from shardlang.runtime.handle import ShardTensor
from shardlang.runtime.reshard import layout_of
from shardlang.runtime.specs import team_of


def check_copies(x: DTensor | ShardTensor) -> Any:
    """``x`` itself, once all ranks that hold the same block of it were seen to hold the same bits.

    One small collective over the mesh (a digest a rank). Raises ShardlangError: SL0708, the same on all ranks; SL0702.
    """
    here = layout_of(x)
    block = x.block if isinstance(x, ShardTensor) else torch_private.block_of(x)
    team = team_of(x.device_mesh)
    data = block.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    digest = hashlib.sha256(data.numpy().tobytes()).digest()
    ranks = tuple(sorted(team.physical(r) for r in here.mesh.ranks))
    about = f"comparing the copies of a value in `{here}`"
    with told_apart(ranks, about):
        answers = words.tell(words.group_for_words(ranks), about, digest)
    if answers is None:
        return x
    told = dict(zip(ranks, answers, strict=True))
    first: dict[Any, int] = {}
    owed = [p.axis for p in here.owed()]
    for rank in here.mesh.ranks:
        part = here.runs(rank), tuple(here.mesh.coordinate(rank, a) for a in owed)
        one, other = team.physical(first.setdefault(part, rank)), team.physical(rank)
        if told[one] != told[other]:
            raise ShardlangError(sl07_runtime.copies_differ(str(here), one, other))
    return x
