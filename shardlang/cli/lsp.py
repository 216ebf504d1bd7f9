"""``shardlang lsp``: the language server, for editors."""

from __future__ import annotations

import click


@click.command()
def command() -> None:
    """Serve editors by the language server protocol on standard input and output.

    Needs pygls: pip install 'shardlang[lsp]'.
    """
    try:
        from shardlang.lsp import build
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("pygls", "lsprotocol", "cattrs"):
            raise
        raise click.UsageError(f"the language server needs {error.name}: pip install 'shardlang[lsp]'") from None
    build().start_io()
