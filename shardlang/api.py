"""The Python face: what ``import shardlang as sl`` offers. Thin; torch is imported only where a name needs it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from attrs import evolve, frozen

from shardlang import compilation
from shardlang.check import Scope
from shardlang.check.asked import read_mesh, read_splits
from shardlang.check.declarations import rules_on
from shardlang.check.planned import plan_cheapest
from shardlang.check.program import Fn, Model, Program
from shardlang.check.transition import transitions
from shardlang.compilation import Compilation
from shardlang.diagnostics import ShardlangError, sl02_names
from shardlang.mesh import Mesh
from shardlang.plan.plan import Plan
from shardlang.plan.steps import Objective
from shardlang.source import Source
from shardlang.syntax import tree
from shardlang.syntax.decode import check_text
from shardlang.syntax.parse import parse_change

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh

    from shardlang.runtime.state import State
    from shardlang.runtime.transfer_plan import TransferPlan


@frozen
class LoadedMesh:
    """A mesh of a loaded file."""

    mesh: Mesh

    def device_mesh(self, device_type: str = "cpu") -> DeviceMesh:
        """The torch ``DeviceMesh`` with the same axis names. All of its ranks must ask; one object a mesh and type."""
        from shardlang.lower.placements import device_mesh

        return device_mesh(self.mesh, device_type)


@frozen(slots=False)
class LoadedProgram:
    """A checked file, ready for use from Python."""

    compilation: Compilation

    @cached_property
    def _program(self) -> Program:
        return self.compilation.program

    def mesh(self, name: str) -> LoadedMesh:
        """A declared mesh. Raises SL0224."""
        meshes = self._program.meshes
        if name not in meshes:
            raise ShardlangError(sl02_names.no_such_name("mesh", name, list(meshes), self.compilation.source.name))
        return LoadedMesh(meshes[name])

    def apply(self, model: nn.Module, mesh: DeviceMesh, *, name: str | None = None) -> nn.Module:
        """The module, in place: placed, called and grouped as the file's model says (``name`` where it has several)."""
        from shardlang.runtime.apply import apply

        return apply(self.declared_model(name), model, mesh)

    def state_dict(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        extra: Mapping[str, Any] | None = None,
    ) -> State:
        """The state of a placed model and its optimizer, for ``sl.save`` and ``sl.load_state``; moves no tensor."""
        from shardlang.runtime.state import state_dict

        return state_dict(model, optimizer, extra=extra)

    def transfer(
        self,
        source: nn.Module | None,
        target: nn.Module | None,
        *,
        name: str | None = None,
        staging: int = 64 << 20,
        show: Callable[[str], Any] | None = None,
    ) -> TransferPlan:
        """The weights of one placed model into another, as ``transfer a => b`` declares (``name``: ``"a => b"``, where
        the file has several). See ``sl.transfer``. Raises SL0224 where there is no such declaration."""
        from shardlang.runtime.transfer import transfer

        known = {f"{t.source} => {t.target}": t for t in self._program.transfers}
        if name is None and len(known) == 1:
            name = next(iter(known))
        if name is None or name not in known:
            raise ShardlangError(sl02_names.no_such_name("transfer", name, list(known), self.compilation.source.name))
        models = self._program.models
        sides = models[known[name].source], models[known[name].target]
        return transfer(source, target, staging=staging, show=show, declared=sides)

    def zeros(self, spec: str, **options: Any) -> Any:
        """``sl.zeros`` with the file's constants as sizes, on its only mesh or on ``mesh=`` (a name, or torch's).

        A dim that names no axis gets those of the mesh's ``rules``, as in the file's own specs."""
        return self._make("zeros", spec, options)

    def ones(self, spec: str, **options: Any) -> Any:
        """``sl.ones``, as ``zeros`` here."""
        return self._make("ones", spec, options)

    def full(self, spec: str, value: float | bool, **options: Any) -> Any:
        """``sl.full``, as ``zeros`` here."""
        return self._make("full", spec, options, value)

    def empty(self, spec: str, **options: Any) -> Any:
        """``sl.empty``, as ``zeros`` here."""
        return self._make("empty", spec, options)

    def rand(self, spec: str, **options: Any) -> Any:
        """``sl.rand``, as ``zeros`` here."""
        return self._make("rand", spec, options)

    def randn(self, spec: str, **options: Any) -> Any:
        """``sl.randn``, as ``zeros`` here."""
        return self._make("randn", spec, options)

    def _make(self, maker: str, spec: str, options: dict[str, Any], *values: Any) -> Any:
        from shardlang.lower.placements import mesh_of
        from shardlang.runtime import create
        from shardlang.runtime.specs import checked_spec

        mesh = options.pop("mesh", None)
        if mesh is None or isinstance(mesh, str):
            meshes = self._program.meshes
            mesh = self.mesh(mesh or (next(iter(meshes)) if len(meshes) == 1 else "")).device_mesh()
        lets = {**self._program.lets, **options.pop("sizes", {})}
        declared = mesh_of(mesh)
        scope = Scope(declared, lets, rules_on(self.compilation.tree, declared))
        return getattr(create, maker)(checked_spec(spec, scope), *values, mesh, sizes=lets, **options)

    def release(self) -> None:
        """Destroys the process groups that transfers on the file's meshes have made: those among a mesh's ranks.

        All ranks of the meshes call it, when they have finished what they began; a later transfer makes them anew.
        Leaving a ``with`` block of the program does it too.
        """
        from shardlang.runtime import groups

        for mesh in self._program.meshes.values():
            groups.release(mesh.ranks)

    def __enter__(self) -> LoadedProgram:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def declared_model(self, name: str | None = None) -> Model:
        """A declared model; without a name the only one. Raises SL0224."""
        models = self._program.models
        if name is None and len(models) == 1:
            return next(iter(models.values()))
        if name is None or name not in models:
            raise ShardlangError(sl02_names.no_such_name("model", name, list(models), self.compilation.source.name))
        return models[name]

    def fn(self, function: Callable[..., Any] | None = None, *, auto: bool = False) -> Any:
        """Compiles a Python function by the signature that the file's ``fn`` of the same name declares.

        As a decorator, with or without ``auto=True`` (see ``sl.sharded``). Raises SL0224 where there is no such ``fn``.
        """
        from shardlang.runtime.sharded import ShardedFunction

        def decorate(body: Callable[..., Any]) -> ShardedFunction:
            declared = self.declared_fn(getattr(body, "__name__", ""))
            assert declared.mesh is not None
            scope = Scope(declared.mesh, self._program.lets)
            return ShardedFunction(body, declared, scope, None, auto, self._program.rules)

        return decorate if function is None else decorate(function)

    def declared_fn(self, name: str) -> Fn:
        """The signature of a declared ``fn``. Raises SL0224."""
        fns = self._program.fns
        if name not in fns:
            raise ShardlangError(sl02_names.no_such_name("fn", name, list(fns), self.compilation.source.name))
        return fns[name]


