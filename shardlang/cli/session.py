"""The options that say how a file is looked at, and the session that they make; products written where they go."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click
from attrs import frozen

from shardlang import compilation
from shardlang.cli.options import model_option, nproc_option, set_option
from shardlang.compilation import Compilation
from shardlang.diagnostics import ShardlangError, sl02_names


@frozen
class Given:
    """What the options say of every file of a command."""

    sets: dict[str, int]
    nproc: int | None
    model: str | None
    checkpoint: str | None
    no_model: bool

    def load(self, path: str) -> Compilation:
        """The session of a file, of compiled JSON, or (``-``) of standard input. Raises as ``compilation.load``."""
        return self._seen(
            compilation.load(path, sets=self.sets, nproc=self.nproc, model=self.model, checkpoint=self.checkpoint)
        )

    def of(self, name: str, data: bytes) -> Compilation:
        """The session of bytes that are read already."""
        return self._seen(
            compilation.from_bytes(
                name, data, sets=self.sets, nproc=self.nproc, model=self.model, checkpoint=self.checkpoint
            )
        )

    def _seen(self, session: Compilation) -> Compilation:
        return session.without_models() if self.no_model else session


def session_options(command: Callable[..., None]) -> Callable[..., None]:
    """``--model``, ``--checkpoint``, ``--no-model``, ``--nproc`` and ``--set``; the command gets them as ``given``."""

    @wraps(command)
    def wrapped(
        *args: Any,
        sets: dict[str, int],
        nproc: int | None,
        model: str | None,
        checkpoint: str | None,
        no_model: bool,
        **others: Any,
    ) -> None:
        if no_model and (model or checkpoint):
            raise click.UsageError("--no-model excludes --model and --checkpoint")
        if model and checkpoint:
            raise click.UsageError("--model excludes --checkpoint")
        command(*args, given=Given(sets, nproc, model, checkpoint, no_model), **others)

    wrapped = set_option(wrapped)
    wrapped = nproc_option(wrapped)
    wrapped = click.option("--no-model", is_flag=True, help="Look at no model: no torch, no import of your code.")(
        wrapped
    )
    wrapped = click.option(
        "--checkpoint", metavar="FILE", help="A safetensors file or index whose tensors are the parameters."
    )(wrapped)
    return model_option(wrapped)


def write(text: str, output: str | None) -> None:
    """A product to its file, or (``None`` and ``-``) to standard output. Raises SL0225 where it cannot be written."""
    if output is None or output == "-":
        click.echo(text, nl=False)
        return
    try:
        Path(output).write_text(text, encoding="utf-8")
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ShardlangError(sl02_names.unwritable_file(output, reason)) from None
