"""Codes SL07: run time. Each function takes meaning and writes the prose."""

from __future__ import annotations

from shardlang.diagnostics.diagnostic import Diagnostic, message
from shardlang.diagnostics.prose import conjoined, did_you_mean, plural
from shardlang.source import Span


def _ranks(ranks: tuple[int, ...]) -> str:
    """``rank 2`` or ``ranks 0, 1 and 5``."""
    return ("rank " if len(ranks) == 1 else "ranks ") + conjoined(str(r) for r in ranks)


def _shape(shape: tuple[int, ...]) -> str:
    return "[" + " ".join(map(str, shape)) + "]"


@message("SL0701", "ranks that come with different plans")
def ranks_disagree(first: int, second: int, one: str, other: str, *, waited: bool = False) -> Diagnostic:
    """``waited``: it was found out only as both waited for the other, not before anything was sent."""
    what = "each waited for the other to do the same" if waited else "nothing was sent"
    return Diagnostic(
        f"rank {first} and rank {second} do not ask for the same transfer",
        notes=(f"rank {first}: {one}", f"rank {second}: {other}", what),
        helps=("make every rank of the mesh reshard the same tensors in the same order",),
    )


@message("SL0702", "a rank that does not come")
def rank_missing(
    what: str,
    step: tuple[int, int, str, tuple[str, ...]] | None,
    ranks: tuple[int, ...],
    missing: tuple[int, ...],
    store_gone: bool,
    cause: str,
) -> Diagnostic:
    """``step`` of a plan: its number (from 1; 0 for the agreement before the first), how many there are, kind, axes.

    ``None`` where ranks do something else together, which ``what`` says in words.
    """
    place = ""
    if step is not None:
        number, steps, kind, axes = step
        over = f" over `{'/'.join(axes)}`" if axes else ""
        place = f"in {f'step {number} of {steps}, {kind}{over}' if number else 'the agreement before the first step'}, "
        what = f"`{what}`"
    if store_gone:
        gone = "the store of the launch is gone, and with it the rank that kept it (rank 0, unless torchrun kept it)"
    elif missing:
        gone = f"{_ranks(missing)} died or never came"
    else:
        gone = "every rank came, and the connection between two of them broke"
    return Diagnostic(
        f"{gone.split(',')[0] if store_gone else gone}: {what}",
        notes=(*((gone,) if store_gone else ()), f"{place}among {_ranks(ranks)}", f"the backend says: {cause}"),
    )


@message("SL0703", "a local block of another size than its spec gives it")
def block_of_wrong_size(layout: str, found: tuple[int, ...], due: tuple[int, ...], rank: int) -> Diagnostic:
    return Diagnostic(
        f"rank {rank} has a block of {_shape(found)}, where `{layout}` gives it {_shape(due)}",
        notes=("a block is never padded or cut to fit",),
        helps=("give the global shape with `shape=`, or split unevenly with `/~`",),
    )


@message("SL0704", "a placement that no spec can say")
def unknown_placement(axis: str, placement: str) -> Diagnostic:
    return Diagnostic(
        f"the placement `{placement}` on mesh axis `{axis}` has no spec",
        notes=("specs have `Shard`, `Replicate`, `Partial` of sum, avg, max, min, and strided parts that are factors",),
        helps=("redistribute the tensor with torch first",),
    )


@message("SL0705", "a mesh that is larger than the launch")
def too_few_ranks(mesh: str, axes: str, needed: int, world: int) -> Diagnostic:
    return Diagnostic(
        f"mesh `{mesh}` ({axes}) needs {plural(needed, 'rank')}, and the launch has {world}",
        helps=(f"launch {needed} processes, or give one axis the size `?`",),
    )


@message("SL0706", "a layout that a DTensor cannot have")
def not_a_dtensor(layout: str) -> Diagnostic:
    return Diagnostic(
        f"no DTensor placements say `{layout}`",
        notes=("placements split a dim over mesh axes in mesh order, in whole dims",),
        helps=("reshard to a layout that has placements before the value leaves shardlang",),
    )


@message("SL0707", "a tensor whose layout is not known")
def no_source(shape: tuple[int, ...]) -> Diagnostic:
    return Diagnostic(
        f"a plain tensor of {_shape(shape)} does not say how it lies on the mesh",
        helps=('say it with `source="[...]"` and `mesh=`, or pass a DTensor',),
    )


@message("SL0708", "a whole value that differs between ranks")
def copies_differ(layout: str, first: int, second: int) -> Diagnostic:
    return Diagnostic(
        f"rank {first} and rank {second} hold different copies of a block of `{layout}`",
        notes=("ranks that hold the same part of a tensor must hold the same bits",),
        helps=("make the copies equal, or declare the value pending",),
    )


@message("SL0709", "a reshard without a mesh")
def no_mesh(spec: str) -> Diagnostic:
    return Diagnostic(
        f"nothing says on which mesh `{spec}` is",
        helps=("pass `mesh=`, or a tensor that is on one",),
    )


@message("SL0710", "a tensor of another dtype than its spec")
def dtype_differs(spec: str, wanted: str, found: str) -> Diagnostic:
    return Diagnostic(
        f"`{spec}` asks for {wanted}, and the tensor is {found}",
        notes=("moving a tensor never changes its dtype",),
        helps=(f"convert the tensor first, or write `{found}`",),
    )


