"""A model's declaration as a Python file that needs torch and nothing else: tables of what is declared, and the text
of ``plain`` behind them."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterable, Mapping
from types import ModuleType

from attrs import evolve
from torch.distributed.tensor import Partial, Placement, Shard

import shardlang
from shardlang.check.bind import Operand, layout_of
from shardlang.check.program import Arg, TensorSpec
from shardlang.check.sizes import evaluate, free_names
from shardlang.diagnostics import ShardlangError, sl02_names, sl06_calls
from shardlang.dtypes import DTYPES
from shardlang.lower import attention, torch_private
from shardlang.lower.model import Group, LoweredModel, keeps_part, layout_on_leaves
from shardlang.lower.placements import placements_of
from shardlang.mesh import Mesh
from shardlang.runtime import gradients, plain

WIDTH = 120
DTYPE_OPTIONS = ("param", "reduce", "output")


def plain_source(lowered: LoweredModel, modules: Iterable[str], reference: str, file: str) -> str:
    """The text of the file. ``modules`` are all of the model's, ``reference`` is the function that builds it, ``file``
    where the declaration is.

    Raises ShardlangError: SL0227 for a layout that torch has no placements for, SL0664 for what needs more than torch.
    """
    if any(g.float8 for g in lowered.groups):
        raise ShardlangError(sl06_calls.not_of_torch_alone(lowered.name, "`all_gather float8`", "torchao"))
    modules, names = list(modules), [name for p in lowered.parameters for name in p.names]
    frozen = {name: "" for p in lowered.parameters if not p.trainable for name in p.names}
    groups = _merged({g.module: _group(g, lowered.mesh) for g in lowered.groups}, modules)
    tables = {
        "MODEL": _quoted(reference),
        "MESH": _table({a.name: str(a.size) for a in lowered.mesh.axes}),
        "PARAMETERS": _table(_parameters(lowered, names)),
        "FROZEN": _list(map(_quoted, _merged(frozen, names))),
        "CALLS": _table(_merged(_calls(lowered), modules)),
        "CHECKPOINT": _list(map(_quoted, _merged(dict.fromkeys(lowered.checkpoint, ""), modules))),
        "COMPILE": _list(f"({_quoted(n)}, {t})" for n, t in _merged(_compiled(lowered), modules).items()),
        "ALONE": _list(map(_quoted, _merged({n: "" for p in lowered.alone for n in p.names}, names))),
        "GROUPS": _list(f"({_quoted(name)}, {options})" for name, options in groups.items()),
    }
    parts = [_title(lowered, file), "from __future__ import annotations", "\n".join(_imports())]
    written = "".join(tables.values())
    wanted = {"reshard_to_part", "_as_if_plain", *(["strided_shard"] if "strided_shard(" in written else [])}
    parts += [text for name, text in _definitions(torch_private) if name in wanted]
    for name, text in _definitions(plain):
        parts.append(f"{text.partition(' = ')[0]} = {tables[name]}" if name in tables else text)
        if name == "GROUPS":
            parts += [text for module in (attention, gradients) for _, text in _definitions(module)]
    return _spaced(parts)


def _title(lowered: LoweredModel, file: str) -> str:
    return f'''"""Model `{lowered.name}` of {file} in torch's words alone, written by shardlang {shardlang.__version__}.

    torchrun --nproc-per-node {lowered.mesh.size} THIS_FILE [STEPS]

