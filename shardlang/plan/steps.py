"""What a plan is: the steps from one layout to another, priced. Data only; ``search`` makes plans.

The meaning of a step is fixed by its kind, axes, and the layouts before and after it, so that every back end (the
simulator, ``torch.distributed``, the certificate's checker) can work it out alone:

==================  ==========================================================================================
``slice``           every rank keeps the part of its own block that the target gives it; nothing is sent
``all_gather``      the axes stop splitting; each rank receives the blocks of its group
``all_to_all``      the axes split another dim (or the same one elsewhere); equal pieces go to every member of the group
``reduce_scatter``  the axes were pending with ``op`` and now split; pieces go to their owners and are reduced there
``all_reduce``      the axes were pending with ``op`` and are now whole
``permute``         a bijection of equal blocks: each rank sends its block to one rank and receives one
``exchange``        each rank receives exactly what it lacks, senders spread evenly over the holders; with
                    ``op``, pending axes are reduced on arrival; source and target may be on different meshes
``scale``           local and free: every element times ``scale`` (turns a pending avg into a sum, or back)
``mask``            local and free: makes whole or split axes pending (``op``): sum, one rank keeps a value
                    and the others hold zero; avg, max, min, every rank that has it keeps it; what a rank
                    lacks is the identity of ``op``. It may slice other whole axes at the same time
==================  ==========================================================================================
"""

from __future__ import annotations

from fractions import Fraction
from typing import Literal

from attrs import frozen

from shardlang.layout import Layout, ReduceOp

Kind = Literal[
    "slice", "all_gather", "all_to_all", "reduce_scatter", "all_reduce", "permute", "exchange", "scale", "mask"
]
FREE: frozenset[str] = frozenset({"slice", "scale", "mask"})
"""The kinds of steps that send nothing."""
Objective = Literal["time", "bytes"]


@frozen
class Step:
    """One step. Bytes are those of the worst rank; ``time`` is modelled, in picoseconds."""

    kind: Kind
    axes: tuple[str, ...]
    source: Layout
    target: Layout
    bytes_received: int = 0
    bytes_sent: int = 0
    time: int = 0
    op: ReduceOp | None = None
    scale: Fraction | None = None
