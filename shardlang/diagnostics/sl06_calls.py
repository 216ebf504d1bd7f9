"""Codes SL063x: a model meets its tensors. Each function takes meaning and writes the prose."""

from __future__ import annotations

from collections.abc import Sequence

from shardlang.diagnostics.diagnostic import Diagnostic, message
from shardlang.diagnostics.prose import did_you_mean, quoted
from shardlang.source import Span


@message("SL0630", "an argument that the module does not take")
def unknown_argument(span: Span, argument: str, module: str, parameters: Sequence[str]) -> Diagnostic:
    return Diagnostic(
        f"module `{module or 'root'}` takes no argument `{argument}`",
        span,
        label="no such argument",
        notes=(f"its `forward` takes {quoted(parameters) or 'none'}",),
        helps=did_you_mean(argument, parameters),
    )


@message("SL0631", "a layout that DTensor cannot say")
def no_placement(span: Span | None, name: str, module: str, layout: str) -> Diagnostic:
    return Diagnostic(
        f"`{name}` of module `{module or 'root'}` has layout `{layout}`, for which DTensor has no placements",
        span,
        notes=("a DTensor says one `Shard`, `Replicate` or `Partial` a mesh axis, nested left to right",),
        helps=("write a spec whose axes split each dim in mesh order, without factors on both sides of a cut",),
    )


@message("SL0632", "a tensor on another mesh")
def other_mesh(span: Span | None, name: str, module: str, found: str, expected: str) -> Diagnostic:
    return Diagnostic(
        f"`{name}` of module `{module or 'root'}` is on {found}, and the model on {expected}",
        span,
        helps=("move it first: `sl.reshard(x, spec, mesh=...)`",),
    )


@message("SL0633", "a size that a rank's block leaves open")
def open_size(span: Span | None, name: str) -> Diagnostic:
    return Diagnostic(
        f"the whole size of an uneven dim of `{name}` cannot be told from one rank's block",
        span,
        label="cut unevenly",
        notes=("a plain tensor at a call is the rank's own block",),
        helps=("give the dim a size (`let n = ...`), or pass a DTensor",),
    )


# SL0634 said that DTensor has no placements for a parameter's layout; every layout has a way since, and the number
# stays free.


@message("SL0635", "a model that lives on another mesh")
def mesh_differs(model: str, declared: str, given: str) -> Diagnostic:
    return Diagnostic(
        f"model `{model}` is declared on mesh `{declared}`, and was given {given}",
        helps=('make it with `program.mesh("name").device_mesh("cpu")`',),
    )


@message("SL0636", "several models and no name")
def which_model(models: Sequence[str]) -> Diagnostic:
    found = f"the file declares {quoted(models)}" if models else "the file declares no model"
    return Diagnostic(found, helps=("name the one that is meant",) if models else ())


@message("SL0637", "a module that cannot be trained by `run`")
def not_runnable(span: Span | None, reference: str, missing: Sequence[str]) -> Diagnostic:
    return Diagnostic(
        f"the module of `{reference}` has no {quoted(missing)}",
        span,
        notes=(
            "`run` needs `batch(step)`, the global batch, and `loss(model, batch) -> (sum, count)` beside the builder",
        ),
    )


@message("SL0638", "trained parameters of two dtypes in one module")
def mixed_dtypes(span: Span, module: str, dtypes: Sequence[str]) -> Diagnostic:
    return Diagnostic(
        f"trained parameters of module `{module or 'root'}` itself are of {quoted(dtypes)}, too many for an FSDP group",
        span,
        notes=("modules whose own parameters are of one dtype are grouped by dtype without being asked",),
        helps=("give them one dtype, or freeze those of one dtype",),
    )


@message("SL0640", "a model whose building was not recorded")
def not_deferred(model: str) -> Diagnostic:
    return Diagnostic(
        f"this `{model}` cannot be given its tensors: how they were made was not recorded",
        helps=("build it with `sl.deferred(build)`",),
    )