def plan(
    change: str,
    mesh: str | Mesh | LoadedMesh,
    *,
    objective: Objective = "time",
    cap: float | None = 1.0,
    sizes: Mapping[str, int] = {},
    splits: Mapping[str, str] = {},
) -> Plan:
    """The steps of a transition ``"f32[8192/a/b 8192] => [8192 8192/a/b]"``; imports no torch, starts no process.

    ``mesh`` is a declaration's right side (``"a:2 * b:4"``) or a mesh of a loaded file; ``sizes`` gives named dims a
    size, ``splits`` axes of such a text their parts (``{"b": "b0:2 * b1:2"}``). Of a dim ``d/?`` the cheapest axis is
    taken. ``objective`` is what is made least; ``cap`` bounds the largest array, in units of the larger end (``None``
    lifts it). Raises ShardlangError with all that is wrong in either text, ValueError for an objective or a cap that is
    none, and for ``splits`` of a mesh that has its own.
    """
    if objective not in ("time", "bytes"):
        raise ValueError(f"objective is 'time' or 'bytes', not {objective!r}")
    if cap is not None and not 0 <= cap < float("inf"):
        raise ValueError(f"cap is a finite number, or None to lift it, not {cap!r}")
    if isinstance(mesh, str):
        parts = read_splits([f"{axis} = {of}" for axis, of in splits.items()], "<splits>")
        declared = read_mesh(mesh, parts)
    elif splits:
        raise ValueError("splits are for a mesh that is given as a text; a loaded one has its own")
    else:
        declared = mesh.mesh if isinstance(mesh, LoadedMesh) else mesh
    found = transitions(parse_change(Source("<transition>", change)), declared, sizes)
    return plan_cheapest(found, objective=objective, cap=cap)


def load(path: str | os.PathLike[str], *, nproc: int | None = None, sets: Mapping[str, int] = {}) -> LoadedProgram:
    """The program of a ``.shard`` file, or of the JSON that ``shardlang compile`` wrote.

    ``nproc`` sizes an axis written ``?``; without it the launch does (``WORLD_SIZE``). ``sets`` overrides ``let``
    constants. Raises ShardlangError with every fault of the file.
    """
    session = compilation.load(os.fspath(path), sets=sets, nproc=nproc)
    return _loaded(session)


def loads(
    text: str, *, name: str = "<string>", nproc: int | None = None, sets: Mapping[str, int] = {}
) -> LoadedProgram:
    """As ``load``, from a text; ``name`` is what diagnostics call it."""
    source = Source(name, text)
    check_text(source)
    return _loaded(Compilation(source, dict(sets), nproc))


def _loaded(session: Compilation) -> LoadedProgram:
    """The checked session; an open axis takes its size from the launch where there is one."""
    world = os.environ.get("WORLD_SIZE", "")
    if session.nproc is None and world.isdecimal():
        meshes = [d for d in session.tree.decls if isinstance(d, tree.Mesh)]
        if any(axis.size is None for mesh in meshes for axis in mesh.axes):
            session = evolve(session, nproc=max(1, int(world)))
    loaded = LoadedProgram(session)
    _ = session.program
    return loaded
