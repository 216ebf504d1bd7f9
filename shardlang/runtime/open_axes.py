"""The arguments of a function whose axes are left open (``d/?``): the ways to choose them all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice, product

from shardlang.check.bind import Operand
from shardlang.check.open_dims import ways
from shardlang.check.program import Fn, TensorSpec
from shardlang.diagnostics import ShardlangError, sl05_functions
from shardlang.mesh import Mesh

LIMIT = 64
"""How many ways are compared: a count, so that all ranks compare the same."""


def assignments(declared: Fn, shapes: Sequence[tuple[int, ...]], mesh: Mesh) -> Iterator[tuple[TensorSpec, ...]]:
    """The arguments' specs with every open axis chosen, in the order of the mesh's axes; the specs themselves where
    nothing is open. Raises SL0527 where no axis is left for a dim.
    """
    options = []
    for arg, shape in zip(declared.args, shapes, strict=True):
        assert arg.spec is not None
        found = list(islice(ways(Operand(arg.name, arg.spec, shape, mesh)), LIMIT))
        if not found:
            raise ShardlangError(
                sl05_functions.no_open_axis(f"argument `{arg.name}` of `{declared.name}`", str(mesh), arg.span)
            )
        options.append(found)
    yield from islice(product(*options), LIMIT)
