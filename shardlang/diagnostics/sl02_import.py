"""Codes SL0250 to SL0269: texts of other notations. Each function takes meaning and writes the prose."""

from __future__ import annotations

from collections.abc import Sequence

from shardlang.diagnostics.diagnostic import Diagnostic, Label, message
from shardlang.diagnostics.prose import did_you_mean, quoted
from shardlang.source import Span


@message("SL0250", "a text that is no JSON")
def no_json(span: Span, reason: str) -> Diagnostic:
    return Diagnostic(f"the text is no JSON: {reason}", span, label="here")


@message("SL0251", "JSON of another form")
def wrong_form(span: Span, what: str, wanted: str, found: str) -> Diagnostic:
    return Diagnostic(f"{what} is {found}", span, label=f"wanted: {wanted}")


@message("SL0252", "a key given twice")
def repeated_key(span: Span, key: str, first: Span) -> Diagnostic:
    return Diagnostic(
        f"key `{key}` is given twice",
        span,
        label="again here",
        labels=(Label(first, "first here"),),
        notes=("JSON readers keep one of the two and say nothing",),
    )


@message("SL0253", "a key that is missing")
def missing_key(span: Span, key: str, wanted: str) -> Diagnostic:
    return Diagnostic(f"key `{key}` is missing", span, helps=(f"add `{key}`: {wanted}",))


@message("SL0254", "a name that the notation cannot write")
def unwritable_name(span: Span, kind: str, name: str) -> Diagnostic:
    return Diagnostic(
        f"{kind} `{name}` cannot be written",
        span,
        label="not a name here",
        notes=("names have letters, digits and `_`; axes do not begin with a digit; `root` and `otherwise` mean more",),
        helps=("rename it before the import",),
    )


@message("SL0255", "a PartitionSpec for a parameter whose shape is not given")
def spec_without_shape(span: Span, parameter: str) -> Diagnostic:
    return Diagnostic(
        f"the shape of `{parameter}` is not given",
        span,
        label="how many dims?",
        notes=("a PartitionSpec may be shorter than the number of dims, and alone does not say it",),
        helps=(f"give the shape of `{parameter}` in `shapes`",),
    )


@message("SL0256", "a PartitionSpec with more entries than dims")
def spec_too_long(span: Span, parameter: str, entries: int, shape: Sequence[int]) -> Diagnostic:
    return Diagnostic(
        f"the spec of `{parameter}` has {entries} entries, and its shape {list(shape)} has {len(shape)}",
        span,
        label=f"{entries} entries",
    )


@message("SL0257", "a parameter without a PartitionSpec")
def shape_without_spec(span: Span, parameter: str) -> Diagnostic:
    return Diagnostic(
        f"`{parameter}` has a shape and no spec",
        span,
        label="no spec",
        helps=("write `[]` in `specs` for a parameter that is whole on every device",),
    )


@message("SL0258", "a dim that is left to the compiler")
def unconstrained(span: Span, parameter: str) -> Diagnostic:
    return Diagnostic(
        f"a dim of `{parameter}` is left to XLA",
        span,
        label="unconstrained",
        notes=("a parameter's layout is fixed; in a `reshard` or a function, `/?` leaves a dim to the planner",),
        helps=("write the axes, or null for a whole dim",),
    )


@message("SL0259", "a dim that its axes do not divide")
def does_not_divide(span: Span, parameter: str, dim: int, size: int, ways: int) -> Diagnostic:
    return Diagnostic(
        f"dim {dim} of `{parameter}` has size {size}, which {ways} does not divide",
        span,
        label=f"{size} is no multiple of {ways}",
        notes=("neither JAX nor transformers defines blocks for it; `/~` in a `.shard` file does",),
    )


@message("SL0260", "an unknown style of a tensor parallel plan")
def unknown_style(span: Span, style: str, module: str, styles: Sequence[str]) -> Diagnostic:
    return Diagnostic(
        f"`{module}` has style `{style}`, which is not known",
        span,
        label="no such style",
        notes=(f"styles: {quoted(sorted(styles), 40)}",),
        helps=did_you_mean(style, styles),
    )


@message("SL0261", "a style that no declaration says")
def unsayable_style(span: Span, style: str, module: str, reason: str) -> Diagnostic:
    return Diagnostic(
        f"style `{style}` of `{module}` is left out",
        span,
        label="not in the result",
        notes=(reason,),
        helps=(f"write a `call` line for `{module}` by hand",),
    )


@message("SL0262", "parameters that are guessed from a plan's modules")
def guessed_parameters(span: Span, modules: int) -> Diagnostic:
    return Diagnostic(
        f"the plan names {modules} module{'s' * (modules != 1)} and no parameters: "
        "each is taken for a Linear with a `weight` and without a `bias`",
        span,
        severity="warning",
        helps=("give names and shapes in `parameters`",),
    )


@message("SL0263", "a style for a parameter with too few dims")
def too_few_dims(span: Span, style: str, parameter: str, shape: Sequence[int], dim: int) -> Diagnostic:
    return Diagnostic(
        f"style `{style}` splits dim {dim} of `{parameter}`, whose shape is {list(shape)}",
        span,
        label=f"no dim {dim}",
    )


@message("SL0264", "a style of an embedding that versions read differently")
def embedding_style(span: Span, style: str, module: str) -> Diagnostic:
    return Diagnostic(
        f"style `{style}` of `{module}` splits another dim in one version of transformers than in the next",
        span,
        label="rows or columns?",
        notes=("of an embedding, version 4 splits rows by `colwise`, and version 5 by `rowwise`",),
        helps=("write `embedding_rowwise` to split the vocabulary",),
    )


@message("SL0265", "an entry of a plan that no parameter matches")
def unused_entry(span: Span, module: str, modules: Sequence[str]) -> Diagnostic:
    return Diagnostic(
        f"no parameter is of `{module}`",
        span,
        label="matches nothing",
        helps=did_you_mean(module, modules),
    )


@message("SL0266", "work that is no longer split")
def work_repeated(span: Span, style: str, module: str) -> Diagnostic:
    return Diagnostic(
        f"style `{style}` of `{module}` becomes a module with whole parameters",
        span,
        severity="warning",
        label="its work is repeated on every rank",
        notes=("what the style splits in front of the module and gathers behind it differs by version; no value does",),
        helps=(f"a `call` line for `{module}` with `seq/tp` in its argument and result keeps the work split",),
    )