@message("SL0641", "a model that no program placed")
def not_applied(model: str) -> Diagnostic:
    return Diagnostic(
        f"this `{model}` is on no mesh: its batches cannot be placed",
        helps=("place it first: `model = program.apply(model, mesh)`",),
    )


@message("SL0639", "a torch without FSDP on the whole mesh")
def fsdp_on_whole_mesh(model: str, version: str) -> Diagnostic:
    return Diagnostic(
        f"torch {version} cannot group model `{model}` on its whole mesh",
        notes=(
            "`fully_shard` takes a mesh with other axes than its own by `DataParallelMeshDims`, which is not there",
        ),
        helps=("install torch 2.13",),
    )


@message("SL0657", "an object that goes into a module called as it is")
def object_into_call(span: Span | None, module: str, kind: str) -> Diagnostic:
    return Diagnostic(
        f"module `{module}` is given a `{kind}`, which a compiled call around it cannot hand on",
        span,
        notes=(
            "a module with an FSDP group, with checkpointing or with `eager` is called as it is",
            "only tensors, numbers, strings, flags and `None` go from a compiled call into it",
        ),
        helps=("build the model without a cache (`use_cache=False`), or write `eager` on the call around it",),
    )


@message("SL0658", "an object that comes out of a module called as it is")
def object_out_of_call(span: Span | None, module: str, kind: str) -> Diagnostic:
    return Diagnostic(
        f"module `{module}` gives a `{kind}`, which a compiled call around it cannot take",
        span,
        notes=("tensors, numbers, strings, flags and `None` come out, also in tuples, lists, dicts and records",),
        helps=("let it give tensors, or write `eager` on the call around it",),
    )


@message("SL0659", "a result whose layout a compiled call around the module needs")
def open_result(span: Span | None, module: str, number: int) -> Diagnostic:
    return Diagnostic(
        f"the `call` line of module `{module}` does not say the layout of its tensor result {number}",
        span,
        notes=("the module is called as it is, from the program of the call around it, which goes on with the result",),
        helps=("write a spec for the result, or `eager` on the call around it",),
    )


@message("SL0661", "a backend that torch.compile does not have")
def unknown_backend(span: Span | None, name: str, known: Sequence[str]) -> Diagnostic:
    return Diagnostic(
        f"torch has no compiler backend `{name}`",
        span,
        notes=(f"it has {', '.join(f'`{k}`' for k in sorted(known))}",),
        helps=did_you_mean(name, known),
    )


@message("SL0662", "float8 without torchao")
def float8_without_torchao(model: str, reason: str) -> Diagnostic:
    return Diagnostic(
        f"model `{model}` gathers weights as float8, for which torchao is needed: {reason}",
        helps=("install it with `pip install 'shardlang[float8]'`", "or remove `all_gather float8`"),
    )


@message("SL0663", "a group that cannot be gathered as float8")
def not_float8(span: Span | None, module: str, reason: str) -> Diagnostic:
    return Diagnostic(
        f"the weights of the group of module `{module or 'root'}` cannot be gathered as float8: {reason}",
        span,
        notes=("gathered as float8 are weights of `nn.Linear` layers that no other axis cuts and nothing is tied to",),
        helps=("remove `all_gather float8`, or say it for modules with such layers",),
    )


@message("SL0664", "what torch alone does not have")
def not_of_torch_alone(model: str, what: str, package: str) -> Diagnostic:
    return Diagnostic(
        f"model `{model}` has {what}, for which a file of torch alone would need {package}",
        helps=("leave it out of this file", "or place the model with `program.apply`"),
    )


@message("SL0666", "an operator that DTensor does not carry out")
def not_dispatched(span: Span | None, model: str, operator: str, place: str, reason: str, way_out: str) -> Diagnostic:
    return Diagnostic(
        f"DTensor does not carry out `{operator}` in model `{model}`",
        span,
        notes=(place, f"torch says: {reason[:300]}", "what no compiled `call` holds runs by DTensor's own dispatch"),
        helps=(way_out,),
    )