@message("SL0711", "a whole value that leaves the global view without a word on its gradient")
def local_without_grad(layout: str, axes: tuple[str, ...], *, asked: bool = True) -> Diagnostic:
    """``asked``: by ``sl.local``, with an option for it; else by a spec, which is to say it."""
    over = conjoined(f"`{a}`" for a in axes)
    differently, alike = f'grad="[...]{{+{axes[0]}}}"', 'grad="[...]"'
    if not asked:
        differently, alike = f"{layout} grad {{+{axes[0]}}}", f"{layout} grad {layout}"
    return Diagnostic(
        f"`{layout}` is whole over {over}, so its local use does not say what its gradient is",
        notes=("ranks that use their copy differently have different gradients, which must be added up",),
        helps=(
            f"write `{differently}` where ranks use it differently",
            f"write `{alike}` where they all do the same with it",
        ),
    )


@message("SL0712", "blocks that do not make one tensor")
def blocks_do_not_fit(spec: str, shapes: tuple[tuple[int, ...], ...], ranks: tuple[int, ...]) -> Diagnostic:
    told = [f"rank {r} has {_shape(s)}" for r, s in zip(ranks, shapes, strict=True)]
    return Diagnostic(
        f"the blocks that the ranks have make no tensor in `{spec}`",
        notes=("; ".join(told[:8]) + ("; .." if len(told) > 8 else ""),),
        helps=("give every rank the block of its spec, or the global shape with `shape=`",),
    )


@message("SL0713", "a transfer between meshes whose ranks are scattered")
def scattered_ranks(meshes: list[tuple[int, ...]]) -> Diagnostic:
    told = [", ".join(map(str, ranks[:16])) for ranks in meshes]
    return Diagnostic(
        "a transfer between two meshes of different ranks needs both to be of ranks that follow each other",
        notes=tuple(f"mesh {i + 1}: ranks {text}" for i, text in enumerate(told)),
        helps=("declare the meshes with `ranks A..B`",),
    )


@message("SL0714", "a device mesh without processes")
def no_process_group(mesh: str) -> Diagnostic:
    return Diagnostic(
        f"mesh `{mesh}` cannot be a device mesh: this process is not part of a launch yet",
        notes=("a torch `DeviceMesh` needs the default process group",),
        helps=(
            "call `torch.distributed.init_process_group()` first, and start with `torchrun` or `shardlang run`",
            "to plan and to compile without processes, pass the mesh itself: `program.mesh(...).mesh`",
        ),
    )


@message("SL0715", "a cross entropy that a split vocabulary does not have")
def split_cross_entropy(asked: str, spec: str) -> Diagnostic:
    return Diagnostic(
        f"the cross entropy of logits in `{spec}` cannot have {asked}",
        notes=("the classes are split, and what is sent is one number a prediction: enough for class indices alone",),
        helps=("gather the classes first: `sl.reshard(logits, ...)` to a spec that leaves the class dim whole",),
    )


@message("SL0716", "a block on another device than its mesh")
def device_differs(layout: str, found: str, due: str, rank: int) -> Diagnostic:
    return Diagnostic(
        f"the block of `{layout}` that rank {rank} has is on `{found}`, and its mesh on `{due}`",
        notes=("blocks move by the backend of their mesh's devices: gloo on a CPU, NCCL on CUDA",),
        helps=(f'move it first, as in `block.to("{due}")`', f'or give a device mesh on "{found}"'),
    )


@message("SL0717", "an `out` that is not like the result")
def out_differs(layout: str, found: str, due: str) -> Diagnostic:
    return Diagnostic(
        f"`out` is {found}, and the result in `{layout}` is {due}",
        notes=("what is written into `out` is this rank's block, as it is: nothing is cast, stretched or moved",),
        helps=("make it with `torch.empty_like` of a result, or leave `out` away",),
    )


@message("SL0720", "rows that are sent outside of local blocks")
def rows_without_mesh(axis: str) -> Diagnostic:
    return Diagnostic(
        f"nothing says whose rows are to go over `{axis}`",
        notes=("`sl.send_rows` sends rows of a rank's own blocks, which are only known in a function of local blocks",),
        helps=("call it in a function under `@sl.local_map(..)`",),
    )


@message("SL0721", "a row for a kind that no rank has")
def kind_of_no_rank(axis: str, members: list[int], size: int, here: int) -> Diagnostic:
    """``members``: the coordinates on the axis of the ranks whose rows are such."""
    at = conjoined(str(m) for m in members)
    return Diagnostic(
        f"rows at {at} of `{axis}` are of a kind that none of its {plural(size, 'rank')} has",
        notes=(
            f"each rank has {plural(here, 'kind')}, so that kinds are from 0 to {size * here - 1}",
            "nothing was sent",
        ),
        helps=("give each row the number of its kind, and as `here` how many kinds each rank has",),
    )


@message("SL0722", "rows that are not as many as they should be")
def other_number_of_rows(found: int, due: int) -> Diagnostic:
    return Diagnostic(
        f"{found} were given for {plural(due, 'row')}",
        notes=("each row has one kind, and comes back as one row",),
    )


@message("SL0723", "an axis that the mesh of local blocks does not have")
def no_such_axis(axis: str, axes: list[str]) -> Diagnostic:
    return Diagnostic(
        f"the mesh of these blocks has no axis `{axis}`",
        notes=(f"it has {conjoined(f'`{a}`' for a in axes)}",),
        helps=did_you_mean(axis, axes),
    )


@message("SL0724", "local blocks in a body that is traced")
def local_blocks_in_trace(function: str, span: Span | None) -> Diagnostic:
    return Diagnostic(
        f"`{function}` works on local blocks, and the body that calls it is traced on global values",
        span,
        notes=("what a function does with its rank's own block cannot be checked, nor be typed by rules",),
        helps=("call it outside of `@sl.sharded` functions, in a module whose `call` line ends in `eager`",),
    )
