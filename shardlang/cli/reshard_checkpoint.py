"""``shardlang reshard-checkpoint``: a checkpoint written anew for other ranks or in another format, by one process."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from shardlang import compilation
from shardlang.check.facts import Facts, Tensor, modules_of
from shardlang.check.model import ModelLayouts, check_model
from shardlang.cli.options import model_option, nproc_option, set_option
from shardlang.compilation import Compilation
from shardlang.diagnostics import ShardlangError, sl02_names, sl03_layouts, sl07_state
from shardlang.layout import Layout
from shardlang.mesh import Mesh
from shardlang.syntax.build import UNITS

if TYPE_CHECKING:
    from shardlang.runtime.reshard_checkpoint import Opened, Report


def size_of(ctx: click.Context, param: click.Parameter, value: str) -> int:
    """``64MiB`` and the like, in bytes."""
    found = re.fullmatch(r"(\d{1,15}) ?([kKMGT]?i?B)", value.strip())
    if found is None or found[2] not in UNITS["bytes"] or not int(found[1]):
        raise click.BadParameter(f"`{value}` is no size such as 64MiB", ctx, param)
    return int(found[1]) * UNITS["bytes"][found[2]]


@click.command()
@click.argument("source", metavar="IN", type=click.Path(path_type=Path))
@click.argument("out", metavar="OUT", type=click.Path(path_type=Path))
@click.option("--to", metavar="FILE[:NAME]", help="A .shard file, and the model (or mesh) in it that will load OUT.")
@click.option("--as", "kind", type=click.Choice(["checkpoint", "safetensors"]), default="checkpoint", show_default=True)
@click.option("--staging", callback=size_of, default="64MiB", show_default=True, help="The largest piece in memory.")
@click.option("--no-model", is_flag=True, help="Take names and shapes from IN; import none of your code.")
@model_option
@nproc_option
@set_option
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
def command(
    source: Path,
    out: Path,
    to: str | None,
    kind: str,
    staging: int,
    no_model: bool,
    model: str | None,
    nproc: int | None,
    sets: dict[str, int],
    form: str,
) -> None:
    """Write the checkpoint IN anew as OUT, for the ranks of a model: a file a rank, with the blocks that it loads.

    IN is a checkpoint folder, a safetensors file, its index, or a folder with either. No processes are started, each
    byte is read once, and OUT is put in place when it is complete.

    Exit 0: written; 1: a fault of IN, OUT or FILE; 2: wrong usage.
    """
    if kind == "checkpoint" and to is None:
        raise click.UsageError("--to FILE says for which ranks a checkpoint is written")
    session = name = None
    if to is not None:
        file, _, name = to.partition(":") if not Path(to).exists() else (to, "", "")
        session = compilation.load(file, sets=sets, nproc=nproc, model=model)
        session = session.without_models() if no_model else session
        _ = session.program
    from shardlang.runtime.reshard_checkpoint import open_checkpoint, write_checkpoint, write_safetensors

    started = time.monotonic()
    opened = open_checkpoint(source)
    if kind == "safetensors" or session is None:
        report, told = write_safetensors(opened, out, staging), "safetensors"
    else:
        mesh, layouts = _layouts(session, name or None, opened)
        report = write_checkpoint(opened, layouts, out, staging)
        told = f"a checkpoint for {mesh.size} ranks of `{mesh.name}` ({mesh})"
    if form == "json":
        click.echo(json.dumps(report.to_json(), indent=2))
    else:
        click.echo(_text(source, out, told, report, time.monotonic() - started))


def _layouts(session: Compilation, name: str | None, opened: Opened) -> tuple[Mesh, dict[str, Layout]]:
    """The layout of each entry: as the named model stores it, or spread over the ranks of a mesh.

    Raises SL0224 for a name in vain, SL0316 for an open axis, SL0752 and SL0754 where the model's parameters are not
    those of the checkpoint, and what ``check`` would report.
    """
    from shardlang.runtime.stored_layouts import layouts_for, spread, stored_layouts

    program = session.program
    models, meshes = program.models, program.meshes
    name = name or (next(iter(models)) if len(models) == 1 else next(iter(meshes), None) if not models else None)
    if name is None or name not in {*models, *meshes}:
        raise ShardlangError(sl02_names.no_such_name("model", name, [*models, *meshes], session.source.name))
    mesh = models[name].mesh if name in models else meshes[name]
    for axis in mesh.axes:
        if axis.open:
            raise ShardlangError(sl03_layouts.open_axis(None, mesh.name, axis.name, "a checkpoint for its ranks"))
    shapes = {key: entry.shape for key, entry in opened.tensors.items()}
    if name not in models:
        return mesh, {key: spread(mesh, shape) for key, shape in shapes.items()}
    found = _model_layouts(session, name, opened)
    _hold_to(found, opened)
    stored = stored_layouts(found)
    home = next(iter(stored.values())).mesh if stored else mesh
    return mesh, layouts_for(shapes, stored, home)


def _model_layouts(session: Compilation, name: str, opened: Opened) -> ModelLayouts:
    if session.look_at_models and name in session.references:
        return session.layouts[name]
    from shardlang.runtime.checkpoint import spec_name

    parameters = {
        key.removeprefix("model."): Tensor(entry.shape, spec_name(entry.dtype))
        for key, entry in opened.tensors.items()
        if key.startswith("model.")
    }
    return check_model(session.program.models[name], Facts(parameters, modules_of(parameters)))


def _hold_to(layouts: ModelLayouts, opened: Opened) -> None:
    """Raises SL0752 for parameters that the checkpoint lacks, SL0754 for other shapes."""
    from shardlang.runtime.checkpoint import spec_name

    tied = {n: names for names in layouts.tied for n in names}
    have = {k.removeprefix("model."): e for k, e in opened.tensors.items() if k.startswith("model.")}
    missing = [n for n in layouts.parameters if not any(other in have for other in tied.get(n, (n,)))]
    if missing:
        raise ShardlangError(sl07_state.keys_missing(str(opened.path), missing, sorted(have)))
    for name, parameter in layouts.parameters.items():
        if name in have and have[name].shape != parameter.shape:
            dtype = spec_name(have[name].dtype)
            raise ShardlangError(
                sl07_state.tensor_differs(name, have[name].shape, dtype, parameter.shape, parameter.dtype)
            )


def _text(source: Path, out: Path, told: str, report: Report, seconds: float) -> str:
    from shardlang.runtime.transfer_plan import bytes_text as size

    lines = [
        f"read   {source}: {report.tensors} tensors, {size(report.bytes_read)} in {report.files_read} files, once",
        f"wrote  {out}: {told}; {report.pieces} pieces, {size(report.bytes_written)} in {report.files_written} files",
        f"       the largest piece {size(report.largest_piece)}; {seconds:.1f} s",
    ]
    if report.left_out:
        lines.append(f"       left out: {report.left_out} entries that are not the model's")
    return "\n".join(lines)
