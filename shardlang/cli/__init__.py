"""The command line: one module a command, imported when it is called."""

from __future__ import annotations

from importlib import import_module

import click

import shardlang

COMMANDS: dict[str, tuple[str, str]] = {
    # name: (module, one line of help); the module has a click command `command`
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

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(shardlang.__version__, prog_name="shardlang")
def main() -> None:
    """Say where every tensor lives on a device mesh; see every byte before it moves."""
