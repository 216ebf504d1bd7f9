"""The lock of a file: what its declarations come down to, line by line, so that a change of them shows in a review.

Sections are told apart by their first word (``mesh``, ``reshard``, ``model``); what belongs to one is indented. All
figures are whole bytes of the worst rank; ``gathers`` is what FSDP receives of a parameter in a step.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping

from attrs import Factory, define, field, frozen

from shardlang.check.groups import FsdpGroup
from shardlang.check.memory import itemsize, predict, stored_bytes
from shardlang.check.model import ModelLayouts, ParameterLayout
from shardlang.check.program import Arg, Program, Size, SpecDim, TensorSpec
from shardlang.diagnostics import ShardlangError, sl06_budgets
from shardlang.dtypes import DTYPES
from shardlang.mesh import DEFAULT_LINK, Axis, Mesh
from shardlang.plan.plan import Plan

VERSION = 1
HEAD = f"# shardlang lock {VERSION}"
MEMORY = ("parameters", "gradients", "optimizer", "gathered")


@frozen
class ParameterLock:
    """What a parameter comes down to. ``group`` is the module that gathers it (``-``: none)."""

    dtype: str
    layout: str
    stored: int
    group: str
    gathers: int
    links: str
    """The links that it is gathered by, with commas between (``-``: none that the file names)."""


@frozen
class ModelLock:
    mesh: str
    memory: Mapping[str, int] = field(factory=dict)
    collectives: Mapping[tuple[str, str], tuple[int, int]] = field(factory=dict)
    """(kind, axes) -> (how many in a step, their bytes)."""
    calls: Mapping[str, str] = field(factory=dict)
    parameters: Mapping[str, ParameterLock] = field(factory=dict)
    options: Mapping[str, str] = field(factory=dict)
    """What else is said of modules and parameters: ``checkpoint``, ``compile``, how a group goes, ``frozen``."""


@frozen
class Lock:
    meshes: Mapping[str, str] = field(factory=dict)
    reshards: Mapping[str, tuple[str, ...]] = field(factory=dict)
    """The steps of each plan in words, or what is open."""
    models: Mapping[str, ModelLock] = field(factory=dict)


Collectives = Mapping[str, Iterable[tuple[str, tuple[str, ...], int, int]]]
"""For each model whose training step is planned: (kind, axes, count, bytes)."""


_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")


def numberless(path: str) -> str:
    """A dotted name with ``*`` in the place of the parts that are numbers."""
    return _NUMBER.sub("*", path)


def make_lock(
    program: Program,
    layouts: Mapping[str, ModelLayouts],
    plans: Mapping[str, Plan],
    open_sizes: Mapping[str, tuple[str, ...]],
    steps: Collectives,
) -> Lock:
    """The lock of a checked program; models of which nothing is known have no parameters in it."""
    reshards: dict[str, tuple[str, ...]] = {}
    for name in program.reshards:
        if name in plans:
            reshards[name] = tuple(
                f"{s.kind} {'/'.join(s.axes) or '-'} {s.bytes_received} {s.target}" for s in plans[name].steps
            )
        else:
            reshards[name] = ("open " + " ".join(open_sizes[name]),)
    models = {
        name: _model(layouts[name], steps.get(name, ())) if name in layouts else ModelLock(model.mesh.name)
        for name, model in program.models.items()
    }
    return Lock({n: mesh_text(m) for n, m in program.meshes.items()}, reshards, models)


def mesh_text(mesh: Mesh) -> str:
    """``dp:2@ib * tp:8@nvlink ranks 0..15``, sub-axes in brackets."""
    axes = []
    for axis in mesh.axes:
        parts = mesh.splits.get(axis.name, ())
        axes.append(_axis(axis) + (f"({' * '.join(map(_axis, parts))})" if parts else ""))
    return " * ".join(axes) + f" ranks {mesh.ranks.start}..{mesh.ranks.stop - 1}"


def _axis(axis: Axis) -> str:
    link = "" if axis.link == DEFAULT_LINK else f"@{axis.link.name}"
    return f"{axis.name}:{'?' if axis.open else axis.size}{link}"


def _model(layouts: ModelLayouts, steps: Iterable[tuple[str, tuple[str, ...], int, int]]) -> ModelLock:
    needed = predict(layouts)
    memory = dict(zip(MEMORY, (needed.parameters, needed.gradients, needed.optimizer, needed.gathered), strict=True))
    groups = {name: group for group in layouts.groups for name in group.parameters}
    calls = {
        call.module
        or "root": f"({', '.join(map(_arg, call.line.args))}) -> ({', '.join(map(_arg, call.line.results))})"
        for call in layouts.calls
    }
    return ModelLock(
        layouts.mesh.name,
        memory,
        {(kind, "/".join(axes)): (count, size) for kind, axes, count, size in steps},
        calls,
        {p.name: _parameter(p, groups.get(p.name), layouts) for p in layouts.unique_parameters()},
        _options(layouts),
    )


def _options(layouts: ModelLayouts) -> dict[str, str]:
    """What lines say beside layouts, by module or parameter."""
    said: dict[str, list[str]] = {}
    for module in layouts.checkpoint:
        said.setdefault(module or "root", []).append("checkpoint")
    for module, compiled in layouts.compile:
        said.setdefault(module or "root", []).append(f"compile {compiled.backend or 'inductor'}")
    for group in layouts.groups:
        line = group.line
        reshard = str(line.reshard) if not isinstance(line.reshard, bool) else "yes" if line.reshard else "no"
        words = ["fsdp over", "/".join(line.over)]
        words += ["replicate", "/".join(line.replicate)] if line.replicate else []
        words += [f"reshard {reshard}"]
        for name, value in (("param", line.param_dtype), ("reduce", line.reduce_dtype), ("output", line.output_dtype)):
            words += [f"{name} {value}"] if value else []
        words += [f"prefetch {line.prefetch}"] if line.prefetch else []
        words += ["offload"] if line.offload else []
        words += ["float8"] if line.float8 else []
        said.setdefault(group.module or "root", []).append(" ".join(words))
    for parameter in layouts.unique_parameters():
        if parameter.frozen:
            said.setdefault(parameter.name, []).append("frozen")
    return {name: ", ".join(words) for name, words in said.items()}


def _parameter(parameter: ParameterLayout, group: FsdpGroup | None, layouts: ModelLayouts) -> ParameterLock:
    mesh = layouts.mesh
    stored = stored_bytes(parameter, group, mesh)
    gathers, links = 0, "-"
    if group is not None and parameter.shape:
        over = [leaf for a in group.line.over for leaf in mesh.expand(a)]
        ranks = math.prod(mesh.axis(a).size for a in over)
        floating = parameter.dtype in DTYPES and DTYPES[parameter.dtype].kind == "float"
        sent = itemsize(group.line.param_dtype or parameter.dtype) if floating else itemsize(parameter.dtype)
        if group.line.float8 and parameter.name in layouts.linear:
            sent = 1
        times = 2 if group.line.reshard is True or group.line.reshard == ranks else 1
        gathers = stored // itemsize(parameter.dtype) * sent * (ranks - 1) * times
        named = [mesh.axis(a).link for a in over if mesh.axis(a).size > 1]
        links = ",".join(dict.fromkeys(link.name for link in named if link != DEFAULT_LINK)) or "-"
    home = "-" if group is None else group.module or "root"
    return ParameterLock(parameter.dtype, str(parameter.layout), stored, home, gathers, links)


def _arg(arg: Arg) -> str:
    if arg.spec is None:
        return "_"
    return (f"{arg.name}: " if arg.name else "") + spec_text(arg.spec)


def spec_text(spec: TensorSpec) -> str:
    """A checked spec as text, with the axes that rules gave it; constants as their numbers."""
    if spec.dims is None:
        return "whole"
    text = (spec.dtype or "") + "[" + " ".join(map(_dim, spec.dims)) + "]"
    if spec.pending:
        text += "{" + ", ".join(f"{'+' if p.op == 'sum' else p.op + ' '}{p.axis}" for p in spec.pending) + "}"
    return text + (f" grad {spec_text(spec.grad)}" if spec.grad is not None else "")


def _dim(dim: SpecDim) -> str:
    if dim.rest:
        return "..."
    parts = ["/".join([_size(f.size), *f.cuts]) for f in dim.factors]
    text = parts[0] if len(parts) == 1 else f"({' '.join(parts)})"
    return text + "".join(f"/{'~' if c.uneven else ''}{c.axis}" for c in dim.flat) + ("/?" if dim.choose else "")


def _size(size: Size | None) -> str:
    if size is None:
        return "_"
    if size.left is not None and size.right is not None:
        return f"{_size(size.left)}{size.kind}{_size(size.right)}"
    return size.name or str(size.value)


def lock_text(lock: Lock) -> str:
    """The lock as text: the same lock gives the same bytes."""
    lines = [HEAD]
    for name, text in lock.meshes.items():
        lines += ["", f"mesh {name} = {text}"]
    for name, steps in lock.reshards.items():
        lines += ["", f"reshard {name}", *(f"  {step}" for step in steps)]
    for name, model in lock.models.items():
        lines += ["", f"model {name} on {model.mesh}"]
        lines += [f"  memory {part} {size}" for part, size in model.memory.items()]
        for (kind, axes), (count, size) in model.collectives.items():
            lines.append(f"  collective {kind} {axes} {count} {size}")
        lines += [f"  call {module} {text}" for module, text in model.calls.items()]
        lines += [f"  with {name} {text}" for name, text in model.options.items()]
        for path, p in model.parameters.items():
            line = f"  param {path} {p.dtype} {p.layout} stored {p.stored} fsdp {p.group}"
            lines.append(line + f" gathers {p.gathers} by {p.links}")
    return "\n".join(lines) + "\n"


_PARAM = re.compile(r"(\S+) (\S+) (\[.*\]) stored (\d{1,18}) fsdp (\S+) gathers (\d{1,18}) by (\S+)")


def is_lock(data: bytes) -> bool:
    """Do these bytes begin as a lock does, of whatever version?"""
    return data.startswith(b"# shardlang lock ")


@define
class _Draft:
    """A model's lock while its lines are read."""

    mesh: str
    memory: dict[str, int] = Factory(dict)
    collectives: dict[tuple[str, str], tuple[int, int]] = Factory(dict)
    calls: dict[str, str] = Factory(dict)
    parameters: dict[str, ParameterLock] = Factory(dict)
    options: dict[str, str] = Factory(dict)

    def done(self) -> ModelLock:
        return ModelLock(self.mesh, self.memory, self.collectives, self.calls, self.parameters, self.options)


