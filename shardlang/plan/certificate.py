"""A short checker of plans that shares no code with what makes them: it works from the definition of a layout alone.

Every block is derived anew (factors cut evenly, major to minor, then the flat cuts in ``torch.chunk``'s way), every
step is held to the meaning of its kind, and bytes, arrays, cap, bound and gap are counted again. Up to ``RANKS`` ranks
all are looked at; of more (over the axes that matter) a fixed sample, against all blocks by volume.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from shardlang.layout import Layout
from shardlang.mesh import PICO
from shardlang.plan.blocks import (
    RANKS,
    Box,
    View,
    common,
    coordinate,
    groups,
    largest,
    merged,
    ranks_of,
    size_of,
    used_axes,
    view,
    volume,
)
from shardlang.plan.plan import Plan
from shardlang.plan.steps import Step

WAIVED = 1 << 20


def faults(plan: Plan) -> tuple[str, ...]:
    """Everything that is wrong with a plan; nothing if it is what it says."""
    return tuple(_faults(plan))


def certificate(plan: Plan) -> dict[str, Any]:
    """What there is to check: states with their runs by formula, bytes by rank, bound, gap and peak; JSON."""
    states = [plan.source, *(s.target for s in plan.steps)]
    return {
        "hash": plan.hash,
        "states": [{"layout": str(x), "mesh": str(x.mesh), "runs": list(formulas(x))} for x in states],
        "received_by_rank": {str(r): n for r, n in sorted(received_by_rank(plan).items())},
        "bytes_bound": plan.bytes_bound,
        "bound": plan.bound,
        "cost": plan.cost,
        "gap": plan.gap,
        "complete": plan.complete,
        "complete_together": plan.complete_together,
        "largest_array_ratio": plan.largest_array_ratio,
        "live_peak_bytes": plan.live_peak_bytes,
    }


def formulas(layout: Layout) -> tuple[str, ...]:
    """The indices of each dim that a rank holds, from its coordinates: ``2048*a + 512*b + [0, 512)``."""
    found = []
    for dim in layout.canonical():
        low, terms = 1, []
        for i, digit in enumerate(reversed(dim.digits)):
            if digit.axis is not None:
                at = digit.axis if digit.divisor == 1 else f"({digit.axis} // {digit.divisor} % {digit.size})"
                if digit.divisor == 1 and layout.mesh.axis(digit.axis).size != digit.size:
                    at = f"({digit.axis} % {digit.size})"
                terms.append(at if low == 1 else f"{low}*{at}")
            elif i == 0:
                terms.append(f"[0, {digit.size})")
            else:
                terms.append(f"{low}*[0, {digit.size})")
            low *= digit.size
        if not dim.digits or dim.digits[-1].axis is not None:
            terms.insert(0, "[0, 1)")
        text = " + ".join(reversed(terms))
        found.append(text + "".join(f", chunk {axis} of {ways}" for axis, ways in dim.flat))
    return tuple(found)


def received_by_rank(plan: Plan) -> dict[int, int]:
    """The bytes that each rank receives over all steps, counted anew."""
    total: dict[int, int] = {}
    for step in plan.steps:
        ranks = ranks_of(step)
        found = _received(step, view(step.source, ranks), view(step.target, ranks), plan.itemsize)
        for rank, n in found.items():
            total[rank] = total.get(rank, 0) + n
    return total


def _faults(plan: Plan) -> Iterator[str]:
    states = [plan.source, *(s.target for s in plan.steps)]
    befores = [*(s.source for s in plan.steps), plan.target]
    for i, (left, right) in enumerate(zip(states, befores, strict=True)):
        if not _same(left, right):
            yield f"step {i + 1} starts from {right}, but what there is then is {left}"
            return
    received = 0
    for i, step in enumerate(plan.steps, 1):
        ranks = ranks_of(step)
        before, after = view(step.source, ranks), view(step.target, ranks)
        wrong = list(_meaning(step, before, after))
        yield from (f"step {i}, {step.kind} over {'/'.join(step.axes)}: {w}" for w in wrong)
        if wrong:
            return
        yield from (f"step {i}, {step.kind}: {w}" for w in _figures(step, before, after, plan.itemsize))
        received += step.bytes_received
    yield from _totals(plan, received)


def _same(left: Layout, right: Layout) -> bool:
    """Do two layouts give every rank the same box and leave the same to be reduced?"""
    if left.mesh.ranks != right.mesh.ranks or [f for d in left.dims for f in [size_of(d)]] != [
        size_of(d) for d in right.dims
    ]:
        return False
    step = Step("slice", (), left, right)
    ranks = ranks_of(step)
    a, b = view(left, ranks), view(right, ranks)
    strides = [
        sorted(
            (x.mesh.stride(p.axis), x.mesh.axis(p.axis).size, p.op) for p in x.pending if x.mesh.axis(p.axis).size > 1
        )
        for x in (left, right)
    ]
    whole = [merged(s) for s in strides]
    return a.boxes == b.boxes and whole[0] == whole[1]


def _meaning(step: Step, before: View, after: View) -> Iterator[str]:
    """What keeps a step from being one of its kind."""
    gone = [x for x in before.owed if x not in after.owed]
    fresh = [x for x in after.owed if x not in before.owed]
    names = {leaf for a in step.axes for leaf in step.source.mesh.expand(a)}
    sends_values = step.kind in ("slice", "all_gather", "all_to_all", "permute")
    if sends_values and (gone or fresh):
        yield f"pending axes change from {before.owed} to {after.owed}"
    if step.kind in ("reduce_scatter", "all_reduce", "exchange") and fresh:
        yield f"pending axes appear: {fresh}"
    if step.kind in ("reduce_scatter", "all_reduce") and {a for a, _ in gone} != {
        n for n in names if step.source.mesh.axis(n).size > 1
    }:
        yield f"its group is not the axes whose reduction ends, {[a for a, _ in gone]}"
    if len({op for _, op in gone if step.kind not in ("scale", "mask")} | {step.op or ""} - {""}) > 1:
        yield f"its operator {step.op} is not that of {gone}"
    check = {
        "slice": _slice,
        "all_gather": _gather,
        "all_to_all": _all_to_all,
        "reduce_scatter": _scatter,
        "all_reduce": _all_reduce,
        "permute": _permute,
        "exchange": _exchange,
        "scale": _scale,
        "mask": _mask,
    }
    yield from check[step.kind](step, before, after)


def _slice(step: Step, before: View, after: View) -> Iterator[str]:
    for rank, box in after.boxes.items():
        if rank not in before.boxes or common(before.boxes[rank], box) != volume(box):
            yield f"rank {rank} lacks elements that it is to keep"
            return


def _gather(step: Step, before: View, after: View) -> Iterator[str]:
    for group in groups(step, tuple(after.boxes)):
        for rank in group:
            box = after.boxes[rank]
            found = sum(common(b, box) for b in {before.boxes[q] for q in group})
            if found != volume(box) or any(common(before.boxes[q], box) != volume(before.boxes[q]) for q in group):
                yield f"the blocks of {group} do not make up the block of rank {rank}"
                return


def _all_to_all(step: Step, before: View, after: View) -> Iterator[str]:
    for group in groups(step, tuple(after.boxes)):
        for rank in group:
            box = after.boxes[rank]
            shares = [common(before.boxes[q], box) for q in group]
            if len(set(shares)) != 1 or sum(shares) != volume(box):
                yield f"rank {rank} gets pieces of {sorted(set(shares))} elements from {group} for {volume(box)}"
                return


def _scatter(step: Step, before: View, after: View) -> Iterator[str]:
    for group in groups(step, tuple(after.boxes)):
        block = before.boxes[group[0]]
        boxes = [after.boxes[q] for q in group]
        if any(before.boxes[q] != block for q in group):
            yield f"the ranks {group} do not hold parts of the same block"
            return
        volumes = {volume(b) for b in boxes}
        apart = len(set(boxes)) == len(boxes) or volumes == {0}
        if len(volumes) != 1 or not apart or sum(common(block, b) for b in boxes) != volume(block):
            yield f"the new blocks of {group} are no equal cut of the old one"
            return


def _all_reduce(step: Step, before: View, after: View) -> Iterator[str]:
    if before.boxes != after.boxes:
        yield "blocks change"


def _permute(step: Step, before: View, after: View) -> Iterator[str]:
    if step.source.mesh.size <= RANKS and sorted(before.boxes.values()) != sorted(after.boxes.values()):
        yield "the new blocks are not the old ones in another order"
    elif len({volume(b) for b in (*before.boxes.values(), *after.boxes.values())}) > 1:
        yield "blocks differ in size"


def _exchange(step: Step, before: View, after: View) -> Iterator[str]:
    kept = [before.owed.index(x) for x in after.owed if x in before.owed]
    gone = [i for i in range(len(before.owed)) if i not in kept]
    parts = math.prod(step.source.mesh.axis(before.owed[i][0]).size for i in gone)
    sets: dict[tuple[int, ...], set[tuple[tuple[int, ...], Box]]] = {}
    for rank, box in before.boxes.items():
        at = before.parts[rank]
        sets.setdefault(tuple(at[i] for i in kept), set()).add((tuple(at[i] for i in gone), box))
    if step.source.mesh.size > RANKS:
        return
    for rank, box in after.boxes.items():
        there = sets.get(after.parts[rank], set())
        if sum(common(b, box) for _, b in there) != parts * volume(box):
            yield f"what rank {rank} needs is not what there is to have"
            return


def _scale(step: Step, before: View, after: View) -> Iterator[str]:
    factor = Fraction(1)
    for (axis, op), (_, new) in zip(before.owed, after.owed, strict=False):
        if op != new:
            size = step.source.mesh.axis(axis).size
            factor *= Fraction(1, size) if (op, new) == ("avg", "sum") else size
    if before.boxes != after.boxes or [a for a, _ in before.owed] != [a for a, _ in after.owed]:
        yield "more than the operator of pending axes changes"
    elif step.source != step.target and step.scale != factor:
        yield f"it multiplies by {step.scale}, not by {factor}"


def _mask(step: Step, before: View, after: View) -> Iterator[str]:
    mesh = step.source.mesh
    cut = {leaf for a in used_axes(step.source) for leaf in mesh.expand(a)} - {a for a, _ in before.owed}
    fresh = {x for x in after.owed if x not in before.owed}
    leaves = {leaf for a in step.axes for leaf in mesh.expand(a) if mesh.axis(leaf).size > 1}
    if {a for a, _ in fresh} != leaves or any(op != step.op for _, op in fresh):
        yield f"the axes that become pending are {sorted(fresh)}, not {sorted(leaves)} with {step.op}"
        return
    for group in groups(step, tuple(after.boxes)):
        keepers = [q for q in group if all(coordinate(mesh, q, a) == 0 for a in leaves - cut)]
        box = after.boxes[group[0]]
        if any(after.boxes[q] != box for q in group):
            yield f"the ranks {group} do not hold parts of the same block"
            return
        if sum(common(before.boxes[q], box) for q in keepers) != volume(box):
            yield f"each element is not held by exactly one of {group}"
            return


def _received(step: Step, before: View, after: View, itemsize: int) -> dict[int, int]:
    """Bytes that each rank receives."""
    ways = math.prod(step.source.mesh.axis(a).size for a in step.axes)
    gone = [a for a, _ in before.owed if (a, _) not in after.owed]
    parts = math.prod(step.source.mesh.axis(a).size for a in gone)
    found: dict[int, int] = {}
    for rank, box in after.boxes.items():
        need, own = volume(box) * itemsize, 0
        if rank in before.boxes:
            own = common(before.boxes[rank], box) * itemsize
        found[rank] = {
            "all_gather": need - own,
            "all_to_all": need - own,
            "reduce_scatter": (ways - 1) * need,
            "all_reduce": -(-2 * need * (ways - 1) // ways),
            "permute": need - own if need != own else 0,
            "exchange": need * parts - own,
        }.get(step.kind, 0)
        if step.kind == "permute" and need != own:
            found[rank] = need
    return found


def _figures(step: Step, before: View, after: View, itemsize: int) -> Iterator[str]:
    worst = max(_received(step, before, after, itemsize).values(), default=0)
    links = {a.link for x in (step.source, step.target) for a in x.mesh.axes}
    rounding = len(links) * itemsize if step.kind == "all_reduce" else 0
    if not worst <= step.bytes_received <= worst + rounding:
        yield f"the worst rank receives {worst} bytes, not {step.bytes_received}"
    if step.kind in ("slice", "scale", "mask"):
        if step.bytes_sent or step.time:
            yield "a step that sends nothing has a price"
        return
    everything = sum(_received(step, before, after, itemsize).values())
    senders = len(before.boxes)
    if step.bytes_sent * senders < everything and step.source.mesh.size <= RANKS:
        yield f"{senders} ranks that send at most {step.bytes_sent} bytes do not send {everything}"
    fastest = max((x.bandwidth for x in links), default=1)
    least = max(step.bytes_received, step.bytes_sent if step.kind != "exchange" else 0) * PICO // fastest
    if step.time + 2 < least:
        yield f"{step.time} ps is too little for {step.bytes_received} bytes"


def _totals(plan: Plan, received: int) -> Iterator[str]:
    if plan.bytes_received > received:
        yield f"it says that {plan.bytes_received} bytes are received; its steps come to {received}"
    views = [view(x, ranks_of(Step("slice", (), plan.source, plan.target))) for x in (plan.source, plan.target)]
    if not views[0].owed and not views[1].owed:
        lacks = [
            volume(box) - (common(views[0].boxes[r], box) if r in views[0].boxes else 0)
            for r, box in views[1].boxes.items()
        ]
        missing = max(lacks, default=0) * plan.itemsize
        if plan.bytes_bound != missing:
            yield f"some rank lacks {missing} bytes, and the bound says {plan.bytes_bound}"
        if plan.objective == "bytes" and plan.complete and plan.bytes_received != missing:
            yield f"it says that no plan receives less than {plan.bytes_received}, and ranks lack only {missing}"
    if plan.bytes_bound > plan.bytes_received:
        yield f"it receives {plan.bytes_received} bytes, less than its own bound of {plan.bytes_bound}"
    if (
        plan.bound > plan.cost
        or not 0 <= plan.gap <= 1
        or (plan.gap == 0 and not plan.complete and plan.bound < plan.cost)
    ):
        yield f"a bound of {plan.bound} and a cost of {plan.cost} give no gap of {plan.gap}"
    sizes = [largest(x) * plan.itemsize for x in (plan.source, plan.target)]
    arrays = sizes + [largest(s.target) * plan.itemsize for s in plan.steps]
    arrays += [s.bytes_received for s in plan.steps if s.kind == "exchange"]
    if plan.cap is not None and max(arrays) > max(plan.cap * max(sizes), WAIVED):
        yield f"an array of {max(arrays)} bytes is over the cap of {plan.cap}x"
    if max(sizes) and abs(plan.largest_array_ratio - max(arrays) / max(sizes)) > 1e-9:
        yield f"its largest array is {max(arrays) / max(sizes)}x of the larger end, not {plan.largest_array_ratio}x"
