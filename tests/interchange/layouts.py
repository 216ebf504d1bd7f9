"""From imported text to the blocks that ranks hold, by the way of the checker."""

from __future__ import annotations

from collections.abc import Mapping

from shardlang.check.facts import Facts, Tensor, modules_of
from shardlang.check.model import check_model
from shardlang.compilation import Compilation
from shardlang.layout import Layout
from shardlang.source import Source
from shardlang.syntax.format import format_source


def layouts(text: str, shapes: Mapping[str, tuple[int, ...]], nproc: int | None = None) -> dict[str, Layout]:
    """The layout of each parameter under an imported file, which must check and be formatted."""
    source = Source("imported.shard", text)
    assert format_source(source) == text
    compilation = Compilation(source, nproc=nproc, look_at_models=False)
    assert compilation.diagnose() == ()
    (model,) = compilation.program.models.values()
    parameters = {name: Tensor(shape, "f32") for name, shape in shapes.items()}
    checked = check_model(model, Facts(parameters, modules_of(parameters)))
    return {name: p.layout for name, p in checked.parameters.items()}


def indices(layout: Layout, rank: int) -> tuple[tuple[int, ...], ...]:
    """For each dim, the indices that a rank holds."""
    return tuple(tuple(i for a, b in runs for i in range(a, b)) for runs in layout.runs(rank))
