"""Codes SL0750 to SL0799: checkpoints, safetensors files, transfers. A call site passes only the meaning."""

from __future__ import annotations

from collections.abc import Sequence

from shardlang.diagnostics.diagnostic import Diagnostic, message
from shardlang.diagnostics.prose import did_you_mean, plural, quoted
from shardlang.source import Span


def _shape(shape: Sequence[int]) -> str:
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


@message("SL0750", "not a checkpoint")
def no_checkpoint(path: str, why: str) -> Diagnostic:
    return Diagnostic(
        f"`{path}` is no checkpoint: {why}",
        notes=("a checkpoint is a folder with a file `.metadata`, written last, and the files that it names",),
        helps=("give the folder that was given to `save`",),
    )


@message("SL0751", "a checkpoint of a newer version")
def newer_checkpoint(path: str, found: int, known: int) -> Diagnostic:
    return Diagnostic(
        f"`{path}` is a checkpoint of version {found}, and this shardlang reads up to version {known}",
        helps=("update shardlang", "or write the checkpoint anew with this version"),
    )


@message("SL0752", "tensors that a checkpoint lacks")
def keys_missing(path: str, missing: Sequence[str], present: Sequence[str]) -> Diagnostic:
    return Diagnostic(
        f"`{path}` lacks {plural(len(missing), 'entry', 'entries')} that the state has: {quoted(missing)}",
        notes=(f"it has {plural(len(present), 'entry', 'entries')}; nothing was loaded",),
        helps=did_you_mean(missing[0], present),
    )


@message("SL0753", "tensors that only the checkpoint has")
def keys_extra(path: str, extra: Sequence[str], present: Sequence[str]) -> Diagnostic:
    return Diagnostic(
        f"`{path}` has {plural(len(extra), 'entry', 'entries')} that the state lacks: {quoted(extra)}",
        notes=("nothing was loaded",),
        helps=(*did_you_mean(extra[0], present), "pass `strict=False` to leave them out"),
    )


@message("SL0754", "a stored tensor of another shape or dtype")
def tensor_differs(key: str, found: Sequence[int], found_dtype: str, due: Sequence[int], due_dtype: str) -> Diagnostic:
    return Diagnostic(
        f"`{key}` is stored as {found_dtype} {_shape(found)}, and the state has {due_dtype} {_shape(due)}",
        notes=("nothing was loaded",),
        helps=("load into a state of the stored shape and dtype, and convert it afterwards",),
    )


@message("SL0755", "a file of a checkpoint that is missing or cut short")
def file_short(path: str, size: int | None, due: int) -> Diagnostic:
    found = "is missing" if size is None else f"has {plural(size, 'byte')} of at least {due}"
    return Diagnostic(
        f"`{path}` {found}",
        notes=("the checkpoint was copied or deleted in part; nothing was loaded",),
        helps=("copy it again, or go back to an earlier checkpoint",),
    )


@message("SL0756", "a file that cannot be written")
def cannot_write(path: str, rank: int, why: str) -> Diagnostic:
    return Diagnostic(
        f"rank {rank} cannot write `{path}`: {why}",
        notes=("what was there before is as it was",),
    )


@message("SL0757", "a pending value in a state")
def pending_state(key: str, layout: str) -> Diagnostic:
    return Diagnostic(
        f"`{key}` is `{layout}`: a reduction is still owed, so that no rank holds its values",
        helps=("reduce it before it is saved, as in `sl.reshard(x, spec)`",),
    )


@message("SL0758", "optimizer state whose layout is not known")
def unknown_state(parameter: str, name: str, shape: Sequence[int], parameter_shape: Sequence[int]) -> Diagnostic:
    return Diagnostic(
        f"the optimizer keeps `{name}` of {_shape(shape)} for `{parameter}` of {_shape(parameter_shape)}, "
        "and nothing says how it lies on the mesh",
        notes=("a DTensor, a scalar, and a tensor of the parameter's own shape say it themselves",),
        helps=("keep it as a DTensor in the optimizer",),
    )


@message("SL0759", "an object that no checkpoint takes")
def unsafe_object(key: str, kind: str) -> Diagnostic:
    return Diagnostic(
        f"`{key}` holds a `{kind}`, which cannot be read back without running code of the checkpoint's author",
        notes=("numbers, strings, None, tensors, and lists, tuples and dicts of them are taken",),
    )


@message("SL0760", "ranks whose states do not make one")
def states_disagree(key: str, why: str) -> Diagnostic:
    return Diagnostic(
        f"the ranks do not hold `{key}` as one tensor: {why}",
        notes=(
            "every rank saves the same model and optimizer, with the same layouts; what was there before is as it was",
        ),
    )


