"""Our ``blocks`` command: the blocks of every rank of the source of each ``reshard`` in a text on standard input."""

import json
import sys

from shardlang.check import check
from shardlang.check.sizes import Sizes
from shardlang.check.transition import bind_change
from shardlang.diagnostics import ShardlangError
from shardlang.syntax.decode import decode
from shardlang.syntax.parse import parse


def blocks(source: bytes) -> dict[str, list[list[list[list[int]]]]]:
    """By name: for each rank, for each dim, its runs."""
    program = check(parse(decode("<stdin>", source)))
    found = {}
    for name, reshard in program.reshards.items():
        layout = bind_change(reshard.source, reshard.target, reshard.mesh, Sizes())[0].source
        found[name] = [[[list(run) for run in runs] for runs in layout.runs(rank)] for rank in layout.mesh.ranks]
    return found


if __name__ == "__main__":
    try:
        print(json.dumps(blocks(sys.stdin.buffer.read())))
    except ShardlangError as error:
        print(error, file=sys.stderr)
        sys.exit(1)
