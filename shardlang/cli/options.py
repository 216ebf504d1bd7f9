"""Options that several commands take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

_C = TypeVar("_C", bound=Callable[..., Any])


def _sizes(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, int]:
    """``NAME=VALUE`` with whole numbers, each name once."""
    sizes: dict[str, int] = {}
    for value in values:
        name, _, size = value.partition("=")
        if not name or not (size.isascii() and size.isdecimal()) or len(size) > 18:
            raise click.BadParameter(f"`{value}` is not of the form NAME=VALUE with a whole number", ctx, param)
        if name in sizes:
            raise click.BadParameter(f"`{name}` is set twice", ctx, param)
        sizes[name] = int(size)
    return sizes


def set_option(command: _C) -> _C:
    """``--set d=8192``, any number of times; the command gets ``sets``, sizes by name."""
    return click.option(
        "--set", "sets", callback=_sizes, multiple=True, metavar="NAME=VALUE", help="Give a `let` another value."
    )(command)


def nproc_option(command: _C) -> _C:
    """``--nproc N``: the ranks of the launch."""
    return click.option(
        "--nproc", type=click.IntRange(min=1, max=1 << 31), help="The ranks of the launch; gives `?` axes their size."
    )(command)


def model_option(command: _C) -> _C:
    """``--model pkg.mod:fn``."""
    return click.option(
        "--model", metavar="PKG.MOD:FN", help="The function that builds the model, in the place of `from`."
    )(command)
