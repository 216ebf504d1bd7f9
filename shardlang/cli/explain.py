"""``shardlang explain CODE``: what a diagnostic means, how it comes about and how it is repaired."""

from __future__ import annotations

from difflib import get_close_matches

import click

from shardlang.diagnostics import REGISTRY
from shardlang.diagnostics.explanations import explanation


@click.command("explain")
@click.argument("code", required=False)
def command(code: str | None) -> None:
    """Explain a diagnostic's CODE (SL0203, 0203 or 203); without one, list all codes."""
    if code is None:
        for known in sorted(REGISTRY):
            click.echo(f"{known}  {REGISTRY[known].title}")
        return
    digits = code.upper().removeprefix("SL")
    full = f"SL{digits.zfill(4)}"
    text = explanation(full) if full in REGISTRY else None
    if text is None:
        near = get_close_matches(full, REGISTRY, n=3)
        hint = f"; near are {', '.join(near)}" if near else ""
        raise click.BadParameter(f"`{code}` is no code of a diagnostic{hint}", param_hint="CODE")
    click.echo(text, nl=False)
