"""Files and standard input as sources."""

from __future__ import annotations

import sys
from pathlib import Path

from shardlang.diagnostics import Diagnostic, ShardlangError, sl02_names
from shardlang.source import Source
from shardlang.syntax.decode import decode

STDIN = "<stdin>"
READ_LIMIT = 1 << 26
"""Bytes: no product of ours that is read back comes near; a text of the language is held to 1 MiB when decoded."""


def read_bytes(path: str) -> tuple[str, bytes]:
    """The name that diagnostics show and the bytes of a file; ``-`` is standard input.

    At most 64 MiB and one byte are read. Raises SL0221 where there is no such file or it cannot be read.
    """
    try:
        if path == "-":
            if sys.stdin is None:  # a launcher closed it
                raise ShardlangError(sl02_names.unreadable_file(path, "standard input is closed", []))
            return STDIN, sys.stdin.buffer.read(READ_LIMIT + 1)
        with Path(path).open("rb") as file:
            return path, file.read(READ_LIMIT + 1)
    except (OSError, ValueError) as error:
        raise ShardlangError(_unreadable(path, error)) from None


def read_source(path: str) -> Source:
    """The source of a file, or of standard input for ``-``. Raises SL0221 and the codes of ``decode``."""
    return decode(*read_bytes(path))


def _unreadable(path: str, error: OSError | ValueError) -> Diagnostic:
    if isinstance(error, IsADirectoryError):
        return sl02_names.unreadable_file(path, "it is a directory", _shard_files(Path(path)))
    if isinstance(error, FileNotFoundError):
        return sl02_names.unreadable_file(path, "there is no such file", _shard_files(Path(path).parent))
    reason = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
    return sl02_names.unreadable_file(path, reason.lower(), [])


def _shard_files(directory: Path) -> list[str]:
    try:
        return sorted(str(p) for p in directory.glob("*.shard"))[:1000]
    except OSError:
        return []
