"""A tensor parallel plan of transformers (``tp_plan``), as JSON, to ``param`` and ``call`` lines.

A plan maps modules, or parameters, to styles; ``*`` stands for a number. Styles are those of versions 4 and 5. What a
style does to a Linear: ``colwise`` splits the rows of the weight (torch keeps it as [out, in]), so that each rank has
some outputs; ``rowwise`` splits the columns, and the partial sums are reduced.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from attrs import field, frozen

from shardlang.diagnostics import Diagnostic, ShardlangError, sl02_import
from shardlang.interchange import Imported
from shardlang.interchange.fold import fold
from shardlang.interchange.form import (
    MESH,
    MODEL,
    divides,
    entries,
    known_keys,
    mesh_axes,
    mesh_line,
    shape,
    writable,
)
from shardlang.interchange.json_text import Node, described, read
from shardlang.source import Source, Span
from shardlang.syntax.format import format_source

PLANS = ("tp_plan", "base_model_tp_plan")
KEYS = (*PLANS, "mesh", "parameters")
AXIS = "tp"
"""The axis of a plan that comes without a mesh; its size is then left to the launch."""


@frozen
class Style:
    """What a style does. ``dim`` of a weight is split (counted from the last; ``None``: whole), ``packed`` in two
    halves each; a ``bias`` is split or whole. ``given`` and ``made`` are the module's argument and result as ``call``
    has them, ``...`` for their leading dims; no ``call`` where they are empty.
    """

    dim: int | None
    bias: bool = False
    packed: bool = False
    given: str = ""
    made: str = ""
    kind: Literal["linear", "embedding", "any"] = "linear"


_WHOLE, _PART, _OWED = "[... _]", "[... _/{axis}]", "[... _]{+{axis}}"
STYLES: Mapping[str, Style] = {
    "colwise": Style(-2, bias=True, given=_WHOLE, made=_PART),
    "colwise_rep": Style(-2, bias=True, given=_WHOLE, made=_WHOLE),
    "colwise_gather_output": Style(-2, bias=True, given=_WHOLE, made=_WHOLE),
    "local_colwise": Style(-2, bias=True, given=_WHOLE, made=_PART),
    "packed_colwise": Style(-2, bias=True, packed=True, given=_WHOLE, made=_PART),
    "local_packed_colwise": Style(-2, bias=True, packed=True, given=_WHOLE, made=_PART),
    "rowwise": Style(-1, given=_PART, made=_WHOLE),
    "rowwise_rep": Style(-1, given=_WHOLE, made=_WHOLE),
    "rowwise_split_input": Style(-1, given=_WHOLE, made=_WHOLE),
    "local_rowwise": Style(-1, given=_PART, made=_OWED),
    "packed_rowwise": Style(-1, packed=True, given=_PART, made=_WHOLE),
    "local_packed_rowwise": Style(-1, packed=True, given=_PART, made=_OWED),
    "embedding_rowwise": Style(-2, given="[...]", made=_WHOLE, kind="embedding"),
    "replicate": Style(None, kind="any"),
    "replicated_with_grad_allreduce": Style(None, kind="any"),
    "sequence_parallel": Style(None, kind="any"),
}
UNSAYABLE: Mapping[str, str] = {
    "local": "the module's code knows of the ranks itself",
    "gather": "it sums the module's first result over the ranks, and a plan does not say what the others are",
    "all_reduce": "it sums the module's result over the ranks, and a plan does not say how many dims that has",
    "embedding_colwise": "each rank looks up its own columns, and the results are then summed over the ranks",
    "ep_router": "it rewrites the router's choice of experts for each rank",
    "grouped_gemm": "each rank has experts of its own, and tokens are dispatched to them",
    "moe_tp_experts": "the experts' code knows of the ranks itself",
    "moe_identity_expert": "the experts' code knows of the ranks itself",
    "megamoe_router": "it rewrites the router's choice of experts for each rank",
    "megamoe_experts": "each rank has experts of its own, and tokens are dispatched to them",
    "mla_kv_a_proj": "it splits a part of the result and keeps the rest whole",
}
"""Styles that no ``param`` and ``call`` lines say, with the reason."""


@frozen
class _Entry:
    """A line of a plan."""

    module: str
    style: str
    span: Span
    """Of the style."""
    key: Span


@frozen
class _Result:
    """What has been made so far. ``specs`` are of parameters by name (or by pattern, where no names are given)."""

    axes: dict[str, int | None]
    axis: str
    specs: dict[str, str] = field(factory=dict)
    calls: list[str] = field(factory=list)
    faults: list[Diagnostic] = field(factory=list)


def import_hf(source: Source) -> Imported:
    """The ``.shard`` text of a plan, and a diagnostic for each entry that it does not say in full.

    The JSON is a plan, or an object with ``tp_plan``, and where they are known ``mesh`` (of one axis) and
    ``parameters`` (names and shapes). Raises ``ShardlangError`` where the JSON is at fault itself.
    """
    errors: list[Diagnostic] = []
    top = read(source)
    found = entries(top, "the value", errors)
    if errors:
        raise ShardlangError(errors)
    key = next((k for k in PLANS if k in found), None)
    if key is not None:
        known_keys(top, KEYS, errors)
    plan = _plan(found[key] if key is not None else top, errors)
    axes: dict[str, int | None] = {AXIS: None}
    if key is not None and "mesh" in found:
        axes = dict(mesh_axes(found["mesh"], errors))
        if len(axes) != 1 and not errors:
            errors.append(sl02_import.wrong_form(found["mesh"].span, "`mesh`", "one axis", f"of {len(axes)} axes"))
    parameters = _parameters(found["parameters"], errors) if key is not None and "parameters" in found else None
    if errors:
        raise ShardlangError(errors)
    result = _Result(axes, next(iter(axes)))
    if parameters is None:
        _by_module(plan, result)
    else:
        _by_parameter(plan, parameters, result)
    return Imported(_text(result, source.name, named=parameters is not None), tuple(result.faults))


def _plan(node: Node, errors: list[Diagnostic]) -> dict[str, _Entry]:
    plan: dict[str, _Entry] = {}
    for module, style in entries(node, "the plan", errors).items():
        key = style.key or style.span
        if not isinstance(style.value, str):
            errors.append(sl02_import.wrong_form(style.span, f"the style of `{module}`", "a string", described(style)))
        elif writable(re.sub(r"(?<![^.])\*(?![^.])", "0", module), key, "module", errors):
            plan[module] = _Entry(module, style.value, style.span, key)
    return plan


def _parameters(node: Node, errors: list[Diagnostic]) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for name, sizes in entries(node, "`parameters`", errors).items():
        dims = shape(sizes, name, errors)
        if writable(name, sizes.key or sizes.span, "parameter", errors) and dims is not None:
            found[name] = dims
    return found


def _style(entry: _Entry, result: _Result) -> Style | None:
    """What the entry's style does; ``None`` and a diagnostic where that cannot be said."""
    if entry.style in UNSAYABLE:
        reason = UNSAYABLE[entry.style]
        result.faults.append(sl02_import.unsayable_style(entry.span, entry.style, entry.module, reason))
        return None
    style = STYLES.get(entry.style)
    if style is None:
        known = [*STYLES, *UNSAYABLE]
        result.faults.append(sl02_import.unknown_style(entry.span, entry.style, entry.module, known))
        return None
    if style.kind == "linear" and "embed" in entry.module.rpartition(".")[2]:
        result.faults.append(sl02_import.embedding_style(entry.span, entry.style, entry.module))
        return None
    if entry.style == "sequence_parallel":
        result.faults.append(sl02_import.work_repeated(entry.span, entry.style, entry.module))
    return style