trains it; ``parallelize(build(), device_mesh())`` places it in a program of your own.
"""
'''


def _imports() -> list[str]:
    """What the three modules import, but for what they import from us."""
    nodes = [
        node
        for module in (plain, attention, gradients)
        for node in ast.parse(inspect.getsource(module)).body
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    names: dict[str, set[str]] = {}
    plainly: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            plainly.update(ast.unparse(node).splitlines())
        elif node.module not in (None, "__future__") and not str(node.module).startswith("shardlang"):
            names.setdefault(str(node.module), set()).update(a.name for a in node.names)
    lines: list[str] = []
    for torchs in (False, True):
        lines += sorted(text for text in plainly if ("torch" in text) == torchs)
        for module in sorted(m for m in names if m.startswith("torch") == torchs):
            line = f"from {module} import {', '.join(sorted(names[module]))}"
            if len(line) > WIDTH:
                line = f"from {module} import (\n" + "".join(f"    {n},\n" for n in sorted(names[module])) + ")"
            lines.append(line)
        lines += [] if torchs else [""]
    return lines


def _definitions(module: ModuleType) -> list[tuple[str, str]]:
    """The top-level statements of a module by name, comments and the texts that explain them included."""
    source = inspect.getsource(module)
    lines = source.splitlines()
    found: list[tuple[str, str]] = []
    for node in ast.parse(source).body:
        start = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
        text = "\n".join(lines[start - 1 : node.end_lineno])
        if isinstance(node, ast.Import | ast.ImportFrom):
            continue
        if isinstance(node, ast.Expr):
            if found:
                found[-1] = (found[-1][0], f"{found[-1][1]}\n{text}")
            continue
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            name = node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            name = ast.unparse(target)
        else:
            name = ""
        found.append((name, text))
    return found


def _spaced(parts: Iterable[str]) -> str:
    """Statements with the blank lines that belong between them: two around functions and classes, else one."""
    text, block = "", False
    for part in parts:
        opens = part.startswith(("def ", "class ", "@", "if "))
        if text:
            text += "\n\n" if opens or block else "\n"
        text += part.rstrip("\n") + "\n"
        block = opens
    return text


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _table(entries: Mapping[str, str]) -> str:
    return "{" + "".join(f"\n    {_quoted(k)}: {v}," for k, v in entries.items()) + ("\n}" if entries else "}")


def _list(entries: Iterable[str]) -> str:
    entries = list(entries)
    return "[" + "".join(f"\n    {e}," for e in entries) + ("\n]" if entries else "]")


def _merged(entries: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    """Entries with one, under ``*``, in the place of all names that differ in numbers only, where all say the same."""
    alike: dict[str, set[str | None]] = {}
    for name in names:
        alike.setdefault(plain.numberless(name), set()).add(entries.get(name))
    return {(key if len(alike[key := plain.numberless(name)]) == 1 else name): text for name, text in entries.items()}


def _split(placements: Iterable[Placement], mesh: Mesh, rest: int = 0) -> str:
    """``{"tp": Shard(0)}``: the axes over which a tensor is not whole; ``rest``: dims counted from the last one."""
    said = {}
    for axis, placement in zip(mesh.axes, placements, strict=True):
        if torch_private.is_strided_shard(placement):
            dim, factor = placement.dim, torch_private.split_factor(placement)  # type: ignore[attr-defined]  # it has one
            said[axis.name] = f"strided_shard({dim}, {factor})"
        elif isinstance(placement, Shard):
            said[axis.name] = f"Shard({placement.dim - rest})"
        elif isinstance(placement, Partial):
            said[axis.name] = f"Partial({_quoted(placement.reduce_op)})"
    return "{" + ", ".join(f"{_quoted(a)}: {p}" for a, p in said.items()) + "}"


def _parameters(lowered: LoweredModel, names: Iterable[str]) -> dict[str, str]:
    """The parameters that are not whole."""
    for parameter in lowered.parameters:
        if any(torch_private.split_factor(p) < 0 for p in parameter.placements):
            raise ShardlangError(sl02_names.not_in_plain_torch(None, parameter.name, str(parameter.layout)))
    said = {name: _split(p.placements, lowered.mesh) for p in lowered.parameters for name in p.names}
    return {name: text for name, text in _merged(said, names).items() if text != "{}"}


def _compiled(lowered: LoweredModel) -> dict[str, str]:
    for path, _ in lowered.compile:
        for p in lowered.parameters:
            inside = any(n.startswith(f"{path}." if path else "") for n in p.names)
            if inside and any(map(torch_private.is_strided_shard, p.placements)):
                what = f"a `compile` line around the fused weight `{p.name}`"
                raise ShardlangError(
                    sl06_calls.not_of_torch_alone(lowered.name, what, "a compiler of strided products")
                )
    return {path: _quoted(line.backend or "inductor") for path, line in lowered.compile}


def _calls(lowered: LoweredModel) -> dict[str, str]:
    said: dict[str, str] = {}
    for path, line in lowered.calls:
        inputs = {a.name: _spec(a.spec, a, lowered) for a in line.args if a.spec is not None}
        outputs = [f"({_quoted(r.name)}, {_spec(r.spec, r, lowered) if r.spec else None})" for r in line.results]
        given = "{" + ", ".join(f"{_quoted(n)}: {t}" for n, t in inputs.items()) + "}"
        said[path] = f"({given}, [{', '.join(outputs)}])"
    return said


def _spec(spec: TensorSpec, arg: Arg, lowered: LoweredModel) -> str:
    """The placements of a spec, found on a tensor whose open sizes every axis divides."""
    if spec.dims is None:
        return "{}"
    rest = bool(spec.dims) and spec.dims[0].rest
    dims = spec.dims[1:] if rest else spec.dims
    sizes = dict(lowered.sizes)
    for dim in dims:
        for factor in dim.factors:
            for name in free_names(factor.size) if factor.size is not None else ():
                sizes.setdefault(name, lowered.declared.size)
    shape: list[int] = []
    for dim in dims:
        product = 1
        for factor in dim.factors:
            value = None if factor.size is None else evaluate(factor.size, sizes)
            product *= lowered.declared.size if value is None else value
        shape.append(product)
    operand = Operand(arg.name or "the result", evolve(spec, dims=tuple(dims)), tuple(shape), lowered.declared)
    layout = layout_on_leaves(layout_of(operand, sizes), lowered.mesh)
    placements = placements_of(layout)
    if placements is None:
        raise ShardlangError(sl02_names.not_in_plain_torch(spec.span, arg.name, str(layout)))
    return _split(placements, lowered.mesh, len(dims) if rest else 0)


def _group(group: Group, mesh: Mesh) -> str:
    """The options of a group that differ from ``plain.UNSAID``."""
    inside = len(group.module) + 1 if group.module else 0
    said = {
        "shard": group.shard or None,
        "replicate": group.replicate or None,
        "reshard": group.reshard if keeps_part(group, mesh) else group.reshard is not False,
        "param": group.param_dtype,
        "reduce": group.reduce_dtype,
        "output": group.output_dtype,
        "prefetch": group.prefetch,
        "offload": group.offload,
        "dims": {p.name[inside:]: group.dims[p.name] for p in group.parameters if group.dims[p.name]},
    }
    options = [
        f"{_quoted(k)}: {f'torch.{DTYPES[str(v)].torch_name}' if k in DTYPE_OPTIONS else _literal(v)}"
        for k, v in said.items()
        if v != plain.UNSAID[k]
    ]
    return "{" + ", ".join(options) + "}"


def _literal(value: object) -> str:
    if isinstance(value, tuple):
        return "(" + ", ".join(map(_literal, value)) + ("," if len(value) == 1 else "") + ")"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_literal(k)}: {_literal(v)}" for k, v in value.items()) + "}"
    return _quoted(value) if isinstance(value, str) else repr(value)