@message("SL0761", "an optimizer that is not of the model")
def foreign_parameter(shape: Sequence[int]) -> Diagnostic:
    return Diagnostic(
        f"the optimizer has a parameter of {_shape(shape)} that the model has not",
        helps=("make the optimizer from the model's parameters after `program.apply`, which replaces them",),
    )


@message("SL0762", "parameter groups that do not match")
def groups_differ(parameters: Sequence[str], option: str) -> Diagnostic:
    return Diagnostic(
        f"the checkpoint has no one value of `{option}` for the parameter group of {quoted(parameters, 3)}",
        notes=("groups are matched by the names of their parameters; nothing was loaded",),
        helps=("make the same parameter groups as when the checkpoint was saved",),
    )


@message("SL0763", "a rank that did not come to save or load")
def rank_silent(what: str, missing: Sequence[int], cause: str) -> Diagnostic:
    who = f"rank {', '.join(map(str, missing))} did not come" if missing else "a rank did not come"
    return Diagnostic(
        f"{who} to the end of {what}",
        notes=(f"the backend says: {cause}", "what was there before is as it was"),
    )


@message("SL0764", "a tensor that is stored in part")
def stored_in_part(key: str, held: int, due: int) -> Diagnostic:
    return Diagnostic(
        f"the checkpoint has {held} of the {due} elements of `{key}` that this rank needs",
        notes=("it was saved by something that lost the others; nothing was loaded",),
        helps=("go back to an earlier checkpoint",),
    )


@message("SL0765", "a conversion that would lose digits")
def narrowing(key: str, found: str, due: str) -> Diagnostic:
    return Diagnostic(
        f"`{key}` is stored as {found}, and the model has {due}, which cannot hold all of its values",
        notes=("a conversion that loses nothing, as from bf16 to f32, is made; nothing was loaded",),
        helps=("pass `convert=True` to round it", f"or make the model in {found}"),
    )


@message("SL0766", "a dtype that does not pass through safetensors files")
def no_such_dtype(key: str, dtype: str) -> Diagnostic:
    return Diagnostic(
        f"`{key}` is {dtype}, which either safetensors files or specs have no name for",
        helps=("convert it, or save a checkpoint with `sl.save`, which holds every dtype",),
    )


Fact = tuple[str, Sequence[int]] | None
"""A tensor's dtype and shape; ``None`` where there is no such tensor."""


@message("SL0767", "models whose weights do not match")
def models_differ(name: str, source: Fact, target: Fact) -> Diagnostic:
    def told(fact: Fact) -> str:
        return "nothing" if fact is None else f"{fact[0]} {_shape(fact[1])}"

    return Diagnostic(
        f"`{name}` is {told(source)} in the source of the transfer, and {told(target)} in its target",
        notes=("a transfer moves the same tensors to other layouts; nothing was moved",),
        helps=("build both models by the same function, with the same sizes and dtype",),
    )


@message("SL0768", "a transfer without one of its sides")
def no_side(word: str) -> Diagnostic:
    return Diagnostic(
        f"no rank gives the {word} of the transfer",
        notes=("each rank gives the models that it holds, and None for the other",),
    )


@message("SL0769", "a mesh whose ranks do not follow each other")
def scattered_mesh(mesh: str, ranks: Sequence[int]) -> Diagnostic:
    return Diagnostic(
        f"mesh `{mesh}` is on ranks {', '.join(map(str, ranks))}, which do not follow each other",
        helps=("declare it with `ranks FIRST..LAST`, and make its device mesh by `program.mesh(name).device_mesh()`",),
    )


@message("SL0770", "a transfer of weights that nothing tells of")
def weights_unknown(span: Span, model: str) -> Diagnostic:
    return Diagnostic(
        f"nothing says which parameters model `{model}` has",
        span,
        helps=("give its function with `from` or `--model`, or its checkpoint with `--checkpoint`",),
    )


@message("SL0771", "a rank that holds nothing of a state")
def not_a_holder(rank: int, ranks: Sequence[int]) -> Diagnostic:
    return Diagnostic(
        f"rank {rank} holds nothing of this state, which is on ranks {', '.join(map(str, ranks))}",
        helps=("save and load on the ranks of the model's mesh only",),
    )


@message("SL0772", "a file without a transfer")
def nothing_to_transfer(file: str, models: Sequence[str]) -> Diagnostic:
    line = " => ".join(models[:2]) if len(models) > 1 else "trainer => server"
    return Diagnostic(
        f"`{file}` declares no transfer",
        notes=(f"it has {plural(len(models), 'model')}" + (f": {quoted(models)}" if models else ""),),
        helps=(f"add a line `transfer {line}`, for two models of the same weights",),
    )
