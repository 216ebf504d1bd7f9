"""Codes SL06: models and FSDP. Each function takes meaning and writes the prose."""

from __future__ import annotations

from collections.abc import Sequence

from shardlang.diagnostics.diagnostic import Diagnostic, Label, message
from shardlang.diagnostics.prose import conjoined, plural, quoted
from shardlang.source import Span


@message("SL0601", "a pattern that matches nothing")
def pattern_matches_nothing(span: Span, pattern: str, what: str, near: Sequence[str], model: str) -> Diagnostic:
    """``what`` is matched: ``parameter`` or ``module``."""
    helps = (f"did you mean {conjoined([f'`{n}`' for n in near], 'or')}?",) if near else ()
    return Diagnostic(
        f"no {what} of model `{model}` matches `{pattern}`",
        span,
        label="matches nothing",
        helps=helps,
    )


@message("SL0602", "two lines that claim one parameter")
def claimed_twice(span: Span, pattern: str, first: Span, first_pattern: str, parameters: Sequence[str]) -> Diagnostic:
    if parameters:
        text = f"`{first_pattern}` and `{pattern}` both claim {quoted(parameters, 3)}"
    else:
        text = f"two `param` lines have the pattern `{pattern}`"
    return Diagnostic(
        text,
        span,
        label="claimed again here",
        labels=(Label(first, "first claimed here"),),
        notes=("no line takes precedence over another",),
        helps=("narrow one of the two patterns",),
    )


@message("SL0603", "parameters without a line")
def unclaimed_parameters(span: Span, model: str, parameters: Sequence[str]) -> Diagnostic:
    return Diagnostic(
        f"{plural(len(parameters), 'parameter')} of model `{model}` "
        f"{'has' if len(parameters) == 1 else 'have'} no `param` line: {quoted(parameters, 5)}",
        span,
        helps=("add a line for each, or `param otherwise : whole`",),
    )


@message("SL0604", "an axis that an `fsdp` line uses twice")
def fsdp_axis_twice(span: Span, axis: str, first: Span) -> Diagnostic:
    return Diagnostic(
        f"this `fsdp` line uses mesh axis `{axis}` twice",
        span,
        label="used again here",
        labels=(Label(first, "first used here"),),
        notes=("an axis either splits the stored parameters (`over`) or repeats them (`replicate`)",),
    )


@message("SL0605", "a group that does not divide the FSDP group")
def reshard_no_divisor(span: Span, count: int, ranks: int, divisors: Sequence[int]) -> Diagnostic:
    return Diagnostic(
        f"`reshard {count}` does not divide the {plural(ranks, 'rank')} of the group",
        span,
        label=f"no divisor of {ranks}",
        helps=(f"write one of {conjoined(map(str, divisors), 'or')}, or `yes` or `no`",),
    )


@message("SL0665", "a dtype that FSDP cannot compute in")
def no_compute_dtype(span: Span, option: str, dtype: str, fitting: Sequence[str]) -> Diagnostic:
    return Diagnostic(
        f"the option `{option}` takes a dtype to compute in, found {dtype}",
        span,
        label="no gradients in this",
        notes=(f"FSDP casts weights, gradients and results to {conjoined(fitting, 'or')}",),
        helps=("for gathers as float8, write `all_gather float8`",) if dtype.startswith("f8") else (),
    )


@message("SL0606", "a parameter that is pending")
def pending_parameter(span: Span, pattern: str) -> Diagnostic:
    return Diagnostic(
        f"the parameters of `{pattern}` are pending",
        span,
        label="a reduction is owed",
        notes=("a parameter is a value of its own; only what is computed from split values is pending",),
        helps=("remove the braces; the gradient's layout is written `grad {+dp}`",),
    )


@message("SL0607", "FSDP over an axis that already splits the parameter")
def fsdp_axis_splits(span: Span, axis: str, parameter: str, spec: Span) -> Diagnostic:
    return Diagnostic(
        f"mesh axis `{axis}` already splits `{parameter}`, and cannot shard what is stored of it as well",
        span,
        label=f"FSDP over `{axis}`",
        labels=(Label(spec, "already split here"),),
        notes=("`param` lines give the layout that the computation sees; FSDP adds its own cut to it",),
        helps=(f"take `{axis}` out of the `param` line, or name another axis after `over`",),
    )


