"""The arguments of a function whose axes are left open (``d/?``): the ways to choose each."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from shardlang.check.bind import Operand
from shardlang.check.open_dims import ways
from shardlang.check.program import Fn, TensorSpec
from shardlang.diagnostics import ShardlangError, sl05_functions
from shardlang.mesh import Mesh

LIMIT = 64
"""How many ways for an argument are compared: a count, so that all ranks compare the same."""


def options(declared: Fn, shapes: Sequence[tuple[int, ...]], mesh: Mesh) -> list[list[TensorSpec]]:
    """For each argument its specs with every open axis chosen, in the order of the mesh's axes; the spec itself where
    nothing is open. Raises SL0527 where no axis is left for a dim.
    """
    found = []
    for arg, shape in zip(declared.args, shapes, strict=True):
        assert arg.spec is not None
        specs = list(islice(ways(Operand(arg.name, arg.spec, shape, mesh)), LIMIT))
        if not specs:
            raise ShardlangError(
                sl05_functions.no_open_axis(f"argument `{arg.name}` of `{declared.name}`", str(mesh), arg.span)
            )
        found.append(specs)
    return found
