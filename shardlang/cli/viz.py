"""``shardlang viz``: who holds what."""

from __future__ import annotations

import click

from shardlang.check.asked import read_links, read_splits
from shardlang.check.planned import plan_cheapest
from shardlang.check.transition import spec_layout, transitions
from shardlang.cli.plan import mesh_of
from shardlang.cli.session import write
from shardlang.layout import Layout
from shardlang.source import Source
from shardlang.syntax.parse import parse_change, parse_spec


@click.command()
@click.argument("spec", metavar="SPEC")
@click.option("--mesh", required=True, metavar="AXES", help="The mesh, such as 'a:2 * b:4'.")
@click.option("--link", "links", multiple=True, metavar="DECL", help="A link, such as 'ib = 50 GB/s, 12 us'.")
@click.option("--split", "splits", multiple=True, metavar="DECL", help="Parts of an axis: 'tp = tp0:2 * tp1:4'.")
@click.option("--ranks", metavar="A..B", help="Show these ranks (a layout, as text); default: the first 64.")
@click.option("--format", "form", type=click.Choice(["text", "svg", "html"]), default="text", show_default=True)
@click.option("-o", "--output", type=click.Path(dir_okay=False), metavar="OUT", help="Write here; default: stdout.")
def command(
    spec: str,
    mesh: str,
    links: tuple[str, ...],
    splits: tuple[str, ...],
    ranks: str | None,
    form: str,
    output: str | None,
) -> None:
    """Draw which ranks hold which part of a tensor (SPEC: '[8/a 8/b]'), or of each state of a plan ('A => B')."""
    on = mesh_of("--mesh", mesh, read_links(links), read_splits(splits))
    if "=>" in spec:
        plan = plan_cheapest(transitions(parse_change(Source("<argument>", spec)), on))
        if form == "text":
            from shardlang.report.plan import plan_text

            write(plan_text(plan) + "\n", output)
            return
        from shardlang.report.drawing import plan_drawing, svg
        from shardlang.report.sheet import plan_page

        write(svg(plan_drawing(plan)) + "\n" if form == "svg" else plan_page(plan, "A plan"), output)
        return
    shown = None if ranks is None else _range(ranks, on.ranks)
    write(_drawn(spec_layout(parse_spec(Source("<argument>", spec)), on), form, shown), output)


def _range(text: str, there: range) -> range:
    """The ranks of ``A..B`` (or one, ``A``), which must be on the mesh."""
    first, dots, last = text.strip().partition("..")
    if not first.isdigit() or (dots and not last.isdigit()):
        raise click.BadParameter(f"`{text}` is no range of ranks such as 64..127", param_hint="--ranks")
    found = range(int(first), int(last or first) + 1)
    if not found or found[0] not in there or found[-1] not in there:
        raise click.BadParameter(f"the mesh has ranks {there[0]}..{there[-1]}, not `{text}`", param_hint="--ranks")
    return found


def _drawn(layout: Layout, form: str, shown: range | None) -> str:
    if form == "text":
        from shardlang.report.picture import picture_text
        from shardlang.report.sheet import rank_table

        rows = rank_table(layout, 64, shown, "; `--ranks A..B` shows others")
        whole = [r for r in rows if any(r[1:])]
        widths = [max(len(r[c]) for r in whole) for c in range(len(rows[0]))]
        table = ["  ".join(t.ljust(w) for t, w in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join([f"{layout}  on  {layout.mesh}", "", *picture_text(layout), "", *table]) + "\n"
    from shardlang.report.drawing import layout_drawing, svg
    from shardlang.report.sheet import layout_page

    return svg(layout_drawing(layout)) + "\n" if form == "svg" else layout_page(layout, "Who holds what")
