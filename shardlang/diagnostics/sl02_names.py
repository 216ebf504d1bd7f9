"""Codes SL02: names. Each function takes meaning and writes the prose."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from shardlang.diagnostics.diagnostic import Diagnostic, Fix, Label, message
from shardlang.diagnostics.prose import did_you_mean, named, quoted, sure
from shardlang.source import Span


def _known(what: str, names: Iterable[str]) -> tuple[str, ...]:
    names = list(names)
    return (f"{what}: {quoted(names)}",) if names else ()


def _fix(span: Span, name: str, candidates: Iterable[str]) -> Fix | None:
    """An edit where one candidate alone is near enough to be surely meant."""
    meant = sure(name, candidates)
    return Fix(span, meant) if meant else None


@message("SL0201", "an axis that the mesh does not have")
def unknown_axis(span: Span, axis: str, mesh: str, axes: Sequence[str]) -> Diagnostic:
    on = f"mesh `{mesh}`" if mesh else "the mesh"
    return Diagnostic(
        f"{on} has no axis `{axis}`",
        span,
        label="no such axis",
        notes=_known(f"the axes of {on}", axes),
        helps=did_you_mean(axis, axes),
        fix=_fix(span, axis, axes),
    )


@message("SL0202", "a name declared twice")
def declared_twice(span: Span, kind: str, name: str, first: Span) -> Diagnostic:
    return Diagnostic(
        f"{kind} `{name}` is declared twice",
        span,
        label="declared again here",
        labels=(Label(first, "first declared here"),),
        helps=("rename one of the two",),
    )


@message("SL0203", "an axis that splits two dims")
def splits_two_dims(span: Span, axis: str, tensor: str, first: Span, same_dim: bool) -> Diagnostic:
    return Diagnostic(
        f"mesh axis `{axis}` splits a dim of {named(tensor)} twice"
        if same_dim
        else f"mesh axis `{axis}` splits two dims of {named(tensor)}",
        span,
        label="used again here",
        labels=(Label(first, "first used here"),),
        notes=("an axis may split at most one dim of a tensor",),
        helps=(f"remove one use of `{axis}`",),
    )


@message("SL0204", "an unknown link")
def unknown_link(span: Span, link: str, links: Sequence[str], axis_of: tuple[str, str] | None = None) -> Diagnostic:
    """``axis_of``: the mesh with an axis of this name, and the link of that axis (empty where it has none)."""
    if axis_of is not None:
        mesh, own = axis_of
        way = f"write `{own}`, its link" if own else f"declare a link and put the axis on it, as in `{link}:2@ib`"
        return Diagnostic(
            f"there is no link `{link}`: it is an axis of mesh `{mesh}`",
            span,
            label="an axis, not a link",
            notes=_known("declared links", links) or ("no link is declared",),
            helps=(way,),
        )
    return Diagnostic(
        f"there is no link `{link}`",
        span,
        label="not declared",
        helps=did_you_mean(link, links) or (f"declare it: `link {link} = 50 GB/s, 10 us`",),
        fix=_fix(span, link, links),
    )


@message("SL0205", "an unknown mesh")
def unknown_mesh(span: Span, mesh: str, meshes: Sequence[str]) -> Diagnostic:
    return Diagnostic(
        f"there is no mesh `{mesh}`",
        span,
        label="not declared",
        notes=_known("declared meshes", meshes),
        helps=did_you_mean(mesh, meshes) or (f"declare it: `mesh {mesh} = dp:2 * tp:2`",),
        fix=_fix(span, mesh, meshes),
    )


@message("SL0206", "`--set` of a name that no `let` declares")
def set_of_unknown_let(name: str, lets: Sequence[str], file: str) -> Diagnostic:
    return Diagnostic(
        f"`--set {name}=...` names no `let` of {file}",
        notes=_known("declared there", lets) or (f"{file} declares none",),
        helps=did_you_mean(name, lets),
    )


@message("SL0207", "lets that depend on each other")
def cyclic_lets(span: Span, names: Sequence[str]) -> Diagnostic:
    if len(names) == 1:
        text = f"`{names[0]}` is declared by itself"
    else:
        text = "lets depend on each other: " + " -> ".join(f"`{n}`" for n in (*names, names[0]))
    return Diagnostic(text, span, label="begins here")


@message("SL0208", "a `let` that uses an undeclared name")
def unknown_let(span: Span, name: str, lets: Sequence[str]) -> Diagnostic:
    return Diagnostic(
        f"`{name}` is used in a `let`, but no `let` declares it",
        span,
        label="not declared",
        helps=did_you_mean(name, lets) or (f"declare it: `let {name} = ...`",),
        fix=_fix(span, name, lets),
    )


@message("SL0209", "an unknown model")
def unknown_model(span: Span, model: str, models: Sequence[str]) -> Diagnostic:
    return Diagnostic(
        f"there is no model `{model}`",
        span,
        label="not declared",
        notes=_known("declared models", models),
        helps=did_you_mean(model, models),
        fix=_fix(span, model, models),
    )


@message("SL0210", "two tensors of one name in a signature")
def repeated_argument(span: Span, name: str, first: Span) -> Diagnostic:
    return Diagnostic(
        f"two tensors of this signature are called `{name}`",
        span,
        label="used again here",
        labels=(Label(first, "first used here"),),
    )


@message("SL0211", "a declaration that does not say on which mesh")
def mesh_not_said(span: Span, kind: str, name: str, meshes: Sequence[str]) -> Diagnostic:
    if not meshes:
        return Diagnostic(
            f"{kind} `{name}` needs a mesh, and none is declared",
            span,
            helps=("declare one: `mesh pod = dp:2 * tp:2`",),
        )
    return Diagnostic(
        f"{kind} `{name}` does not say on which mesh it is",
        span,
        notes=_known("declared meshes", meshes),
        helps=(f"write `{kind} {name} on {meshes[0]}`",),
    )


@message("SL0212", "two axes of one name in a mesh")
def repeated_axis(span: Span, axis: str, mesh: str, first: Span) -> Diagnostic:
    on = f"mesh `{mesh}`" if mesh else "the mesh"
    return Diagnostic(
        f"two axes of {on} are called `{axis}`",
        span,
        label="used again here",
        labels=(Label(first, "first used here"),),
        helps=("rename one of the two; sub-axes have names of their own",),
    )


@message("SL0213", "an unknown dtype")
def unknown_dtype(span: Span, dtype: str, dtypes: Sequence[str], alias: str | None) -> Diagnostic:
    return Diagnostic(
        f"there is no dtype `{dtype}`",
        span,
        label="not a dtype",
        notes=() if alias else (f"dtypes: {quoted(dtypes, 20)}",),
        helps=(f"write `{alias}`",) if alias else did_you_mean(dtype, dtypes),
        fix=Fix(span, alias) if alias else None,
    )


@message("SL0214", "two rules for one dim name")
def repeated_rule(span: Span, dim: str, mesh: str, first: Span) -> Diagnostic:
    return Diagnostic(
        f"two rules on `{mesh}` give axes to `{dim}`",
        span,
        label="again here",
        labels=(Label(first, "first here"),),
        helps=("keep one of them",),
    )


@message("SL0215", "a rule for a dim that no spec has")
def unused_rule(span: Span, dim: str, mesh: str, dims: Sequence[str]) -> Diagnostic:
    return Diagnostic(
        f"no spec on mesh `{mesh}` has a dim `{dim}`",
        span,
        label="matches nothing",
        helps=did_you_mean(dim, dims) or ("remove it from the rule",),
    )


@message("SL0216", "an unknown kind of step")
def unknown_step(span: Span, kind: str, kinds: Sequence[str]) -> Diagnostic:
    return Diagnostic(
        f"no step of a plan is called `{kind}`",
        span,
        label="no such step",
        notes=_known("steps that send", kinds),
        helps=did_you_mean(kind, kinds),
        fix=_fix(span, kind, kinds),
    )


@message("SL0217", "an axis to split that the mesh does not have")
def unknown_split_axis(span: Span, axis: str, mesh: str, axes: Sequence[str]) -> Diagnostic:
    on = f"mesh `{mesh}`" if mesh else "the mesh"
    return Diagnostic(
        f"`split` names axis `{axis}`, which {on} does not have",
        span,
        label="no such axis",
        notes=_known(f"the axes of {on}", axes),
        helps=did_you_mean(axis, axes),
        fix=_fix(span, axis, axes),
    )


@message("SL0218", "a rule whose axis is taken")
def rule_axis_taken(span: Span, dim: str, axis: str, tensor: str, taken: Span, rule: Span) -> Diagnostic:
    return Diagnostic(
        f"a rule splits dim `{dim}` of {named(tensor)} over `{axis}`, which is taken",
        span,
        label=f"no `{axis}` left for it",
        labels=(Label(taken, "taken here"), Label(rule, "the rule")),
        helps=(f"write `{dim}/.` for a whole dim, or `else whole` in the rule",),
    )


@message("SL0219", "an operator's rule with a result from nowhere")
def factor_from_nowhere(span: Span, factor: str, operator: str, factors: Sequence[str]) -> Diagnostic:
    return Diagnostic(
        f"factor `{factor}` is in a result of `{operator}`, but in none of its operands",
        span,
        label="in no operand",
        helps=did_you_mean(factor, factors),
    )


@message("SL0220", "an operator's rule that keeps what it contracts")
def contracted_factor_kept(span: Span, factor: str, operator: str, first: Span) -> Diagnostic:
    return Diagnostic(
        f"factor `{factor}` of `{operator}` is contracted, but stands in a result",
        span,
        label="in a result here",
        labels=(Label(first, "contracted here"),),
    )


@message("SL0228", "`...` out of place in an operator's rule")
def misplaced_rest_of_rule(span: Span, operator: str, first: Span | None) -> Diagnostic:
    where = "stands twice in one tensor" if first is not None else "is a factor of a dim"
    return Diagnostic(
        f"`...` {where} in the rule of `{operator}`",
        span,
        label="out of place",
        labels=(Label(first, "first used here"),) if first is not None else (),
        notes=("`...` stands for any number of dims of their own, the same in every tensor",),
    )


@message("SL0221", "a file that cannot be read")
def unreadable_file(path: str, reason: str, near: Sequence[str]) -> Diagnostic:
    return Diagnostic(f"cannot read `{path}`: {reason}", helps=did_you_mean(path, near))


@message("SL0222", "an artefact of another version")
def artefact_version(file: str, version: object, expected: int) -> Diagnostic:
    return Diagnostic(
        f"`{file}` is an artefact of version {str(version)[:40]}, and this shardlang reads version {expected}",
        helps=("compile the `.shard` file again",),
    )


@message("SL0223", "a JSON that is no artefact")
def malformed_artefact(file: str, reason: str) -> Diagnostic:
    return Diagnostic(
        f"`{file}` is no artefact of `shardlang compile`: {reason}",
        helps=("write one: `shardlang compile FILE.shard --emit json -o OUT.json`",),
    )


@message("SL0224", "a name that the file does not declare")
def no_such_name(kind: str, name: str | None, names: Sequence[str], file: str) -> Diagnostic:
    if name is None and names:
        return Diagnostic(
            f"{file} declares several {kind}s, and none is named",
            notes=_known("declared", names),
            helps=(f'name one: `name="{names[0]}"`',),
        )
    what = f"no {kind}" if name is None else f"no {kind} `{name}`"
    return Diagnostic(f"{file} declares {what}", notes=_known("declared", names), helps=did_you_mean(name or "", names))


@message("SL0225", "a file that cannot be written")
def unwritable_file(path: str, reason: str) -> Diagnostic:
    return Diagnostic(f"cannot write `{path}`: {reason}")


@message("SL0226", "a stage that has no product for a file")
def no_product(file: str, stage: str, stages: Sequence[str]) -> Diagnostic:
    return Diagnostic(
        f"nothing of {file} can be written as `{stage}`",
        helps=(f"emit {quoted(stages)}",),
    )


@message("SL0227", "a layout that a file of plain torch cannot say")
def not_in_plain_torch(span: Span | None, tensor: str, layout: str) -> Diagnostic:
    return Diagnostic(
        f"`{tensor or 'the result'}` is laid out {layout}, which DTensor has no placements for",
        span,
        label="no placements",
        notes=("`--emit python` writes torch's own words; `shardlang run` and `program.apply` take this layout",),
        helps=("name axes in the order of the mesh, and cut factors before others of their dim",),
    )