def _by_module(plan: dict[str, _Entry], result: _Result) -> None:
    """Lines for a plan alone: every module that it splits is taken for one with a weight and no bias."""
    guessed: list[_Entry] = []
    for entry in plan.values():
        style = _style(entry, result)
        if style is None or style.dim is None:
            continue
        guessed.append(entry)
        result.specs[f"{entry.module}.weight"] = _spec(style, 2, style.dim, result.axis)
        _call(entry.module, style, result)
    if guessed:
        result.faults.append(sl02_import.guessed_parameters(guessed[0].key, len(guessed)))


def _by_parameter(plan: dict[str, _Entry], parameters: dict[str, tuple[int, ...]], result: _Result) -> None:
    """Lines for the parameters that there are. A parameter's style is that of its name, else of its module's."""
    styles = {entry.module: _style(entry, result) for entry in plan.values()}
    used: set[str] = set()
    modules = dict.fromkeys((n.rpartition(".")[0] for n in parameters), "")
    for name, dims in parameters.items():
        form = re.sub(r"[0-9]+", "*", name)
        module = form.rpartition(".")[0]
        key = form if form in plan else module
        if key not in plan:
            result.specs[name] = "whole"
            continue
        used.add(key)
        style = styles[key]
        result.specs[name] = "whole" if style is None else _parameter(plan[key], style, name, dims, result)
        if style is not None and key == module:
            modules[name.rpartition(".")[0]] = _signature(style, result.axis)
    modules.pop("", None)
    result.calls.extend(f"call {pattern} {line}" for pattern, line in fold(modules) if line)
    forms = sorted({re.sub(r"[0-9]+", "*", n).rpartition(".")[0] for n in parameters} - {""})
    for key, entry in plan.items():
        if key not in used and entry.style not in UNSAYABLE and entry.style in STYLES:
            result.faults.append(sl02_import.unused_entry(entry.key, key, forms))