def read_lock(name: str, data: bytes) -> Lock:
    """The lock that the bytes of a file say. Raises SL0655 where it is of another version or malformed."""
    lines = data.decode("utf-8", "replace").splitlines()
    if not lines or lines[0] != HEAD:
        raise ShardlangError(sl06_budgets.unreadable_lock(name, 1, f"it does not begin with `{HEAD}`"))
    meshes: dict[str, str] = {}
    reshards: dict[str, tuple[str, ...]] = {}
    models: dict[str, _Draft] = {}
    section: list[str] = []
    for number, line in enumerate(lines[1:], 2):
        try:
            if not line.strip():
                continue
            if not line.startswith("  "):
                section = line.split()
                _open(section, line, meshes, reshards, models)
            elif section[0] == "reshard":
                reshards[section[1]] += (line.strip(),)
            else:
                _item(line.strip(), models[section[1]])
        except (ValueError, IndexError, KeyError):
            raise ShardlangError(
                sl06_budgets.unreadable_lock(name, number, f"nothing of a lock is `{line.strip()[:60]}`")
            ) from None
    return Lock(meshes, reshards, {n: draft.done() for n, draft in models.items()})


def _open(
    words: list[str],
    line: str,
    meshes: dict[str, str],
    reshards: dict[str, tuple[str, ...]],
    models: dict[str, _Draft],
) -> None:
    """The first line of a section. Raises ``ValueError`` for any other."""
    if words[0] == "mesh" and words[2] == "=":
        meshes[words[1]] = line.partition(" = ")[2]
    elif words[0] == "reshard":
        reshards[words[1]] = ()
    elif words[0] == "model" and words[2] == "on":
        models[words[1]] = _Draft(words[3])
    else:
        raise ValueError


def _item(line: str, model: _Draft) -> None:
    """One line of a model. Raises ``ValueError`` where it is none."""
    kind, _, rest = line.partition(" ")
    words = rest.split()
    if kind == "memory":
        model.memory[words[0]] = int(words[1])
    elif kind == "collective":
        model.collectives[words[0], words[1]] = (int(words[2]), int(words[3]))
    elif kind == "call":
        module, _, text = rest.partition(" ")
        model.calls[module] = text
    elif kind == "with":
        name, _, text = rest.partition(" ")
        model.options[name] = text
    elif kind == "param":
        found = _PARAM.fullmatch(rest)
        if found is None:
            raise ValueError
        path, dtype, layout, stored, group, gathers, links = found.groups()
        model.parameters[path] = ParameterLock(dtype, layout, int(stored), group, int(gathers), links)
    else:
        raise ValueError