@message("SL0608", "a module in two FSDP groups")
def grouped_twice(span: Span, module: str, first: Span) -> Diagnostic:
    return Diagnostic(
        f"two `fsdp` lines make a group of module `{module or 'root'}`",
        span,
        label="again here",
        labels=(Label(first, "first here"),),
    )


@message("SL0609", "a tied parameter with two layouts")
def tied_layouts(span: Span, name: str, other: str, first: Span) -> Diagnostic:
    return Diagnostic(
        f"`{name}` and `{other}` are one tied parameter, but their lines say different layouts",
        span,
        label=f"for `{name}`",
        labels=(Label(first, f"for `{other}`"),),
        helps=("write one spec for both",),
    )


@message("SL0610", "tied parameters in two FSDP groups")
def tied_groups(span: Span, name: str, other: str, first: Span | None) -> Diagnostic:
    return Diagnostic(
        f"`{name}` and `{other}` are one tied parameter, but fall into two FSDP groups",
        span,
        label=f"groups `{name}`",
        labels=(Label(first, f"groups `{other}`"),) if first else (),
        notes=("FSDP gathers a parameter with one group only: the other would see a shard",),
        helps=("leave both to the group of a module that holds both, such as `root`",),
    )


@message("SL0611", "two calls of one module")
def called_twice(span: Span, module: str, first: Span) -> Diagnostic:
    return Diagnostic(
        f"two `call` lines are for module `{module or 'root'}`",
        span,
        label="again here",
        labels=(Label(first, "first here"),),
    )


@message("SL0660", "two compilations of one module")
def compiled_twice(span: Span, module: str, first: Span) -> Diagnostic:
    return Diagnostic(
        f"two `compile` lines are for module `{module or 'root'}`",
        span,
        label="again here",
        labels=(Label(first, "first here"),),
    )


@message("SL0612", "a model that cannot be imported")
def model_not_imported(
    span: Span | None, reference: str, reason: str, notes: Sequence[str] = (), helps: Sequence[str] = ()
) -> Diagnostic:
    return Diagnostic(f"cannot import `{reference}`: {reason}", span, notes=tuple(notes), helps=tuple(helps))


@message("SL0613", "a model that cannot be built")
def model_not_built(span: Span | None, reference: str, reason: str, notes: Sequence[str] = ()) -> Diagnostic:
    return Diagnostic(f"`{reference}` does not build a model: {reason}", span, notes=tuple(notes))


@message("SL0614", "a checkpoint that cannot be read")
def checkpoint_unreadable(path: str, reason: str) -> Diagnostic:
    return Diagnostic(
        f"cannot read `{path}` as a safetensors checkpoint: {reason}",
        notes=("a `.safetensors` file, or the `.safetensors.index.json` of several, is read; only its header",),
    )


@message("SL0615", "a model that no `model` declaration is for")
def no_model_declared(option: str, file: str) -> Diagnostic:
    return Diagnostic(
        f"`{option}` gives a model, but {file} declares none", helps=("declare one: `model name on mesh { .. }`",)
    )


@message("SL0616", "a checkpoint whose shapes are not known")
def checkpoint_without_shards(span: Span, path: str, tensors: int) -> Diagnostic:
    return Diagnostic(
        f"only the names of the {tensors} tensors of `{path}` are checked, not their sizes: its files are not there",
        span,
        severity="warning",
        notes=("an index has the names of tensors; their shapes stand in the headers of the files that it names",),
    )


@message("SL0617", "a transfer between models with different parameters")
def transfer_differs(
    span: Span, source: str, target: str, missing: Sequence[str], reshaped: Sequence[str]
) -> Diagnostic:
    notes = [f"in one of them only: {quoted(missing, 5)}"] if missing else []
    if reshaped:
        notes.append(f"of another shape: {quoted(reshaped, 5)}")
    return Diagnostic(
        f"models `{source}` and `{target}` have not the same parameters",
        span,
        label="a transfer moves the same weights",
        notes=tuple(notes),
    )
