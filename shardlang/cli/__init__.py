"""The command line: one module a command, imported when it is called."""

from __future__ import annotations

import errno
import os
import sys
from importlib import import_module
from typing import Any

import click

import shardlang

COMMANDS: dict[str, tuple[str, str]] = {
    # name: (module, one line of help); the module has a click command `command`
    "check": ("shardlang.cli.check", "report every fault of files, and of the models they are for"),
    "run": ("shardlang.cli.run", "train or reshard on real ranks, beside the plan and one device"),
    "verify": ("shardlang.cli.verify", "hold every fn and reshard of a file to one device, all ranks simulated"),
    "plan": ("shardlang.cli.plan", "plan one transition: steps, bytes, time, memory, certificate"),
    "viz": ("shardlang.cli.viz", "draw who holds what, as text, SVG or HTML"),
    "compile": ("shardlang.cli.compile", "write the result of any stage: tree, program, plans, artefact"),
    "lock": ("shardlang.cli.lock", "write what a file comes down to, as text for reviews"),
    "diff": ("shardlang.cli.diff", "say what a change of a file means"),
    "fmt": ("shardlang.cli.fmt", "write files in the one way that the language has"),
    "import": ("shardlang.cli.import_", "write another notation's layouts as a .shard file"),
    "transfer": ("shardlang.cli.transfer", "plan the moving of a model's weights to another model's layouts"),
    "reshard-checkpoint": ("shardlang.cli.reshard_checkpoint", "write a checkpoint anew for other ranks or formats"),
    "lsp": ("shardlang.cli.lsp", "serve editors: diagnostics, hover, definitions, completion, fixes"),
    "calibrate": ("shardlang.cli.calibrate", "measure the links of a launch, as link lines"),
    "explain": ("shardlang.cli.explain", "say what a code means, how it comes about, and the repair"),
}


class LazyGroup(click.Group):
    """Lists every command without importing it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = import_module(COMMANDS[cmd_name][0]).command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, with the nearest names where there is no such command."""
        name = str(args[0])
        if name not in COMMANDS and not name.startswith("-"):
            from shardlang.diagnostics.prose import did_you_mean

            ctx.fail("; ".join([f"there is no command `{name}`", *did_you_mean(name, COMMANDS)]))
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Runs a command. What it raises ends here: a ``ShardlangError`` with exit 1, a fault of ours with exit 2."""
        from shardlang.diagnostics import Diagnostic, ShardlangError
        from shardlang.diagnostics.formats import show

        def end(diagnostics: tuple[Diagnostic, ...], code: int) -> None:
            click.echo(show(diagnostics, "text", colour=sys.stderr.isatty() and "NO_COLOR" not in os.environ), err=True)
            ctx.exit(code)

        try:
            return super().invoke(ctx)
        except ShardlangError as error:
            return end(error.diagnostics, 1)
        except (click.ClickException, click.exceptions.Exit, click.Abort, KeyboardInterrupt, BrokenPipeError):
            raise
        except Exception as error:
            if isinstance(error, OSError) and error.errno == errno.ENOSPC and error.filename is None:
                click.echo(f"Error: the output cannot be written: {os.strerror(errno.ENOSPC).lower()}", err=True)
                ctx.exit(2)
            if os.environ.get("SHARDLANG_TRACEBACK"):
                raise
            return end((_internal(error),), 2)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


def _internal(error: Exception) -> Any:
    """SL0901 for an exception that no code of ours foresaw."""
    from shardlang.diagnostics import sl09_internal

    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    where = f"{frame.tb_frame.f_code.co_filename}:{frame.tb_lineno}" if frame else ""
    return sl09_internal.internal(type(error).__name__, str(error).partition("\n")[0][:200], where)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(shardlang.__version__, prog_name="shardlang")
def main() -> None:
    """Say where every tensor lives on a device mesh; see every byte before it moves."""
