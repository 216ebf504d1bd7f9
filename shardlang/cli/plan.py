"""``shardlang plan``: one transition, planned and priced."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Mapping

import click

from shardlang.check.asked import read_links, read_mesh, read_splits
from shardlang.check.planned import plan_cheapest
from shardlang.check.transition import transitions
from shardlang.mesh import Link, Mesh
from shardlang.plan.plan import Plan
from shardlang.plan.steps import Objective
from shardlang.source import Source
from shardlang.syntax import tree
from shardlang.syntax.parse import parse_change


def _cap(ctx: click.Context, param: click.Parameter, value: str) -> float | None:
    if value == "none":
        return None
    try:
        cap = float(value.removesuffix("x"))
    except ValueError:
        cap = math.nan
    if not math.isfinite(cap):
        raise click.BadParameter(f"`{value}` is neither a number nor `none`", ctx, param)
    return cap


@click.command()
@click.argument("transition", metavar="'A => B'")
@click.option("--mesh", required=True, metavar="AXES", help="The mesh, such as 'a:2 * b:4@ib'.")
@click.option("--to", "to_mesh", metavar="AXES", help="The mesh of B, where it is another ('a:8 ranks 4..11').")
@click.option("--link", "links", multiple=True, metavar="DECL", help="A link, such as 'ib = 50 GB/s, 12 us'.")
@click.option("--split", "splits", multiple=True, metavar="DECL", help="Parts of an axis: 'tp = tp0:2 * tp1:4'.")
@click.option("--objective", type=click.Choice(["time", "bytes"]), default="time", show_default=True)
@click.option(
    "--cap", callback=_cap, default="1.0", show_default=True, help="Largest array over the larger end; `none`."
)
@click.option("--compare", is_flag=True, help="Show what DTensor's two planners would do (imports torch).")
@click.option("--verify", is_flag=True, help="Check the plan's certificate, by code that shares none with the planner.")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
def command(
    transition: str,
    mesh: str,
    to_mesh: str | None,
    links: tuple[str, ...],
    splits: tuple[str, ...],
    objective: Objective,
    cap: float | None,
    compare: bool,
    verify: bool,
    form: str,
) -> None:
    """Plan the way from one layout to another: steps, bytes, time, memory, certificate.

    Exit 0: planned (and verified); 1: a fault of the transition, or a plan that its checker refuses; 2: wrong usage.
    """
    declared = read_links(links)
    parts = read_splits(splits)
    on = mesh_of("--mesh", mesh, declared)
    to = None if to_mesh is None else mesh_of("--to", to_mesh, declared)
    theirs = [s for s in parts if to is not None and s.axis.text in [a.name for a in to.axes]]
    ours = [s for s in parts if s not in theirs or s.axis.text in [a.name for a in on.axes]]
    on = mesh_of("--mesh", mesh, declared, ours)
    to = None if to_mesh is None else mesh_of("--to", to_mesh, declared, theirs)
    found = transitions(parse_change(Source("<argument>", transition)), on, to=to)
    plan = plan_cheapest(found, objective=objective, cap=cap)
    faults = _faults(plan) if verify else None
    if form == "json":
        shown = plan.to_json()
        if compare:
            from shardlang.report.compare import compared_json

            shown["compare"] = compared_json(plan)
        click.echo(json.dumps(shown, indent=2))
    else:
        from shardlang.report.plan import plan_text

        click.echo(plan_text(plan))
    if compare and form == "text":
        from shardlang.report.compare import compared

        click.echo(compared(plan))
    if faults is not None:
        for fault in faults:
            click.echo(f"refused: {fault}", err=True)
        if not faults:
            click.echo("certificate checked: every step, block, byte and bound", err=form == "json")
        sys.exit(1 if faults else 0)


def mesh_of(option: str, text: str, links: Mapping[str, Link], splits: Iterable[tree.Split] = ()) -> Mesh:
    """``a:2 * b:4@ib``, and ``ranks 4..11`` after it for ranks that do not start at 0."""
    axes, _, ranks = text.partition(" ranks ")
    first, dots, last = (t.strip() for t in ranks.partition(".."))
    if ranks and not (first.isdecimal() and dots and last.isdecimal()):
        raise click.BadParameter(f"`{ranks.strip()}` is no range of ranks such as 4..11", param_hint=option)
    mesh = read_mesh(axes, splits, links, called=f"<{option}>", first_rank=int(first or 0))
    if ranks and int(last) != mesh.ranks[-1]:
        raise click.BadParameter(f"`{axes}` has {mesh.size} ranks, not those of {ranks.strip()}", param_hint=option)
    return mesh


def _faults(plan: Plan) -> tuple[str, ...]:
    from shardlang.plan.certificate import faults

    return faults(plan)