def _parameter(entry: _Entry, style: Style, name: str, dims: tuple[int, ...], result: _Result) -> str:
    """The spec of a parameter; whole, with a diagnostic, where its shape does not suit the style."""
    bias = name.rpartition(".")[2] == "bias"
    dim = (-1 if style.bias else None) if bias else style.dim
    if dim is None:
        return "whole"
    if len(dims) < -dim:
        result.faults.append(sl02_import.too_few_dims(entry.span, entry.style, name, dims, dim))
        return "whole"
    size, ranks = dims[dim], result.axes[result.axis]
    if style.packed and size % 2:
        result.faults.append(sl02_import.does_not_divide(entry.span, name, len(dims) + dim, size, 2))
        return "whole"
    size //= 2 if style.packed else 1
    if ranks is not None:
        counted = {result.axis: ranks}
        if not divides(entry.span, name, len(dims) + dim, size, [result.axis], counted, result.faults):
            return "whole"
    return _spec(style, len(dims), dim, result.axis)


def _spec(style: Style, rank: int, dim: int, axis: str) -> str:
    texts = ["_"] * rank
    texts[dim] = f"(2 _/{axis})" if style.packed else f"_/{axis}"
    return "[" + " ".join(texts) + "]"


def _call(module: str, style: Style, result: _Result) -> None:
    line = _signature(style, result.axis)
    if line:
        result.calls.append(f"call {module} {line}")


def _signature(style: Style, axis: str) -> str:
    """The argument and the result of a module of this style; empty where nothing happens at its boundary."""
    if not style.given:
        return ""
    part = "(2 _/{axis})" if style.packed else "_/{axis}"
    given, made = (s.replace("_/{axis}", part).replace("{axis}", axis) for s in (style.given, style.made))
    return f"(input: {given}) -> {made}"


def _text(result: _Result, name: str, *, named: bool) -> str:
    """The file. Patterns over names that are known are held against them; a plan's own patterns stand as they are."""
    split = {n: s for n, s in result.specs.items() if s != "whole"}
    lines = fold(result.specs) if named else list(result.specs.items())
    lines = [(pattern, spec) for pattern, spec in lines if spec != "whole"]
    if len(split) < len(result.specs) or not named:
        lines.append(("otherwise", "whole"))
    body = [*(f"param {p} : {s}" for p, s in lines), "", *result.calls]
    text = "\n".join([mesh_line(result.axes), "", f"model {MODEL} on {MESH} {{", *body, "}"]) + "\n"
    return format_source(Source(name, text))


__all__ = ["STYLES", "UNSAYABLE", "import_hf"]
