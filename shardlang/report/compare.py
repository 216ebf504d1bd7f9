"""Beside ours, the plans that DTensor's two planners would make, priced by the same model. Imports torch."""

from __future__ import annotations

from typing import Any

from attrs import evolve, frozen

from shardlang.layout import Cut, Dim, Factor, Layout, Pending
from shardlang.mesh import PICO
from shardlang.plan.plan import Plan
from shardlang.plan.search import plan_transition
from shardlang.report.plan import duration, size


@frozen
class Rival:
    """Another planner's way: its steps in words, what the worst rank receives, time in ps, largest array in bytes."""

    steps: tuple[str, ...]
    received: int
    time: int
    largest: int


def placements(layout: Layout) -> list[Any] | None:
    """DTensor's placements; ``None`` where they cannot say the layout (orders, factors, sub-axes, flat cuts)."""
    from torch.distributed.tensor import Partial, Replicate, Shard

    mesh = layout.mesh
    order = {a.name: i for i, a in enumerate(mesh.axes)}
    found: list[Any] = [Replicate() for _ in mesh.axes]
    for d, dim in enumerate(layout.dims):
        axes = list(dim.axes())
        if len(dim.factors) != 1 or any(a not in order for a in axes) or axes != sorted(axes, key=order.__getitem__):
            return None
        for axis in axes:
            found[order[axis]] = Shard(d)
    for p in layout.pending:
        if p.axis not in order:
            return None
        found[order[p.axis]] = Partial(p.op)
    return found


def rival(plan: Plan, *, least_cost: bool) -> Rival | None:
    """What DTensor would do; ``None`` where it cannot say the ends."""
    from shardlang.lower.torch_private import dtensor_transitions

    mesh = plan.source.mesh
    ends = [placements(plan.source), placements(plan.target)]
    if plan.target.mesh != mesh or ends[0] is None or ends[1] is None:
        return None
    sizes = tuple(a.size for a in mesh.axes)
    now = [*ends[0]]
    steps: list[str] = []
    received = time = 0
    largest = plan.source.block_numel() * plan.itemsize
    made = dtensor_transitions(sizes, plan.source.shape, ends[0], ends[1], least_cost=least_cost)
    for axis, before, after in made:
        now[axis] = after
        # What a step on one axis costs is what our own plan of it would cost, were it done on that axis alone.
        alone = [_alone(plan.source, mesh.axes[axis].name, [*now[:axis], p, *now[axis + 1 :]]) for p in (before, after)]
        single = plan_transition(*alone, plan.dtype, cap=None)
        received += single.bytes_received
        time += single.time
        largest = max(largest, _block(plan, now))
        steps.append(f"{mesh.axes[axis].name}: {_word(before)} -> {_word(after)}")
    return Rival(tuple(steps), received, time, max(largest, plan.target.block_numel() * plan.itemsize))


def _alone(layout: Layout, axis: str, now: list[Any]) -> Layout:
    """One rank's block on a mesh of one axis: a block of the size that the other axes leave, in the axis' placement."""
    mesh = layout.mesh
    sizes = list(layout.shape)
    own = None
    for other, p in zip(mesh.axes, now, strict=True):
        if other.name == axis:
            own = p
        elif p.is_shard():
            sizes[p.dim] = -(-sizes[p.dim] // other.size)
    this = mesh.axis(axis)
    small = evolve(mesh, axes=(this,), splits={}, first_rank=0)
    dims = []
    for d, n in enumerate(sizes):
        cut = own is not None and own.is_shard() and own.dim == d
        if cut and n % this.size:
            dims.append(Dim((Factor(n),), (Cut(axis, uneven=True),)))
        else:
            dims.append(Dim((Factor(n, (axis,) if cut else ()),)))
    pending = (Pending(axis, own.reduce_op),) if own is not None and own.is_partial() else ()
    return Layout(small, tuple(dims), pending)


def _block(plan: Plan, now: list[Any]) -> int:
    sizes = list(plan.source.shape)
    for axis, p in zip(plan.source.mesh.axes, now, strict=True):
        if p.is_shard():
            sizes[p.dim] = -(-sizes[p.dim] // axis.size)
    total = plan.itemsize
    for n in sizes:
        total *= n
    return total


def _word(p: Any) -> str:
    return f"S({p.dim})" if p.is_shard() else "R" if p.is_replicate() else "P"


def compared(plan: Plan) -> str:
    """A table of the three, without a newline at the end."""
    rows = [("", "received", "time", "largest array", "steps")]
    ours = ", ".join(f"{s.kind} {'/'.join(s.axes)}" for s in plan.steps)
    rows.append(("shardlang", size(plan.bytes_received), duration(plan.time), size(plan.largest_array_bytes), ours))
    for name, least in (("DTensor default", False), ("DTensor min-cost", True)):
        found = rival(plan, least_cost=least)
        if found is None:
            rows.append((name, "", "", "", "cannot say these layouts"))
        else:
            figures = (size(found.received), duration(found.time), size(found.largest))
            rows.append((name, *figures, ", ".join(found.steps)))
    widths = [max(len(r[c]) for r in rows) for c in range(5)]
    return "\n".join("  ".join(t.ljust(w) for t, w in zip(r, widths, strict=True)).rstrip() for r in rows)


def compared_json(plan: Plan) -> dict[str, Any]:
    """The two rivals as JSON: steps, ``bytes_received``, ``seconds``, ``largest_array_bytes``; ``None`` where DTensor
    cannot say the layouts."""
    found: dict[str, Any] = {}
    for name, least in (("dtensor_default", False), ("dtensor_min_cost", True)):
        other = rival(plan, least_cost=least)
        found[name] = other and {
            "steps": list(other.steps),
            "bytes_received": other.received,
            "seconds": other.time / PICO,
            "largest_array_bytes": other.largest,
        }
    return found
